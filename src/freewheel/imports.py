"""`module:name` as a user writes it: the one place where code is found by a string."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from typing import Any

from freewheel.errors import ConfigError, EnvError


def is_import(name: str) -> bool:
    """module:function, in contrast to an id; module:Name-v0 is an id that the module registers."""
    module, colon, function = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in [*module.split("."), *function.split(".")])


def find_module(name: str) -> Any:
    """A module, also from the folder that the command is called in."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)  # an installed command does not look where it is called; last, so that it hides nothing
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"there is no module {error.name!r} to import {name} from. Install it, or call from the folder that "
                f"holds it ({here} was looked in)."
            ) from error
        raise EnvError(f"importing {name} failed: {error}. Install what it needs.") from error
    except Exception as error:
        raise EnvError(
            f"importing {name} raised {type(error).__name__}: {error}. The traceback above shows its line."
        ) from error


def find_name(where: str, hint: str) -> Any:
    """What `module:name` names; `hint` says what belongs there."""
    module_name, _, path = where.partition(":")
    found = find_module(module_name)
    for part in path.split("."):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, [n for n in dir(found) if not n.startswith("_")], 3)
            cure = f"Did you mean {' or '.join(near)}?" if near else hint
            raise ConfigError(f"{where}: {module_name} has no {path!r}. {cure}")
        found = getattr(found, part)
    return found
