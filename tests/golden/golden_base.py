"""Recordings of the base commit: found by the machine's key, or made anew from that commit."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from canonical import hash_json
from golden_cases import CASES, Case

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "scripts"))

import builds  # noqa: E402

# What the values are held against. At this commit these cases began to differ from f930fd5, where all were recorded first:
#   rainbow, qrdqn-per      each update of a prioritized draw has strata and weights of its own (first at step 402, the first draw)
#   dqn-options, rainbow,   dueling streams, noise and IQN's fractions have a hidden layer of their own, as in the papers (`q.head`):
#   iqn                     the initial weights differ
#   qrdqn, qrdqn-per, iqn   the quantile loss is a mean over the quantiles, no longer a sum (the first update)
# All other cases gave the same values at both.
BASE = "a7d11a14a027daf8e68ca2af67135817f257512f"
COMMITTED = HERE / "recordings.json"
LOCAL = builds.ROOT / "build" / "golden"
# All cases take 30 s on an idle core.
RUN_S = 600


def machine_key() -> str:
    """What float bits depend on: the processor, the instructions that torch uses on it, and torch itself."""
    return f"{_processor()} | {torch.backends.cpu.get_cpu_capability()} | torch {torch.__version__}"


def case_key(case: Case) -> str:
    """Changes with everything that defines the run, so that a recording of another case is not held against it."""
    return hash_json({**dataclasses.asdict(case), "env": getattr(case.env, "__name__", case.env)})


def recorded() -> dict[str, Any] | None:
    """The recordings of this machine by case, committed or local; None where one is missing or of another case."""
    committed = _read(COMMITTED).get(machine_key(), {})
    local = _read(local_file()).get("cases", {})
    found = {name: record for name, record in {**local, **committed}.items() if is_current(name, record)}
    return found if set(CASES) <= set(found) else None


def is_current(name: str, record: dict[str, Any]) -> bool:
    return name in CASES and record.get("case") == case_key(CASES[name])


def recorded_or_made() -> dict[str, Any]:
    """The recordings of this machine. Building the base commit takes minutes; a BuildError says why it cannot be done."""
    with builds.locked(LOCAL):
        found = recorded()
        if found is None:
            made = {"key": machine_key(), "cases": record_base()}
            local_file().write_text(json.dumps(made, indent=1) + "\n")
            found = made["cases"]
    return found


def record_base() -> dict[str, Any]:
    """Runs every case with the base commit's package."""
    made = run_with(builds.build_revision(BASE))
    return {name: {"case": case_key(CASES[name]), **record} for name, record in made.items()}


def run_with(python: Path, cases: Sequence[str] = (), window: tuple[int, int] | None = None) -> dict[str, Any]:
    """What `golden_run.py` finds with the package of this interpreter, in a process of its own."""
    LOCAL.mkdir(parents=True, exist_ok=True)
    out = LOCAL / f"run-{os.getpid()}.json"
    options = ["--window", *map(str, window)] if window else []
    command = [str(python), str(HERE / "golden_run.py"), str(out), *cases, *options]
    try:
        done = subprocess.run(
            command, env=builds.clean_environment(), capture_output=True, text=True, timeout=RUN_S, check=False
        )
        if done.returncode:
            raise builds.BuildError(f"the golden runs of {python} failed:\n{done.stderr[-2_000:]}")
        found: dict[str, Any] = json.loads(out.read_text())["cases"]
    finally:
        out.unlink(missing_ok=True)
    return found


def local_file() -> Path:
    return LOCAL / f"{hash_json([machine_key(), BASE])}.json"


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return found


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
