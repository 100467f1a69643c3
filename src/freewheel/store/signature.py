"""Signatures by the user's own key: what this user wrote on this machine is known again, wherever it lies.

The key is made when it is first used. A checksum anyone can write; a signature only who can read the key.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from freewheel.machine import private

KEY, KEY_BYTES = "key", 32


def key_folder() -> Path:
    """In XDG_CONFIG_HOME if that is an absolute path, in ~/.config otherwise."""
    base = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    try:
        base = base if base.is_absolute() else Path.home() / ".config"
    except RuntimeError as error:
        raise FileNotFoundError(2, "you have no home folder") from error
    if not base.is_absolute():  # the current folder may be anybody's
        raise FileNotFoundError(2, f"the home folder {base.parent} is not an absolute path")
    return base / "freewheel"


def text_of(value: Any) -> bytes:
    """Equal for a value and for what JSON makes of it: what was read is signed like what was written."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def sign(kind: str, content: bytes, spare: Path | None = None) -> str:
    """The signature of `content` as a `kind` of thing; "" without a key. If there can be none in its place, it is in the folder `spare`."""
    key = _usable(spare)
    return _signature(key, kind, content) if isinstance(key, bytes) else ""


def why_foreign(kind: str, content: bytes, signature: Any, spare: Path | None = None) -> str:
    """Why `sign` of this user did not make the signature, as the end of a sentence; "" if it did."""
    if not isinstance(signature, str) or not signature:
        return "it has no signature (an older version, another program or a run without a key wrote it)"
    key = _usable(spare)
    if not isinstance(key, bytes):
        return f"its signature cannot be checked: {key.strerror}"
    if hmac.compare_digest(_signature(key, kind, content).encode(), signature.encode(errors="backslashreplace")):
        return ""
    return "its signature is not yours: another user or another machine wrote it, or it was changed"


def why_no_key() -> str:
    """Why nothing can be signed here; "" if it can."""
    key = _usable(None)
    return "" if isinstance(key, bytes) else str(key.strerror)


def _usable(spare: Path | None) -> bytes | OSError:
    """The key. A spare one never counts beside the user's own: who brings a folder may bring a key in it."""
    try:
        return _key(key_folder())
    except OSError as error:
        with suppress(OSError):
            if spare is not None:
                return _key(spare)
        return error


def _signature(key: bytes, kind: str, content: bytes) -> str:
    return hmac.new(key, kind.encode() + b"\0" + content, hashlib.sha256).hexdigest()


def _key(folder: Path) -> bytes:
    """The key, which is made if there is none."""
    with suppress(FileNotFoundError):
        return _read(folder)
    private.make_folder(folder)
    temp = folder / f".{KEY}-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        private.write_new(temp, secrets.token_bytes(KEY_BYTES))
        # A link, not a rename: of two processes that make a key at the same time, both use the one that came first.
        with suppress(FileExistsError):
            os.link(temp, folder / KEY)
    finally:
        temp.unlink(missing_ok=True)
    return _read(folder)


def _read(folder: Path) -> bytes:
    key = private.read(folder / KEY, KEY_BYTES, is_secret=True)
    if len(key) != KEY_BYTES:
        raise PermissionError(
            1, f"{folder / KEY} has {len(key)} bytes, not {KEY_BYTES}; remove it, and another one is made"
        )
    if why := private.why_not_private(folder):
        raise PermissionError(1, why)
    return key
