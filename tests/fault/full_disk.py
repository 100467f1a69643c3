"""Trains on small disks that get full, one after the other, and prints what came of each run as a line of JSON.

Runs as root of a mount namespace of its own. The arguments: a folder, and the names of cases.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from fault_envs import Plain
from fault_runs import SMALL

import freewheel
from freewheel.cli.main import main as command
from freewheel.errors import FreewheelError
from freewheel.store.folder import open_run

STEPS = 300
TINY = {"checkpoint.every_steps": 50, "checkpoint.keep": 1, "log.csv": False, "eval_episodes": 2, "local.actors": 1}


class Fills(Plain):
    """Takes what is left of a disk, in the middle of the training or, if `how` is none, before it."""

    pause_s = 0.0

    def __init__(self, place: str, how: str) -> None:
        super().__init__()
        self.place, self.how = Path(place), how

    def step(self, action: Any) -> Any:
        if self.count == (1 if self.how == "none" else 45) and not (self.place / "filled").exists():
            (self.place / "filled").touch()
            fill(self.place / "disk", self.how)
        return super().step(action)


class FillsLast(freewheel.Callback):
    """Takes what is left of a disk once the last checkpoint is there."""

    def __init__(self, disk: Path) -> None:
        self.disk = disk

    def on_checkpoint(self, moment: freewheel.Moment, path: Path) -> None:
        if path.name == f"step-{STEPS:09d}":
            fill(self.disk, "full")


def fill(disk: Path, how: str) -> None:
    if how == "closed":  # nobody can write there any more
        (folder,) = disk.glob("*/checkpoints")
        mount("ro", folder)
        return
    try:
        for number in range(10**6):
            with open(disk / f"filler-{number}", "wb") as file:
                while how != "inodes":
                    file.write(bytes(4096))
                    file.flush()
    except OSError:
        pass
    if how == "rows":  # there is room for a policy, and not for its rows
        filler = disk / "filler-0"
        os.truncate(filler, filler.stat().st_size - (20 << 10))


def mount(options: str, path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], check=True)


def train(place: Path, runtime: str, how: str, size: str, more: dict[str, Any]) -> dict[str, Any]:
    disk = place / "disk"
    disk.mkdir(parents=True)
    mount(f"size={size}" + ",nr_inodes=40" * (how == "inodes"), disk)
    dropped = ("local.", "learner.workers") if runtime == "sequential" else ("nothing",)
    given = {**SMALL, **TINY, "runtime": runtime, "log.folder": str(disk), "checkpoint.spare": str(place / "spare")}
    given = {name: value for name, value in {**given, **more}.items() if not name.startswith(dropped)}
    found: dict[str, Any] = {"error": "", "run": None}
    env, callbacks = ("full_disk:Fills", []) if how != "result" else ("fault_envs:Plain", [FillsLast(disk)])
    if not callbacks:
        given["world.kwargs"] = json.dumps({"place": str(place), "how": how})
    try:
        run = freewheel.train(env, steps=STEPS, settings=given, preset="none", callbacks=callbacks, is_quiet=True)
    except FreewheelError as error:
        found["error"], run = f"{type(error).__name__}: {error}", error.run
    found["run"] = None if run is None else run.result
    runs = list(disk.glob("*/run.json"))
    found["status"] = open_run(runs[0].parent).status()["status"] if runs else ""
    found["saved"] = sorted(path.name for path in disk.glob("*/checkpoints/step-*"))
    found["left"] = [path.name for path in disk.rglob(".tmp*")]
    found["spare"] = [str(path) for path in (place / "spare").glob("*")]
    for spare in found["spare"]:
        found["mode"] = oct(os.stat(spare).st_mode & 0o777)
        found["act"] = int(freewheel.load(spare).act([0.1, 0.2]))
        found["eval"] = command(["eval", spare, "--episodes", "2", "--quiet", "--json"])
        found["spare_saved"] = [path.name for path in Path(spare).glob("checkpoints/step-*")]
    return found


CASES: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "full sequential": ("sequential", "full", "256k", {}),
    "full local": ("local", "full", "256k", {}),
    "logs": ("sequential", "full", "256k", {"log.csv": True, "log.tensorboard": True}),
    "tiny": ("sequential", "none", "64k", {}),
    "closed": ("sequential", "closed", "256k", {}),
    "inodes": ("sequential", "inodes", "1m", {}),
    "result": ("sequential", "result", "256k", {}),
    "no room for rows": ("local", "rows", "256k", {"checkpoint.replay": True, "checkpoint.every_steps": 0}),
    "nowhere": ("sequential", "full", "256k", {"checkpoint.spare": "/proc/nowhere"}),
}

if __name__ == "__main__":
    for name in sys.argv[2:]:
        print(f"case {name}", file=sys.stderr, flush=True)
        try:
            told = train(Path(sys.argv[1], name.replace(" ", "-")), *CASES[name])
        except BaseException:
            traceback.print_exc()
            told = {}
        print(json.dumps({"case": name, **told}), flush=True)
