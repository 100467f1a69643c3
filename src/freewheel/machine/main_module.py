"""What of the user's script another process loads: as little as it needs."""

from __future__ import annotations

import ast
import contextlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MAIN = frozenset(("__main__", "__mp_main__"))  # the second is what a child calls its parent's script


def needs_main(*given: Any) -> bool:
    """Whether one of these was defined in the script that runs."""
    return any(
        not MAIN.isdisjoint((getattr(thing, "__module__", None), type(thing).__module__))
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
