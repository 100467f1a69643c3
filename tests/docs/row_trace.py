"""Traces which files of the package a row passes through: all functions that take or return row data."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

SOURCE = Path(__file__).parents[2] / "src" / "freewheel"
# These only watch, report or describe; they do not change a row.
NOT_COUNTED = ("report/", "config/", "contracts.py", "spec.py")
MOST_DEPTH = 3


class Trace:
    """Files in the order in which they first touched an array with as many lines as there are lanes, or rows in a batch.

    `sizes` are those numbers. Choose sizes that nothing else in the run has, because weights are arrays too.
    """

    def __init__(self, sizes: set[int]) -> None:
        self.sizes, self.files = sizes, dict[str, list[str]]()
        self._names: dict[str, str | None] = {}

    def __enter__(self) -> Trace:
        sys.setprofile(self._see)
        return self

    def __exit__(self, *given: Any) -> None:
        sys.setprofile(None)

    def _see(self, frame: FrameType, event: str, value: Any) -> None:
        if event not in ("call", "return"):
            return
        code = frame.f_code
        name = self._name(code.co_filename)
        if name is None:
            return
        count = code.co_argcount + code.co_kwonlyargcount
        given = [frame.f_locals.get(arg) for arg in code.co_varnames[:count]] if event == "call" else [value]
        if any(self._holds_rows(thing) for thing in given):
            functions = self.files.setdefault(name, [])
            if code.co_name not in functions:
                functions.append(code.co_name)

    def _name(self, filename: str) -> str | None:
        if filename not in self._names:
            path = Path(filename)
            name = path.relative_to(SOURCE).as_posix() if path.is_relative_to(SOURCE) else None
            self._names[filename] = None if name is None or name.startswith(NOT_COUNTED) else name
        return self._names[filename]

    def _holds_rows(self, thing: Any, depth: int = 0) -> bool:
        if isinstance(thing, np.ndarray | torch.Tensor):
            return thing.ndim > 0 and any(size in self.sizes for size in thing.shape[:2])
        if depth == MOST_DEPTH:
            return False
        return any(self._holds_rows(part, depth + 1) for part in parts_of(thing))


def parts_of(thing: Any) -> Iterator[Any]:
    if isinstance(thing, Mapping):
        yield from thing.values()
    elif isinstance(thing, tuple | list):
        yield from thing
    elif dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        yield from (getattr(thing, f.name, None) for f in dataclasses.fields(thing))


def traced(run: Callable[[], Any], sizes: set[int]) -> dict[str, list[str]]:
    with Trace(sizes) as trace:
        run()
    return trace.files
