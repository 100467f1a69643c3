"""A run with a saboteur in its supervisor's process: a thread that kills, stops or forges, and watches meanwhile.

What it saw and what shared memory holds in the end is written to facts.json, for the test to judge.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import threading
import time
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import fault_envs
import numpy as np
from fault_processes import by_kind, state_of
from fault_runs import is_alive

import freewheel
from freewheel.errors import FreewheelError, ReplayError
from freewheel.memory.lanes import Lanes
from freewheel.run.build import build_pace
from freewheel.store.checkpoint import load_newest

WAIT_S = 150.0  # a busy machine takes a minute to compile
LOOK_S = 0.002
STOP = signal.SIGSTOP


def main(plan: dict[str, Any]) -> int:
    saboteur = Saboteur(plan)
    loss = getattr(__import__("fault_losses"), plan["loss"]) if "loss" in plan else None
    settings = {name: tuple(v) if isinstance(v, list) else v for name, v in plan["settings"].items()}
    code = 1
    try:
        run = freewheel.train(
            plan["env"],
            steps=plan.get("steps", 10**9),
            settings=settings,
            preset="none",
            callbacks=[saboteur],
            loss=loss,
            is_quiet=True,
        )
        code = run.exit_code
    except FreewheelError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    saboteur.finish()
    Path("facts.json").write_text(json.dumps(saboteur.facts))
    return code


class Saboteur(freewheel.Callback):
    """Begins when the run takes its first steps; `plan["acts"]` names methods of this class with their arguments."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.acts = plan.get("acts", [])
        self.random = random.Random(plan.get("seed", 0))
        self.facts: dict[str, Any] = {"hits": [], "trouble": [], "most_ahead": 0}
        self.moment: Any = None
        self.is_over = threading.Event()
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self.act, self.watch)]

    def on_step(self, moment: freewheel.Moment) -> None:
        if self.moment is None:
            self.moment = moment
            self.runtime = moment._runtime
            self.plan = self.runtime.plan
            (self.policy,) = self.plan.policies
            self.supervisor = self.runtime._supervisor
            self.pace = build_pace(self.plan, self.policy, self.policy.algo())
            self.counts = self.plan.counts
            for thread in self.threads:
                thread.start()

    def act(self) -> None:
        try:
            for name, arguments in self.acts:
                getattr(self, name)(**arguments)
            if self.acts:
                self.go_on(300)
                self.moment.stop()
        except BaseException as error:
            self.facts["trouble"].append(repr(error))
            self.moment.stop()

    def watch(self) -> None:
        """Counts and versions must never go back, and actors never be ahead of the learner by more than they may."""
        before: tuple[int, ...] = (0, 0, 0, 0)
        may_be_ahead = self.plan.config.world.lanes * 2  # a turn of all actors that began just in time
        while not self.is_over.wait(LOOK_S):
            updates, steps = self.counts.updates, self.counts.steps
            now = (self.policy.board.version, steps, updates, self.policy.lanes.rows_written())
            if any(a < b for a, b in zip(now, before, strict=True)):
                self.facts["trouble"].append(f"went back from {before} to {now}")
            # Updates were read before the steps: more were allowed by then, but a few calls later.
            ahead = steps - self.pace.limit(self.counts.updates) - may_be_ahead
            self.facts["most_ahead"] = max(self.facts["most_ahead"], ahead)
            self.facts["most_due"] = max(self.facts.get("most_due", 0), self.pace.backlog())
            before = now

    def hit(self, role: str, number: int, count: int, gap_s: tuple[float, float], works: bool = False) -> None:
        """Sends a signal to a role at random moments, and waits each time until another process has its place.

        With `works` only to one that is past its start.
        """
        for _ in range(count):
            time.sleep(self.random.uniform(*gap_s))
            supervisor = self.supervisor
            roles = {
                "learner": supervisor.learners,
                "actor": supervisor.actors,
                "worker": supervisor.workers[0],
                "target": supervisor.targets,
            }
            member = self.random.choice(roles[role])
            life, pid = self.living(member, works)
            others = [actor for actor in self.supervisor.actors if actor is not member]
            saved = self.saved()
            rows, at = self.rows_of(others), time.monotonic()
            os.kill(pid, number)
            self.until(lambda m=member, n=life: m.life > n and m.is_alive, f"{member.name} was not replaced")
            self.facts["hits"].append(
                {
                    "name": member.name,
                    "old_is_gone": not Path(f"/proc/{pid}").exists(),
                    "seconds": time.monotonic() - at,
                    "others_wrote": self.rows_of(others) - rows,
                    "saved": saved,
                }
            )
        self.go_on(100)

    def hit_process(self, kind: str, number: int, gap_s: tuple[float, float] = (0.0, 0.2), steps: int = 30) -> None:
        """Sends a signal to a process that is no role of the supervisor's. Waits until it is replaced or goes on, and the run does.

        Nobody needs the tracker: a killed one stays away until the next process starts.
        """
        time.sleep(self.random.uniform(*gap_s))
        if kind == "tracker" and kind not in by_kind(os.getpid()):
            kind = "warden"
        self.until(lambda: kind in by_kind(os.getpid()), f"there is no {kind}")
        before = by_kind(os.getpid())[kind]
        hit = self.random.choice(before)
        os.kill(hit, number)
        self.facts["hits"].append({"name": kind, "number": number})

        def is_healed() -> bool:
            now = by_kind(os.getpid()).get(kind, [])
            return (
                len(now) == len(before)
                and all(state_of(pid) != "T" for pid in now)
                and (number == STOP or hit not in now)
            )

        if kind != "tracker":
            self.until(is_healed, f"the {kind} was not replaced")
        self.go_on(steps)

    def hit_while_stopped(self, kind: str, number: int) -> None:
        """When a role has stopped at a fault point: sends a signal to another process, and lets the role go on."""

        def stopped() -> list[int]:
            return [pid for pid in by_kind(os.getpid()).get("role", []) if state_of(pid) == "T"]

        self.until(stopped, "no role stopped")
        role = stopped()[0]
        os.kill(self.random.choice(by_kind(os.getpid())[kind]), number)
        with contextlib.suppress(ProcessLookupError):
            os.kill(role, signal.SIGCONT)
        self.go_on(100)

    def wait_for_helpers(self, count: int) -> None:
        """Until so many processes are in the file `helpers`; notes which of them live."""

        def helpers() -> list[int]:
            return [int(line) for line in Path("helpers").read_text().split()]

        self.until(lambda: len(helpers()) >= count, f"there were never {count} helpers")
        self.facts["helpers"] = [pid for pid in helpers() if is_alive(pid)]

    def wait_for_deaths(self, count: int) -> None:
        """Until so many roles have ended, as the plan of fault points in the environment has them."""
        self.until(lambda: self.supervisor.num_deaths >= count, f"not {count} roles died")
        self.go_on(100)

    def kill_forkserver(self) -> None:
        """The process that all roles come from: they go with it."""
        lives = {member.name: member.life for member in self.supervisor.roles if member.is_alive}
        os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)
        for member in self.supervisor.roles:
            if member.name in lives:
                self.until(lambda m=member: m.life > lives[m.name] and m.is_alive, f"{member.name} was not replaced")
        self.go_on(100)

    def save_first(self) -> None:
        self.until(lambda: self.saved() is not None, "there was no checkpoint")

    def wait_for_line(self, name: str, line: str) -> None:
        """Until a file of the run's folder ends with this line."""
        path = Path(name)
        self.until(lambda: path.exists() and path.read_text().endswith(f"{line}\n"), f"{name} never said {line}")

    def forge(self) -> None:
        """A writer of before, as a process that slept through its own replacement would be."""
        member = self.supervisor.actors[0]
        life, _ = self.living(member)
        lanes, own = self.policy.lanes, self.policy.own_lanes(self.plan.copies_of(0))
        old = lanes.writer(own)
        epoch = old.epoch(0)
        self.until(lambda: member.life > life and lanes.core.epoch(0) > epoch, "nobody took the lanes back")
        n = len(own)
        none = np.zeros(n, np.bool_)
        fields = {"obs": np.full((n, 3), -1), "action": np.zeros(n, np.int64)}
        try:
            old.append(np.arange(n), fields, np.zeros(n, np.float32), none, none)
            self.facts["trouble"].append("a writer of an old epoch could write")
        except ReplayError as error:
            self.facts["forged"] = str(error)

    def living(self, member: Any, works: bool = False) -> tuple[int, int]:
        """Life and process id of a role that lives and, if asked, has done something in this life."""
        found: list[tuple[int, int]] = []
        beats_of: dict[int, int] = {}

        def look() -> bool:
            life, process = member.life, member.process
            beats = self.plan.ledger.snapshot(member.page).counters["beats"] if works else 0
            first = beats_of.setdefault(life, beats)
            try:
                pid = process.pid if process is not None else 0
            except ValueError:  # it was closed meanwhile
                return False
            if pid and is_alive(pid) and member.life == life and (beats > first or not works):
                found.append((life, pid))
            return bool(found)

        self.until(look, f"{member.name} does not live")
        return found[-1]

    def rows_of(self, actors: list[Any]) -> int:
        return sum(self.plan.ledger.snapshot(actor.page).counters["rows"] for actor in actors)

    def saved(self) -> dict[str, int] | None:
        folder = self.plan.checkpoints
        if not folder.exists() or not list(folder.glob("step-*")):
            return None
        found = load_newest(folder)
        return {"step": found.step, "updates": found.state["updates"]}

    def go_on(self, steps: int) -> None:
        """Until so many more were taken, and trained on."""
        goal, updates = self.counts.steps + steps, self.counts.updates
        self.until(lambda: self.counts.steps >= goal and self.counts.updates > updates, "the run does not go on")

    def until(self, happens: Any, what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not happens():
            if time.monotonic() > deadline or self.is_over.is_set():
                raise TimeoutError(what)
            time.sleep(LOOK_S)

    def finish(self) -> None:
        """After the run: what is in shared memory."""
        self.is_over.set()
        if self.moment is None:
            return
        for thread in self.threads:
            thread.join(WAIT_S)
        plan, lanes = self.plan, self.policy.lanes
        pages = [plan.ledger.snapshot(plan.first_actor + i) for i in range(plan.layout.actors)]
        self.facts |= {
            "begun": sum(page.counters["rows_begun"] for page in pages),
            "counted": sum(page.counters["rows"] for page in pages),
            "committed": lanes.rows_written(),
            "is_whole": all(page.is_whole for page in pages),
            "epochs": [lanes.core.epoch(lane) for lane in range(lanes.num_lanes)],
            "lives": {member.name: member.life for member in self.supervisor.roles},
            "deaths": self.supervisor.num_deaths,
            "steps": self.counts.steps,
            "updates": self.counts.updates,
            "ratio": self.runtime.paces[0].achieved(),
            "dropped": sum(page.counters["dropped_rows"] for page in pages),
            "rows": rows_by_env(lanes) if plan.config.env == "fault_envs:Numbered" else None,
        }


def words_of(lanes: Lanes) -> list[np.ndarray[Any, Any]]:
    """The committed rows of each lane as they lie in memory: four words about the row, then its fields."""
    words = 4 + lanes.spec.payload_words
    found = []
    for first, count in lanes.core.used():
        data = os.pread(lanes.segment.core.fd, count, first)
        found.append(np.frombuffer(data, np.int64).reshape(-1, words))
    return found


def rows_by_env(lanes: Lanes) -> dict[str, list[list[int]]]:
    """For each copy of the env that wrote: the lane and the numbers of its observations, in order."""
    found: dict[str, list[list[int]]] = {}
    for lane, rows in enumerate(words_of(lanes)):
        for magic, who, count in rows[:, 4:7].tolist():
            assert magic == fault_envs.MAGIC, f"lane {lane} holds a row that no env gave"
            found.setdefault(str(who), []).append([lane, count])
    return found
