"""Names that a user writes: `module:name`, which is imported, and names with a typo, which get a suggestion."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from freewheel.errors import RAISED, ConfigError, EnvError, quoted


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: a suggestion, or all names if they are few."""
    names = list(names)
    # A name without its part ("lr" for "learner.lr") is near too.
    close = [full for full in names if full.rpartition(".")[2] == name.rpartition(".")[2]]
    close = close or difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return f". Did you mean {' or '.join(close)}?"
    return f". There are: {', '.join(names)}." if len(names) <= 20 else "."


def is_import(name: str) -> bool:
    """Whether it is module:function and not an id; module:Name-v0 is an id that the module registers."""
    module, colon, function = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in [*module.split("."), *function.split(".")])


def find_module(name: str) -> Any:
    """Imports a module, also from the current folder."""
    here = ""
    with suppress(OSError):  # it was removed
        here = os.getcwd()
    if here and here not in sys.path:
        sys.path.append(here)  # an installed command does not search the current folder; last, so that it hides nothing
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"{name} cannot be imported: there is no module {error.name!r}. Install it, or run the command in the folder "
                f"that has it (searched: {here})."
            ) from error
        raise EnvError(f"importing {name} failed: {error}. Install what it needs.") from error
    except RAISED as error:
        raise EnvError(
            f"importing {name} raised {type(error).__name__}: {quoted(error)}. The traceback above shows its line."
        ) from error


def find_name(where: str, hint: str) -> Any:
    """Imports what `module:name` names; `hint` says what belongs there."""
    module_name, _, path = where.partition(":")
    found = find_module(module_name)
    for part in path.split("."):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, [n for n in dir(found) if not n.startswith("_")], 3)
            advice = f"Did you mean {' or '.join(near)}?" if near else hint
            raise ConfigError(f"{where}: {module_name} has no {path!r}. {advice}")
        found = getattr(found, part)
    return found
