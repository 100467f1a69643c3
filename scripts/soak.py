"""A long run with a fault every minute: does anything grow, slow down or get lost? `make soak MINUTES=30`.

Trains in the local runtime on an env of its own. Once a minute a role is killed or stopped at random. Every few seconds it looks at
the private memory, the descriptors and the threads of each process, at the supervisor's shared memory, and at the rate of steps. In the end it says what it saw,
and exits with 1 if something is not as docs/reliability.md promises.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import freewheel
from freewheel.store.checkpoint import load_newest

SAMPLE_S, FAULT_S = 2.0, 60.0
RECOVER_S = 20.0  # after a fault the rate is not judged: a stopped role is noticed, replaced and warm by then
WARM_S = 60.0  # of each process's life: allocators and caches fill
SETTLE_S = 900.0  # of the run, at most half of it: the replay fills, histories reach their bounds
JUDGE_MINUTES = 20.0  # a slope of a shorter run says nothing
MOST_MB_PER_HOUR, MOST_RATE_CHANGE = 1.0, 0.05
SETTINGS: dict[str, Any] = {
    "runtime": "local",
    "world.lanes": 8,
    "local.actors": 2,
    "local.restarts": 10**6,
    "local.stall_s": 5.0,
    "local.step_timeout_s": 5.0,
    "net.hidden": (64,),
    "learner.batch_size": 32,
    "learner.ratio": 4.0,
    "learner.workers": 1,
    "learner.compile": "off",
    "replay.rows": 50_000,
    "replay.prioritized": True,
    "checkpoint.every_steps": 20_000,
    "checkpoint.keep": 2,
    "eval_episodes": 0,
}


class Walk(gymnasium.Env[Any, Any]):
    """A random walk that ends seldom: the returns of episodes are kept on purpose, and would hide what should not grow."""

    observation_space = spaces.Box(-1, 1, (8,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.draws, self.left = np.random.default_rng(seed), 50_000
        return self.look(), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        return self.look(), float(action) - 1.0, self.left == 0, False, {}

    def look(self) -> np.ndarray[Any, Any]:
        return self.draws.uniform(-1, 1, 8).astype(np.float32)


@dataclass
class Sample:
    seconds: float
    steps: int
    memory_mb: dict[tuple[str, int], float]  # private, by role and life
    counts: dict[tuple[str, int], tuple[int, int]]  # descriptors and threads, by role and life
    segments: int


@dataclass
class Soak(freewheel.Callback):
    """Begins with the first steps; two threads look and sabotage until the time is over."""

    minutes: float
    seed: int
    samples: list[Sample] = field(default_factory=list)
    faults: list[tuple[float, str]] = field(default_factory=list)
    moment: freewheel.Moment | None = None

    def on_step(self, moment: freewheel.Moment) -> None:
        if self.moment is not None:
            return
        self.moment, self.over = moment, threading.Event()
        self.plan, self.supervisor = moment._runtime.plan, moment._runtime._supervisor
        self.began = time.monotonic()
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self.look, self.sabotage)]
        for thread in self.threads:
            thread.start()

    def look(self) -> None:
        while not self.over.wait(SAMPLE_S):
            pids = {("supervisor", 0): os.getpid()}
            pids |= {(m.name, m.life): m.process.pid for m in self.supervisor.roles if m.process is not None}
            memory = {who: mb for who, pid in pids.items() if (mb := private_mb(pid)) is not None}
            counts = {who: found for who, pid in pids.items() if (found := fds_and_threads(pid)) is not None}
            self.samples.append(Sample(self.seconds(), self.plan.counts.steps, memory, counts, num_segments()))

    def sabotage(self) -> None:
        chance = random.Random(self.seed)
        while self.seconds() < self.minutes * 60:
            fault_at = min((len(self.faults) + chance.random()) * FAULT_S, self.minutes * 60)
            self.over.wait(max(0.0, fault_at - self.seconds()))
            if self.over.is_set() or self.seconds() >= self.minutes * 60 - RECOVER_S:
                break
            member = chance.choice([*self.supervisor.learners, *self.supervisor.actors])
            number = chance.choice([signal.SIGKILL, signal.SIGSTOP])
            process = member.process
            if process is not None:
                self.faults.append((self.seconds(), f"{number.name} to {member.name}"))
                print(f"{self.seconds():6.0f} s  {self.faults[-1][1]}", file=sys.stderr)
                os.kill(process.pid, number)
        self.over.wait(max(0.0, self.minutes * 60 - self.seconds()))
        assert self.moment is not None
        self.moment.stop()

    def seconds(self) -> float:
        return time.monotonic() - self.began

    def finish(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join(10.0)


def private_mb(pid: int) -> float | None:
    """Memory of its own; shared memory belongs to the run and fills with it."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) for line in lines if line.startswith("RssAnon:")]
    return found[0] / 1024 if found else None


def fds_and_threads(pid: int) -> tuple[int, int] | None:
    try:
        return len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return None


def num_segments() -> int:
    return sum("memfd:" in line for line in Path("/proc/self/maps").read_text().splitlines())


def slope_mb_per_hour(samples: list[Sample], role: str) -> float | None:
    """Growth within the lives of a role's processes, each without its first minute; None if there is too little to say."""
    top = bottom = 0.0
    for who in {who for sample in samples for who in sample.memory_mb if who[0] == role}:
        points = [(s.seconds, s.memory_mb[who]) for s in samples if who in s.memory_mb]
        points = [(t, mb) for t, mb in points if t > points[0][0] + WARM_S]
        if len(points) < 5:
            continue
        mean_t, mean_mb = statistics.fmean(t for t, _ in points), statistics.fmean(mb for _, mb in points)
        top += sum((t - mean_t) * (mb - mean_mb) for t, mb in points)
        bottom += sum((t - mean_t) ** 2 for t, _ in points)
    return top / bottom * 3600 if bottom else None


def counts_of(samples: list[Sample], role: str, which: int) -> list[float]:
    """Descriptors (0) or threads (1) of a role over the run, each process without its first minute."""
    began: dict[tuple[str, int], float] = {}
    found = []
    for sample in samples:
        for who, counts in sample.counts.items():
            if who[0] == role and sample.seconds > began.setdefault(who, sample.seconds) + WARM_S:
                found.append(float(counts[which]))
    return found


def rates(soak: Soak) -> list[float]:
    """Steps per second between two looks, where no fault was near."""
    found = []
    for before, after in zip(soak.samples, soak.samples[1:], strict=False):
        near = any(before.seconds - RECOVER_S < at < after.seconds for at, _ in soak.faults)
        if not near and before.seconds > RECOVER_S:
            found.append((after.steps - before.steps) / (after.seconds - before.seconds))
    return found


def thirds(values: list[float]) -> tuple[float, float]:
    """Medians of the first and the last third."""
    count = max(len(values) // 3, 1)
    early, late = (statistics.median(part) if part else 0.0 for part in (values[:count], values[-count:]))
    return early, late


def verdict(soak: Soak, folder: Path) -> list[str]:
    """What is not as promised; prints what was measured."""
    wrong: list[str] = []
    is_long = soak.minutes >= JUDGE_MINUTES

    def check(name: str, value: str, is_good: bool, is_judged: bool = True) -> None:
        print(f"{name:<44}{value:<28}{('ok' if is_good else 'WRONG') if is_judged else 'too short to judge'}")
        if is_judged and not is_good:
            wrong.append(name)

    plan = soak.plan
    pages = [plan.ledger.snapshot(plan.first_actor + i) for i in range(plan.layout.actors)]
    begun, counted = (sum(page.counters[name] for page in pages) for name in ("rows_begun", "rows"))
    committed, deaths = plan.policies[0].lanes.rows_written(), soak.supervisor.num_deaths
    most_lost = 2 * SETTINGS["world.lanes"] // SETTINGS["local.actors"] * deaths
    check("faults, deaths", f"{len(soak.faults)}, {deaths}", deaths >= len(soak.faults))
    check("rows begun, committed", f"{begun:,}, {committed:,}", counted <= committed <= begun <= committed + most_lost)
    settled = [s for s in soak.samples if s.seconds > min(SETTLE_S, soak.minutes * 30)]
    for role in ("supervisor", "learner", *(actor.name for actor in soak.supervisor.actors)):
        slope = slope_mb_per_hour(settled, role)
        shown = "-" if slope is None else f"{slope:+.2f} MB/h"
        check(f"private memory, {role}", shown, slope is not None and slope < MOST_MB_PER_HOUR, is_long)
        for which, name in enumerate(("descriptors", "threads")):
            early, late = thirds(counts_of(soak.samples, role, which))
            check(f"{name}, {role}, early and late", f"{early:.0f}, {late:.0f}", late <= early, is_long)
    # Medians: while a role is replaced its channel is closed or not yet made.
    early, late = thirds([float(s.segments) for s in soak.samples])
    check("shared memory, early and late", f"{early:.0f}, {late:.0f}", late <= early)
    early, late = thirds(rates(soak))
    check(
        "steps per second, early and late", f"{early:.0f}, {late:.0f}", late >= (1 - MOST_RATE_CHANGE) * early, is_long
    )
    saved = load_newest(folder / "checkpoints")
    check("newest checkpoint", saved.path.name, not saved.warnings)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    soak = Soak(args.minutes, args.seed)
    with tempfile.TemporaryDirectory() as root:
        settings = {**SETTINGS, "log.folder": root, "seed": args.seed}
        run = freewheel.train(
            "soak:Walk", steps=10**12, settings=settings, preset="none", callbacks=[soak], is_quiet=True
        )
        soak.finish()
        print(f"{args.minutes:g} minutes, seed {args.seed}, {run.result['steps']:,} steps")
        wrong = verdict(soak, run.folder)
    print(f"not as promised: {', '.join(wrong)}" if wrong else "as promised")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
