"""What was found out about this machine and is worth keeping for the next run: one JSON object a file, in the cache folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from freewheel.learners.package import cache_folder


def file_of(name: str) -> Path:
    return cache_folder() / f"{name}.json"


def read(name: str) -> dict[str, Any]:
    """What `write` kept; nothing where there is no such file, or another thing in it."""
    try:
        found = json.loads(file_of(name).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write(name: str, known: Mapping[str, Any]) -> None:
    """Whole or not at all. Where nothing can be written the next run finds out again."""
    path = file_of(name)
    temp = path.with_name(f".{name}-{os.getpid()}")
    try:
        temp.parent.mkdir(parents=True, exist_ok=True)
        temp.write_text(json.dumps(dict(known)))
        os.replace(temp, path)
    except OSError:
        with suppress(OSError):
            temp.unlink(missing_ok=True)
