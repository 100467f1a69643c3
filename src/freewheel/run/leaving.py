"""What the user gives has to reach other processes: whether it can, and what of the user's script they load."""

from __future__ import annotations

import ast
import contextlib
import sys
import types
from collections.abc import Iterator
from multiprocessing import reduction
from pathlib import Path
from typing import Any


def cannot_leave(env: Any, body: Any, loss: Any) -> str:
    """Why these cannot go to another process; "" if they can."""
    if hasattr(env, "step") and not isinstance(env, type):
        return "the env was given as an object, which lives in this process (give its id or a function that makes it)"
    if needs_main(env, body, loss) and not is_guarded(sys.modules["__main__"]):
        return (
            "the env, network or loss is defined in the script that runs, which has no if __name__ == '__main__': around "
            "what it does (add it, or put the definition into a module)"
        )
    for what, thing in (("env", env), ("network", body), ("loss", loss)):
        try:
            reduction.ForkingPickler.dumps(thing)
        except Exception as error:
            return f"the {what} cannot be sent to another process ({type(error).__name__}: {error})"
    return ""


def needs_main(*given: Any) -> bool:
    """Whether one of these was defined in the script that runs."""
    return any(
        "__main__" in (getattr(thing, "__module__", None), type(thing).__module__)
        for thing in given
        if thing is not None
    )


def is_guarded(main: types.ModuleType) -> bool:
    """Whether a script can be imported without doing its work again: it tells the two apart by its name."""
    file = getattr(main, "__file__", None)
    if file is None:
        return False  # typed in, or a notebook
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    tests = [node.test for node in tree.body if isinstance(node, ast.If)]
    return any(
        isinstance(test, ast.Compare) and {"__name__", "__main__"} <= {_word(part) for part in ast.walk(test)}
        for test in tests
    )


@contextlib.contextmanager
def without_main(*given: Any) -> Iterator[None]:
    """A child imports the user's script again, and one without a guard would train there too: spared where nothing needs it."""
    if needs_main(*given):
        yield
        return
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _word(part: ast.AST) -> object:
    return part.id if isinstance(part, ast.Name) else part.value if isinstance(part, ast.Constant) else None
