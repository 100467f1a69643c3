"""The name that was meant by one that is wrong."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a sentence about a wrong name: the one that was meant, or all there are."""
    names = list(names)
    # A name without its part ("lr" for "learner.lr") is near too.
    close = [full for full in names if full.rpartition(".")[2] == name.rpartition(".")[2]]
    close = close or difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return f". Did you mean {' or '.join(close)}?"
    return f". There are: {', '.join(names)}." if len(names) <= 20 else "."
