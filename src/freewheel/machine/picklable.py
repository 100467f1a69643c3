"""What the user passes to other processes: whether it can be pickled, and whether they must import the user's script."""

from __future__ import annotations

import ast
import contextlib
import sys
import types
from collections.abc import Iterator
from functools import partial
from multiprocessing import reduction
from pathlib import Path
from typing import Any

MAIN = frozenset(("__main__", "__mp_main__"))  # the second is its name in a child process


def needs_main(*given: Any) -> bool:
    """Whether one of these, or what a partial function among them is made of, is defined in the user's script."""
    return any(
        not MAIN.isdisjoint((getattr(thing, "__module__", None), type(thing).__module__))
        or (isinstance(thing, partial) and needs_main(thing.func, *thing.args, *thing.keywords.values()))
        for thing in given
    )


def is_guarded(main: types.ModuleType) -> bool:
    """Whether a script has an `if __name__ == "__main__":`, so that importing it does not run it again."""
    file = getattr(main, "__file__", None)
    if file is None:
        return False  # a notebook or an interactive session
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
    """Child processes started within do not import the user's script, unless something given needs it."""
    if needs_main(*given):
        yield
        return
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def why_not_picklable(env: Any, body: Any = None, loss: Any = None) -> str:
    """Why these cannot be sent to another process, as a clause; "" if they can."""
    if hasattr(env, "step") and not isinstance(env, type):
        return "the env is an object of this process (pass its id, or a function that makes it)"
    for what, thing in (("env", env), ("network", body), ("loss", loss)):
        if needs_main(thing) and not is_guarded(sys.modules["__main__"]):
            return (
                f"the {what} is defined in your script, which has no if __name__ == '__main__': "
                "(add it around what the script does, or move the definition to a module)"
            )
        try:
            reduction.ForkingPickler.dumps(thing)
        except Exception as error:
            return f"the {what} cannot be sent to another process ({type(error).__name__}: {error})"
    return ""


def _word(part: ast.AST) -> object:
    return part.id if isinstance(part, ast.Name) else part.value if isinstance(part, ast.Constant) else None
