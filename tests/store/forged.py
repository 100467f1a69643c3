"""Run folders as somebody else could hand them over: their settings name code that makes a file, and all checksums are right."""

from __future__ import annotations

import hashlib
import hmac
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from freewheel.store import checkpoint

# A package in the current folder, as it lies there if the forged folder brings it.
PACKAGE = """
import pathlib

pathlib.Path({marker!r}).touch()


def make(*given, **named):
    raise RuntimeError("it ran")


Body = Algorithm = make
"""
ACTIONS = ("load", "checkpoint", "eval", "play", "resume")


@dataclass(frozen=True)
class Form:
    """A way to name code: settings by dotted name, and the actions that would run it."""

    name: str
    settings: Mapping[str, Any]
    runs_in: tuple[str, ...] = ()


ENV, ALL = ("eval", "play", "resume"), ACTIONS
SHELL = json.dumps({"command": "touch 'it ran'"})
FORMS = [
    Form("os:system", {"env": "os:system", "world.kwargs": SHELL}, ENV),
    Form("subprocess", {"env": "subprocess:check_output", "world.kwargs": '{"args": ["touch", "it ran"]}'}, ENV),
    Form("env", {"env": "evil_pkg:make"}, ENV),
    Form("env of a submodule", {"env": "evil_pkg.sub:make"}, ENV),
    Form("id of a package", {"env": "evil_pkg:Evil-v0"}, ENV),
    Form("known id of a package", {"env": "evil_pkg:CartPole-v1"}, ENV),
    Form("id with two colons", {"env": "evil_pkg:x:CartPole-v1"}),
    Form(
        "through our own module",
        {"env": "freewheel.worlds.find:importlib.import_module", "world.kwargs": '{"name": "evil_pkg"}'},
        ENV,
    ),
    Form("arguments", {"world.kwargs": '{"deep": [{"entry_point": "evil_pkg:make"}]}'}),
    Form("body", {"net.body": "evil_pkg:Body"}, ALL),
    Form("body after a colon", {"net.body": ":evil_pkg"}),
    Form("algorithm", {"algo": "evil_pkg:Algorithm"}, ALL),
    Form("world", {"world.kind": "evil_pkg:make"}, ("eval", "resume")),
    Form("log", {"log.sinks": ["evil_pkg:make"]}, ("resume",)),
    Form(
        "all",
        {"env": "os:system", "world.kwargs": SHELL, "net.body": "evil_pkg:Body", "algo": "evil_pkg:Algorithm"},
        ALL,
    ),
]
# With the settings in sections, or by their dotted names beside them: both are read.
SPELLINGS = ("sections", "dotted")
SIGNATURES = ("none", "old", "of another key")


def spelled(saved: dict[str, Any], settings: Mapping[str, Any], spelling: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(saved))
    for name, value in settings.items():
        section, _, last = name.rpartition(".")
        if section and spelling == "sections":
            found[section][last] = value
        else:
            found[name] = value
    return found


def forge(run: Path, to: Path, settings: Mapping[str, Any], spelling: str = "sections", signature: str = "old") -> Path:
    """A copy of a run that names other code."""
    shutil.copytree(run, to)
    config = spelled(json.loads((to / "config.json").read_text()), settings, spelling)
    (to / "config.json").write_text(json.dumps(config))
    identity = json.loads((to / "run.json").read_text())
    (to / "run.json").write_text(json.dumps(_signed(identity, "config.json", config, signature)))

    def change(state: dict[str, Any]) -> dict[str, Any]:
        state["config"] = spelled(state["config"], settings, spelling)
        return _signed(state, "policy", [state[name] for name in ("config", "obs_space", "action_space")], signature)

    for path in (to / "checkpoints").iterdir():
        rewrite_state(path, change)
    return to


def rewrite_state(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Changes the state of a checkpoint, with checksums that are right."""
    state = change(json.loads((path / "state.json").read_text()))
    (path / "state.json").write_text(json.dumps(state))
    seal(path)


def seal(path: Path) -> None:
    """Makes the manifest of a checkpoint whose files were changed."""
    step = json.loads((path / "manifest.json").read_text())["step"]
    (path / "manifest.json").unlink()
    names = sorted(file.name for file in path.iterdir())
    (path / "manifest.json").write_bytes(checkpoint._manifest(path, step, names))


def _signed(holder: dict[str, Any], kind: str, content: Any, signature: str) -> dict[str, Any]:
    if signature == "none":
        holder.pop("signature", None)
    elif signature == "of another key":
        text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
        holder["signature"] = hmac.new(bytes(32), kind.encode() + b"\0" + text, hashlib.sha256).hexdigest()
    return holder
