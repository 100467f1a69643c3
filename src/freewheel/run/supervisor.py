"""The supervisor: starts the roles, reads their messages, replaces those that die or stall, and ends them all.

It owns the shared memory, so the rows of an actor and the weights of a learner outlive them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import wait

from freewheel.errors import FreewheelError, RoleLost
from freewheel.machine.fault_points import reach
from freewheel.machine.guard import Guard
from freewheel.machine.pinning import OwnCore, Pin
from freewheel.machine.process import how_it_ended, sweep
from freewheel.report.account import RoleTime
from freewheel.report.phases import PHASES, WAITS
from freewheel.report.usage import ProcessUsage
from freewheel.run.channel import Message
from freewheel.run.entry import COMPILE, ONLY_FIND
from freewheel.run.plan import FIRST_LEARNER, Plan
from freewheel.run.role_process import RoleProcess, running_phase

STARTING, STOPPED = PHASES.index("start"), PHASES.index("stop")

WATCH_S = 0.5  # between two looks at signs of life
AWAY_S = 5.0  # a look this late means that the supervisor itself was stopped
START_S = 180.0  # importing an env and making its copies may take long
ASLEEP_S = 30.0  # a role that waits looks up four times a second, but late on a busy machine
STALE_SHARE = 1 / 6  # of the time limit: a silent role is reported after this
BUDGET_S = 600.0  # restarts are counted within this time
PATIENCE_S = 8.0  # for the end of an interrupted run
SAVE_S = 4.0  # of it are the learner's: an env that does not end must not cost the checkpoint
LAST_CALL_S = 300.0  # for the updates and the checkpoint after the last step
COMPILE_S = 900.0  # a large image learner's update took 45 s to compile; one that takes so long hangs


class Supervisor:
    """`note` prints a text for the user; `handle` gets every message of a role."""

    def __init__(self, plan: Plan, note: Callable[[str], None], handle: Callable[[RoleProcess, Message], None]) -> None:
        self.plan, self._note, self._handle = plan, note, handle
        policies = range(len(plan.policies))
        self.learners = [RoleProcess(plan, "learner", i, 0, FIRST_LEARNER + i) for i in policies]
        self.actors = [RoleProcess(plan, "actor", None, i, plan.first_actor + i) for i in range(plan.layout.actors)]
        self.workers = [
            [RoleProcess(plan, "worker", policy.index, i, None) for i in range(1, policy.workers.num_workers)]
            if policy.workers is not None
            else []
            for policy in plan.policies
        ]
        self.compilers = [RoleProcess(plan, "compiler", i, 0, None) for i in policies]
        self.targets = [RoleProcess(plan, "target", i, 0, None) for i in policies]
        self.before_last: Callable[[], None] = lambda: None  # called when all actors have ended
        self.failed: FreewheelError | None = None
        self.num_deaths = 0
        self._guard = Guard()
        self._watch_due = 0.0
        self._stop_due: float | None = None
        self._late: set[str] = set()  # killed because they did not end in time: not reported or restarted
        self._usage = ProcessUsage(os.getpid())
        self._own_core = OwnCore(_pin(plan), note)
        # How long a phase may take without a sign of life, where local.stall_s does not apply. A large replay is saved at the end.
        self._limits = {
            "start": START_S,
            "compile": COMPILE_S,
            "checkpoint": LAST_CALL_S,
            "stop": LAST_CALL_S,
            "env": plan.config.local.step_timeout_s,
            **dict.fromkeys(WAITS, max(ASLEEP_S, plan.config.local.stall_s)),
        }

    @property
    def roles(self) -> list[RoleProcess]:
        workers = [role for own in self.workers for role in own]
        return [*self.learners, *self.actors, *workers, *self.compilers, *self.targets]

    def start(self) -> None:
        self._guard.start()
        for policy in self.plan.policies:
            if policy.config.learner.workers > 1:
                self.start_workers(policy.index)
        for role in (*self.learners, *self.actors):
            self._start(role)

    def start_workers(self, policy: int) -> None:
        """Starts the gradient workers of a policy's learner."""
        for role in self.workers[policy]:
            if not role.is_alive:
                self._start(role)

    def replace_late(self, policy: int, index: int) -> None:
        """Replaces a worker whose gradient is late."""
        role = self.workers[policy][index - 1]  # worker 0 is the learner
        if role.is_alive:
            self._kill(role, "gave no gradient in time and is replaced")
        else:  # it ended without an error, and the learner would wait for it forever
            self._start(role)

    def compile(self, policy: int, only_find: bool = False) -> None:
        """Starts a process that compiles a learner's update, or only looks for one that an earlier run compiled."""
        compiler = self.compilers[policy]
        compiler.index = ONLY_FIND if only_find else COMPILE
        self._start(compiler)

    def start_targets(self, policy: int, package: str) -> None:
        """Starts the process that computes target values for a learner's next batches."""
        shared = self.plan.policies[policy].targets
        assert shared is not None
        shared.package = package
        if not self.targets[policy].is_alive:
            self._start(self.targets[policy])

    def tell(self, role: RoleProcess, message: Message) -> None:
        if role.channel is not None:
            role.channel.send(message)

    def tick(self, timeout_s: float) -> None:
        """Sleeps until a role sends or ends, at most `timeout_s`. Reads messages and looks after the roles."""
        sentinels = {role.process.sentinel: role for role in self.roles if role.process is not None}
        channels = [role.channel.socket for role in self.roles if role.channel is not None and role.channel.is_open]
        ready = wait([*sentinels, *channels], timeout_s)
        for role in self.roles:
            for message in role.receive():
                self._handle(role, message)
        self._take_away([role for sentinel, role in sentinels.items() if sentinel in ready and role.is_alive])
        now = time.monotonic()
        if now >= self._watch_due:
            was_away = now > self._watch_due + AWAY_S > AWAY_S
            self._watch_due = now + WATCH_S
            for note in self._guard.look(now):
                self._note(note)
            for role in self.roles:
                if was_away:  # it cannot know who was alive meanwhile
                    role.beat_s = now
                role.look_at_usage()
                self._watch(role, now)
            self._divide_cores(now)
        self._move_on(now)

    @property
    def is_over(self) -> bool:
        """All actors and learners have ended."""
        return not any(role.is_alive for role in (*self.learners, *self.actors))

    def stop(self, is_urgent: bool) -> None:
        """Ends the run: actors stop, then the learner saves and stops."""
        self.plan.counts.stop()
        due = time.monotonic() + (PATIENCE_S if is_urgent else LAST_CALL_S)
        self._stop_due = due if self._stop_due is None else min(self._stop_due, due)

    def close(self) -> None:
        """Kills all roles that are left."""
        left = [role for role in self.roles if role.is_alive]
        pids = [role.pid for role in left]
        for role in left:
            role.kill()
            role.clean_up()
        sweep(pids)
        self._guard.close()

    def _move_on(self, now: float) -> None:
        """From the last step to the last update."""
        counts = self.plan.counts
        if self._stop_due is not None and now > self._stop_due - SAVE_S and not counts.is_over:
            self._kill_late(self.actors)
        if not any(actor.is_alive for actor in self.actors) and not counts.is_over:
            self.before_last()
            counts.stop(level=2)
            self.stop(is_urgent=False)
        if self._stop_due is not None and now > self._stop_due:
            self._kill_late(self.roles)
            self._stop_due = now + PATIENCE_S

    def _kill_late(self, roles: Sequence[RoleProcess]) -> None:
        late = [role for role in roles if role.is_alive]
        names = ", ".join(role.name for role in late if role.name not in self._late)
        if names:
            self._note(f"{names} did not end in time and was killed. What it did since the last checkpoint is lost.")
        for role in late:
            self._late.add(role.name)
            role.kill()

    def _start(self, role: RoleProcess) -> None:
        if role.page is not None:
            self.plan.ledger.page(role.page).start(STARTING)  # the time before its own first phase is a start too
        role.start()
        reach("spawn")
        self._guard.add(role.pid)

    def _take_away(self, roles: Sequence[RoleProcess]) -> None:
        """After the end of these roles: removes what they left behind, before any of them begins again."""
        ends = [(role, role.pid, self._clean_up(role)) for role in roles]
        sweep(pid for _, pid, _ in ends)
        for end in ends:
            self._judge(*end)

    def _clean_up(self, role: RoleProcess) -> int:
        """Its last phase is counted until now. Gives its exit code."""
        if role.page is not None:
            self.plan.ledger.page(role.page).enter(STOPPED)
            role.snapshot = self.plan.ledger.snapshot(role.page)
        pid, code = role.pid, role.clean_up()
        self._guard.remove(pid)
        return code

    def _judge(self, role: RoleProcess, pid: int, code: int) -> None:
        """Was this the end of its work, or a death?"""
        if role in self.compilers:
            why = role.trouble.text if role.trouble else f"its process {how_it_ended(code)}"
            self._handle(role, {"compiler_ended": not role.is_done, "why": why})
        elif not role.is_done and role.name not in self._late:
            self._died(role, code, pid)

    def _died(self, role: RoleProcess, code: int, pid: int) -> None:
        """Reports the death, and restarts the role unless that would fail again or happened too often."""
        self.num_deaths += 1
        why, restarts = role.trouble, self.plan.config.local.restarts
        if why is not None and why.trace:
            self._note(f"{role.name}:\n{why.trace.rstrip()}")
        how, error = ("failed", f" {why.kind}: {why.text}") if why else (how_it_ended(code), "")
        now = time.monotonic()
        role.deaths.append(now)
        while now - role.deaths[0] > BUDGET_S:
            role.deaths.popleft()
        count = len(role.deaths)
        if role in self.targets and (count > restarts or why is not None):  # the learner does not wait for it
            self._note(f"{role.name} {how}; training continues without it.{error}")
        elif why is not None and why.is_final:
            who = f"{role.name}: " if len(self.plan.policies) > 1 else ""
            self._give_up(replace(why, text=who + why.text).error(role.name))
        elif count > restarts:
            last = error or f" it {how}."
            self._give_up(
                RoleLost(
                    f"{role.name} ended {count} times within ten minutes, more than local.restarts={restarts}. The last time:{last}"
                )
            )
        elif not self.plan.counts.is_stopping or role.kind in ("learner", "worker"):
            self._note(
                f"{role.name} (pid {pid}) {how} at step {self.plan.counts.steps:,}; restart {count} of {restarts}.{error}"
            )
            self._start(role)

    def _give_up(self, error: FreewheelError) -> None:
        self.failed = self.failed or error
        self.stop(is_urgent=True)

    def _kill(self, role: RoleProcess, why: str) -> None:
        self._note(f"{role.name} {why}. Its stack:\n{role.stack()}")
        role.kill()

    def _watch(self, role: RoleProcess, now: float) -> None:
        if not role.is_alive:
            return
        stall_s = self.plan.config.local.stall_s
        if role.page is None:
            self._watch_stopped(role, now, stall_s)
            return
        snapshot = self.plan.ledger.snapshot(role.page)
        if role.shows_life(snapshot, now):
            return
        phase = running_phase(role.phases, snapshot.phases_ns)
        limit = self._limits.get(phase, stall_s)
        silent_s = now - role.beat_s
        silent = f"has shown no sign of life for {silent_s:.0f} s (phase {phase})"
        if silent_s > limit or (silent_s > stall_s and role.is_stopped):
            self._kill(role, f"{silent} and is replaced")
        elif silent_s > max(limit * STALE_SHARE, 2 * WATCH_S) and phase != "start" and not role.is_reported:
            role.is_reported = True
            self._note(f"{role.name} {silent}.")

    def _watch_stopped(self, role: RoleProcess, now: float, stall_s: float) -> None:
        """A role without a page shows no signs of life, but others wait for it: it must not stay stopped."""
        if role in self.compilers and now - role.started_s > COMPILE_S:
            self._kill(role, f"has taken more than {COMPILE_S:.0f} s and is killed")
        elif not role.is_stopped:
            role.beat_s = now
        elif now - role.beat_s > stall_s:
            self._kill(role, f"has been stopped for {now - role.beat_s:.0f} s and is replaced")

    def _divide_cores(self, now: float) -> None:
        learner = self.learners[0]
        others = [role.pid for role in self.roles if role.is_alive and role is not learner]
        if not learner.is_alive:
            return
        # A learner with gradient workers uses more than one core.
        has_workers = any(role.is_alive for own in self.workers for role in own)
        if has_workers and self.plan.config.local.pin == "auto":
            self._own_core.end([learner.pid, *others])
        else:
            self._own_core.look(learner.pid, others, now)

    def usage(self) -> dict[str, float]:
        """CPU and memory of every process since the last call, for the log."""
        found = self._usage.metrics("supervisor")
        for role in self.roles:
            if role.is_alive and role.usage is not None:
                found |= role.usage.metrics(role.name)
        return found

    def times(self) -> list[RoleTime]:
        """The time of each role by phase, over all its lives."""
        found = []
        for role in (*self.learners, *self.actors):
            assert role.page is not None
            snapshot = role.snapshot or self.plan.ledger.snapshot(role.page)
            wall_s = role.lived_s + (time.monotonic() - role.started_s if role.is_alive else 0.0)
            starts = max(role.life + 1, 1)
            spent = RoleTime.of(role.name, role.kind, snapshot, wall_s, cpu_s=role.cpu_s, starts=starts)
            found.append(replace(spent, gauges={**spent.gauges, "memory_mb": role.memory_mb}))
        return found


def _pin(plan: Plan) -> Pin:
    """Pinning only helps a single learner with one thread that learns while actors act."""
    pin, first = plan.config.local.pin, plan.policies[0]
    is_useless = len(plan.policies) > 1 or first.form.threads > 1 or first.algo_class().is_lockstep
    return "off" if pin == "auto" and is_useless else pin
