"""The supervisor: starts the roles, hears them, replaces those that die or stall, and ends them all.

It owns the shared memory, so what an actor has written and what the learner has published outlives them.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from freewheel.errors import FreewheelError, RoleLost
from freewheel.machine.fault_points import reach
from freewheel.machine.pinning import OwnCore, Pin
from freewheel.machine.process import Guard, start_forkserver
from freewheel.report.account import RoleTime
from freewheel.report.phases import PHASES
from freewheel.report.processes import Processes
from freewheel.run.channel import Message
from freewheel.run.entry import ANYTHING, FINAL, ONLY_FOUND
from freewheel.run.member import Member, how_ended, running_phase
from freewheel.run.plan import FIRST_LEARNER, Plan

STARTING, STOPPED = PHASES.index("start"), PHASES.index("stop")

Handle = Callable[[Member, Message], None]

WATCH_S = 0.5  # between two looks at signs of life
AWAY_S = 5.0  # a look that comes so late was held up from outside
START_S = 180.0  # importing an env and making its copies may take long
STALE_SHARE = 1 / 6  # of the time after which a role is replaced, when it is named for the first time
BUDGET_S = 600.0
PATIENCE_S = 8.0  # for the end of a run that was interrupted
SAVE_S = 4.0  # of it are the learner's: an env that does not end must not cost the checkpoint
LAUNCHES, LAUNCH_AGAIN_S = 5, 0.05  # a process that was killed is gone within milliseconds
LAST_CALL_S = 300.0  # for the updates and the checkpoint after the last step
COMPILE_S = 900.0  # a large image learner's update took 45 s to compile; one that takes so long hangs


class Supervisor:
    """Roles by name. `note` takes what the user should read; `handle` every message of a role."""

    def __init__(self, plan: Plan, note: Callable[[str], None], handle: Handle) -> None:
        self.plan, self._note, self._handle = plan, note, handle
        policies = range(len(plan.policies))
        self.learners = [Member(plan, "learner", i, 0, FIRST_LEARNER + i) for i in policies]
        self.actors = [Member(plan, "actor", None, i, plan.first_actor + i) for i in range(plan.layout.actors)]
        self.workers: list[list[Member]] = [[] for _ in policies]
        self.compilers = [Member(plan, "compiler", i, 0, None) for i in policies]
        self.targets = [Member(plan, "target", i, 0, None) for i in policies]
        self.before_last: Callable[[], None] = lambda: None  # called when all actors have ended
        self.failed: FreewheelError | None = None
        self.num_deaths = 0
        self._guard = Guard()
        self._selector = selectors.DefaultSelector()
        self._watch_due = 0.0
        self._stop_due: float | None = None
        self._late: set[str] = set()  # killed because they did not end: no death to be told or made good
        self._processes = Processes()
        self._own_core = OwnCore(_pin(plan), note)
        # How long a phase may take without a sign of life, where that is not local.stall_s. A large replay is saved at the end.
        self._limits = {
            "start": START_S,
            "compile": COMPILE_S,
            "checkpoint": LAST_CALL_S,
            "stop": LAST_CALL_S,
            "env": plan.config.local.step_timeout_s,
        }

    @property
    def members(self) -> list[Member]:
        helpers = [member for own in self.workers for member in own]
        return [*self.learners, *self.actors, *helpers, *self.compilers, *self.targets]

    def start(self) -> None:
        self._guard.start()
        for policy in self.plan.policies:
            if policy.config.learner.workers > 1:
                self.start_workers(policy.index)
        for member in (*self.learners, *self.actors):
            self._start(member)

    def start_workers(self, policy: int) -> None:
        """Starts those who share the gradients of a policy's learner."""
        memory = self.plan.policies[policy].workers
        assert memory is not None
        own = self.workers[policy]
        if not own:
            own += [Member(self.plan, "worker", policy, i, None) for i in range(1, memory.num_workers)]
        for member in own:
            if not member.is_alive:
                self._start(member)

    def replace_late(self, policy: int, index: int) -> None:
        """A worker whose gradient did not come in time."""
        for member in self.workers[policy]:
            if member.index == index and member.is_alive:
                self._note(f"{member.name} gave no gradient in time and is replaced. Its stack:\n{member.stack()}")
                member.kill()
            elif member.index == index:  # it ended without an error, and the learner would wait for it forever
                self._start(member)

    def compile(self, policy: int, only_found: bool = False) -> None:
        """Has a learner's update compiled by a process of its own, or only looked for among what was compiled before."""
        compiler = self.compilers[policy]
        compiler.index = ONLY_FOUND if only_found else ANYTHING
        self._start(compiler)

    def start_targets(self, policy: int, package: str) -> None:
        """Starts the process that shows a learner's next batches to the target network."""
        shared = self.plan.policies[policy].targets
        assert shared is not None
        shared.package = package
        if not self.targets[policy].is_alive:
            self._start(self.targets[policy])

    def tell(self, member: Member, message: Message) -> None:
        if member.channel is not None:
            member.channel.send(message)

    def tick(self, timeout_s: float) -> None:
        """Sleeps until something happens, at most so long; hears the roles and looks after them."""
        ready = self._selector.select(timeout_s)
        ended = [key.data for key, _ in ready if isinstance(key.fileobj, int)]  # a process's sentinel
        for member in self.members:
            for message in member.receive():
                self._handle(member, message)
        for member in ended:
            self._bury(member)
        now = time.monotonic()
        if now >= self._watch_due:
            was_away = now > self._watch_due + AWAY_S > AWAY_S
            self._watch_due = now + WATCH_S
            for member in self.members:
                if was_away:  # this process itself was stopped: it cannot tell who lived meanwhile
                    member.beat_s = now
                member.look_at_usage()
                self._watch(member, now)
            self._divide_cores(now)
        self._move_on(now)

    @property
    def is_over(self) -> bool:
        """Nobody is left who could do anything."""
        return not any(member.is_alive for member in (*self.learners, *self.actors))

    def stop(self, is_urgent: bool) -> None:
        """Asks for the end: actors stop, then the learner saves and stops."""
        self.plan.counts.stop()
        patience = PATIENCE_S if is_urgent else LAST_CALL_S
        due = time.monotonic() + patience
        self._stop_due = due if self._stop_due is None else min(self._stop_due, due)

    def close(self) -> None:
        """Ends whoever is left, at once."""
        for member in self.members:
            if member.is_alive:
                member.kill()
                self._forget(member)
                member.bury()
        self._selector.close()
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
            self._kill_late(self.members)
            self._stop_due = now + PATIENCE_S

    def _kill_late(self, members: Sequence[Member]) -> None:
        late = [member for member in members if member.is_alive]
        names = ", ".join(member.name for member in late if member.name not in self._late)
        if names:
            self._note(f"{names} did not end in time and was killed; what was saved before stays.")
        for member in late:
            self._late.add(member.name)
            member.kill()

    def _start(self, member: Member) -> None:
        if member.page is not None:
            self.plan.ledger.page(member.page).start(STARTING)  # what it needs before its own first mark is a start too
        self._launch(member)
        reach("spawn")
        self._guard.add(member.pid)
        assert member.process is not None
        assert member.channel is not None
        self._selector.register(member.process.sentinel, selectors.EVENT_READ, member)
        self._selector.register(member.channel.socket, selectors.EVENT_READ, member)

    def _launch(self, member: Member) -> None:
        """A forkserver that was killed is started again; one that is just dying cannot be told from a living one, and refuses."""
        for _ in range(LAUNCHES):
            start_forkserver()
            try:
                member.start()
                return
            except (ConnectionError, EOFError) as error:
                refused = error
                time.sleep(LAUNCH_AGAIN_S)
        raise RoleLost(
            f"{member.name} could not be started {LAUNCHES} times: {refused!r}. Something kills the processes of this run; "
            "look at the machine's memory (dmesg)."
        ) from refused

    def _forget(self, member: Member) -> None:
        assert member.process is not None
        assert member.channel is not None
        self._selector.unregister(member.process.sentinel)
        if member.channel.socket.fileno() >= 0:
            self._selector.unregister(member.channel.socket)

    def _bury(self, member: Member) -> None:
        if not member.is_alive:
            return
        self._forget(member)
        self._close_page(member)
        pid = member.pid
        code = member.bury()
        self._guard.remove(pid)
        if member in self.compilers:
            self._handle(
                member, {"compiler_ended": code, "why": member.trouble.text if member.trouble else how_ended(code)}
            )
        elif code != 0 and member.name not in self._late:
            self._died(member, code, pid)

    def _close_page(self, member: Member) -> None:
        """The dead write no more: what they were doing at last is counted up to now, and the page rests."""
        if member.page is not None:
            self.plan.ledger.page(member.page).enter(STOPPED)
            member.snapshot = self.plan.ledger.snapshot(member.page)

    def _died(self, member: Member, code: int, pid: int) -> None:
        """Told, and started again unless that would end the same way or happened too often."""
        self.num_deaths += 1
        why = member.trouble
        if why is not None and why.trace:
            self._note(f"{member.name}:\n{why.trace.rstrip()}")
        said = f"{why.kind}: {why.text}" if why else how_ended(code)
        now = time.monotonic()
        member.deaths.append(now)
        while member.deaths and now - member.deaths[0] > BUDGET_S:
            member.deaths.popleft()
        is_too_often = len(member.deaths) > self.plan.config.local.restarts
        if member in self.targets and (is_too_often or why is not None):
            self._note(f"{member.name} ended ({said}); training goes on without it.")  # nobody waits for it
        elif why is not None and (why.is_final or code == FINAL):
            self._give_up(why.error(member.name))
        elif is_too_often:
            self._give_up(
                RoleLost(
                    f"{member.name} ended {len(member.deaths)} times within ten minutes, more than "
                    f"local.restarts={self.plan.config.local.restarts}. The last time: {said}"
                )
            )
        elif not self.plan.counts.is_stopping or member.kind in ("learner", "worker"):
            again = f"restart {len(member.deaths)} of {self.plan.config.local.restarts}"
            self._note(f"{member.name} (pid {pid}) ended at step {self.plan.counts.steps:,} ({said}); {again} begins.")
            self._start(member)

    def _give_up(self, error: FreewheelError) -> None:
        self.failed = self.failed or error
        self.stop(is_urgent=True)

    def _watch(self, member: Member, now: float) -> None:
        if not member.is_alive:
            return
        if member.page is None:
            self._watch_stopped(member, now)
            return
        snapshot = self.plan.ledger.snapshot(member.page)
        if member.shows_life(snapshot, now):
            return
        phase = running_phase(member.phases, snapshot.phases_ns)
        limit = self._limits.get(phase, self.plan.config.local.stall_s)
        silent_s = now - member.beat_s
        if silent_s > limit or (silent_s > self.plan.config.local.stall_s and member.is_stopped):
            self._note(
                f"{member.name} has shown no sign of life for {silent_s:.0f} s (phase {phase}) and is replaced. Its stack:\n"
                f"{member.stack()}"
            )
            member.kill()
        elif silent_s > max(limit * STALE_SHARE, 2 * WATCH_S) and phase != "start" and not member.is_told:
            member.is_told = True
            self._note(f"{member.name} has shown no sign of life for {silent_s:.0f} s (phase {phase}).")

    def _watch_stopped(self, member: Member, now: float) -> None:
        """One without a page shows no signs of life, but whether it is stopped can be seen: others wait for it."""
        if member in self.compilers and now - member.started_s > COMPILE_S:
            self._note(
                f"{member.name} has taken more than {COMPILE_S:.0f} s and is ended. Its stack:\n{member.stack()}"
            )
            member.kill()
        elif not member.is_stopped:
            member.beat_s = now
        elif now - member.beat_s > self.plan.config.local.stall_s:
            self._note(f"{member.name} has been stopped for {now - member.beat_s:.0f} s and is replaced.")
            member.kill()

    def _divide_cores(self, now: float) -> None:
        learner = self.learners[0]
        others = [member.pid for member in self.members if member.is_alive and member is not learner]
        if not learner.is_alive:
            return
        # A learner that shares its gradients takes more than one core.
        if any(self.workers) and self.plan.config.local.pin == "auto":
            self._own_core.end([learner.pid, *others])
        else:
            self._own_core.look(learner.pid, others, now)

    def usage(self) -> dict[str, float]:
        """CPU and memory of every process since the last call, for the log."""
        pids = {member.name: member.pid for member in self.members if member.is_alive}
        return self._processes.figures({"supervisor": os.getpid(), **pids})

    def times(self) -> list[RoleTime]:
        """Where the time of each role went, over all its lives."""
        found = []
        for member in (*self.learners, *self.actors):
            assert member.page is not None
            snapshot = member.snapshot or self.plan.ledger.snapshot(member.page)
            wall_s = member.lived_s + (time.monotonic() - member.started_s if member.is_alive else 0.0)
            starts = max(member.life + 1, 1)
            spent = RoleTime.of(member.name, member.kind, snapshot, wall_s, cpu_s=member.cpu_s, starts=starts)
            found.append(replace(spent, gauges={**spent.gauges, "memory_mb": member.memory_mb}))
        return found


def _pin(plan: Plan) -> Pin:
    """Of one learner alone. One core does not help a learner of several threads, nor one that sleeps while actors act, and they while
    it learns.
    """
    pin, first = plan.config.local.pin, plan.policies[0]
    is_useless = len(plan.policies) > 1 or first.form.threads > 1 or first.algo_class().is_lockstep
    return "off" if pin == "auto" and is_useless else pin
