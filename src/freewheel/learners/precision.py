"""Which numbers the network's passes are made of. What a machine announces it may still die of, so it is tried elsewhere first."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
from typing import Any

import torch

from freewheel.learners import remembered
from freewheel.learners.package import cpu

TRIED = ("bf16", "fp16")
FILE = "precision"
PROBE_TIMEOUT_S = 60.0
# Only a clear gain is worth fewer digits: a probe's time varies by a few percent from one to the next.
LEAST_GAIN = 1.1

Found = dict[str, Any]  # {"speed": times as fast as fp32} or {"why": it does not run}


def choose(asked: str, device: str) -> tuple[str, str]:
    """(precision, reason): what was asked for if it runs here, with "auto" the fastest; fp32 otherwise."""
    if asked == "fp32":
        return "fp32", "as asked"
    if asked != "auto":
        found = tried(asked, device)
        if "why" in found:
            return "fp32", f"{asked} does not run on this machine ({found['why']}); training in fp32"
        return asked, f"as asked; {_speed(asked, found)}"
    each = {precision: tried(precision, device) for precision in TRIED}
    said = ", ".join(
        f"{name} does not run ({found['why']})" if "why" in found else _speed(name, found)
        for name, found in each.items()
    )
    best = max(each, key=lambda name: each[name].get("speed", 0.0))
    if each[best].get("speed", 0.0) >= LEAST_GAIN:
        return best, f"the fastest here: {said}"
    return "fp32", f"nothing is faster here: {said}"


def tried(precision: str, device: str) -> Found:
    """From the disk, or found out now by a process of its own."""
    name = f"{precision} {_machine(device)}"
    known = _known()
    if name in known:
        return known[name]
    found, is_certain = probe(precision, device)
    if is_certain:
        remembered.write(FILE, known | {name: found})
    return found


def probe(precision: str, device: str) -> tuple[Found, bool]:
    """What a process that uses the precision comes to, and whether it would come to the same again."""
    command = [sys.executable, "-m", "freewheel.learners.probe", precision, device]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return {"why": f"the probe took more than {PROBE_TIMEOUT_S:.0f} s"}, False
    except OSError as error:
        return {"why": f"the probe could not be started: {error}"}, False
    if done.returncode < 0:
        # Killed from outside, for want of memory perhaps, says nothing about the precision.
        return {"why": f"the probe died with {_signal(-done.returncode)}"}, done.returncode != -signal.SIGKILL
    try:
        times = json.loads(done.stdout)
        return {"speed": times["fp32"] / times[precision]}, True
    except (ValueError, KeyError, TypeError, ZeroDivisionError):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return {"why": f"the probe ended with {done.returncode}: {last}"}, False


def _speed(precision: str, found: Found) -> str:
    return f"{precision} is {found['speed']:.2f} times as fast as fp32"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _machine(device: str) -> str:
    what = [cpu(), torch.__version__, device]
    if device == "cuda":
        what.append(torch.cuda.get_device_name())
    return hashlib.sha256(repr(what).encode()).hexdigest()[:16]


def _known() -> dict[str, Found]:
    """Whatever in the file is not what we write is left out."""
    return {name: found for name, found in remembered.read(FILE).items() if _is_whole(found)}


def _is_whole(found: Any) -> bool:
    if not isinstance(found, dict):
        return False
    return isinstance(found.get("speed"), float) or isinstance(found.get("why"), str)
