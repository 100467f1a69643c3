"""Results kept between runs: JSON objects in the cache folder, each under a key of this machine and the work."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from freewheel.machine import private
from freewheel.machine.cores import cpu_flags

# Only the newest results are kept: one per machine, network and batch size.
MOST_KEPT = 200
MOST_BYTES = 4 << 20


def cache_folder() -> Path:
    """In XDG_CACHE_HOME if that is set, in ~/.cache otherwise."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "freewheel"


def file() -> Path:
    return cache_folder() / "trials.json"


def key_of(*work: Any) -> str:
    """Equal for equal work on equal machines with the same torch."""
    what = [cpu_flags(), os.cpu_count(), version("torch"), *work]
    return hashlib.sha256(repr(what).encode()).hexdigest()[:24]


def recall(key: str) -> dict[str, Any]:
    """What `remember` kept under the key; empty if it kept nothing."""
    found = _read().get(key)
    return found if isinstance(found, dict) else {}


def remember(key: str, found: Mapping[str, Any]) -> None:
    """Adds to what is kept under the key. If the folder is not writable, the next run measures again."""
    known, merged = _read(), {**recall(key), **found}
    known.pop(key, None)
    kept = dict(list({**known, key: merged}.items())[-MOST_KEPT:])
    temp = file().with_name(f".trials-{os.getpid()}")
    try:
        private.make_folder(temp.parent)
        temp.unlink(missing_ok=True)
        private.write_new(temp, json.dumps(kept).encode())
        os.replace(temp, file())
    except OSError:
        with suppress(OSError):
            temp.unlink(missing_ok=True)


def _read() -> dict[str, Any]:
    try:
        found = json.loads(private.read(file(), MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
