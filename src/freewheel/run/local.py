"""The local runtime: actors and learners in their own processes, joined by shared memory, watched by this process."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from freewheel.learners import package
from freewheel.machine.fault_points import arm
from freewheel.report.account import Account, RoleTime, account
from freewheel.report.episodes import Episode, Window
from freewheel.report.ledger import Snapshot
from freewheel.report.phases import PHASES, epsilon_of
from freewheel.report.profile import profiled
from freewheel.report.usage import Usage
from freewheel.run import state
from freewheel.run.build import Acting, build_pace
from freewheel.run.channel import Message
from freewheel.run.compile_control import CompileControl
from freewheel.run.plan import FIRST_LEARNER, SUPERVISOR, Plan
from freewheel.run.reporter import Reporter, policy_metrics, run_metrics
from freewheel.run.role_process import RoleProcess
from freewheel.run.supervisor import Supervisor
from freewheel.store import disk
from freewheel.store.checkpoint import Checkpoint, sweep
from freewheel.store.load import Trained, part_of

START, WATCH, LOG, STOP = (PHASES.index(name) for name in ("start", "watch", "log", "stop"))
TICK_S = 0.2


class Local:
    """Runs a plan: reads the roles' messages, logs, calls callbacks, and ends with a checkpoint."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.config = plan, plan.config
        self.paces = [build_pace(plan, policy, policy.algo()) for policy in plan.policies]
        self.windows = [Window() for _ in plan.policies]
        self._usage = Usage()
        self._metrics_of: list[dict[str, float]] = [{} for _ in plan.policies]
        self._warmup_s = 0.0
        self._error: BaseException | None = None
        self.unsaved: list[str] = []  # why last checkpoints are not in the run's folder, and where they are
        self._unsaved: dict[str, str] = {}  # by learner
        self.account: Account | None = None

    def close(self) -> None:
        """Nothing to do: the kernel frees shared memory with the last process that has it."""

    def attach(self, reporter: Reporter) -> None:
        """The run begins now, and reports to `reporter`."""
        self._reporter, self.moment = reporter, reporter.moment
        self._page = self.plan.ledger.page(SUPERVISOR)
        self._page.start(START)
        self._began_s, self._cpu_before_s = time.monotonic(), time.process_time()
        self.plan.began_s = self._began_s - self.moment.seconds
        self._supervisor = Supervisor(self.plan, reporter.note, self._receive)
        self._supervisor.before_last = self._tell_episodes
        self._compile_controls = [
            CompileControl(self.plan, policy, self._supervisor, reporter.note) for policy in self.plan.policies
        ]

    def resume(self, checkpoint: Checkpoint) -> str | None:
        """Restores counts and rows; each learner's process loads the rest. Returns what could not be restored."""
        plan = self.plan
        state.restore_counts(plan, checkpoint)
        notes = ["every lane begins a new episode"]
        for policy, pace, window in zip(plan.policies, self.paces, self.windows, strict=True):
            _, saved = part_of(checkpoint, policy.name)
            if saved.get("episodes"):
                window.set_state(saved["episodes"])
            has_rows = state.restore_rows(policy, checkpoint, "replay.bin")
            notes += pace.resume(saved, policy.lanes if has_rows else None)
            policy.pace_state = pace.counted_from()
        return "; ".join(dict.fromkeys(notes))

    def run(self) -> None:
        """Until all steps are taken or the run is stopped. Ends with a checkpoint."""
        supervisor = self._supervisor
        try:
            arm("supervisor", 0)
            with profiled("supervisor", self.plan.folder, self.config.local.profile):
                self._watch()
            self._page.enter(STOP)
            self.account = self._add_up()
        finally:
            supervisor.close()
            self.unsaved = list(self._unsaved.values())
            # After roles that were killed while they saved or compiled.
            with contextlib.suppress(OSError):
                disk.sweep(package.folder())
            for policy in self.plan.policies:
                with contextlib.suppress(OSError):
                    sweep(policy.checkpoints(self.plan))
        self._reporter.log(self.account.metrics())
        if self._error is not None:
            raise self._error
        if supervisor.failed is not None:
            raise supervisor.failed
        self.unsaved = self.unsaved or self._not_saved()

    def _watch(self) -> None:
        """Watches the roles until the last one has ended."""
        supervisor, page = self._supervisor, self._page
        supervisor.start()
        for one in self._compile_controls:
            one.begin()
        while not supervisor.is_over:
            page.enter(WATCH)
            supervisor.tick(TICK_S)
            page.enter(LOG)
            self._look()
            if self.moment.is_stopping:
                supervisor.stop(is_urgent=True)
            for one in self._compile_controls:
                one.decide()
        self._look()

    def _not_saved(self) -> list[str]:
        """Policies without a checkpoint of the last step, whose learner could not say why: it was killed when it saved for too long."""
        step = self.plan.counts.steps
        folders = [policy.checkpoints(self.plan) for policy in self.plan.policies]
        return [
            f"{folder} has no checkpoint of step {step:,}, the last: the learner did not finish it. freewheel train --resume "
            f"{self.plan.folder} goes on from an earlier one."
            for folder in folders
            if not (folder / f"step-{step:09d}").exists()
        ]

    def trained(self) -> list[Trained]:
        """The policies with the last published weights."""
        found = []
        for policy in self.plan.policies:
            acting = Acting(policy, policy.seed, range(1))
            acting.weights.fetch()
            found.append(Trained(acting.algo, acting.net, policy.config, policy.body))
        return found

    def metrics(self) -> list[dict[str, float]]:
        """Of the newest update of each policy."""
        return self._metrics_of

    def _receive(self, role: RoleProcess, message: Message) -> None:
        if "episodes" in message:
            self._finish([(int(index), Episode(*row)) for index, *row in message["episodes"]])
        if "note" in message:
            self._reporter.note(message["note"])
        if "unsaved" in message:
            self._unsaved[role.name] = message["unsaved"]
        if "saved" in message:
            self._unsaved.pop(role.name, None)  # of an earlier life
            self._guarded(self._reporter.call, "on_checkpoint", Path(message["saved"]))
        if role.policy is None:  # an actor
            return
        if "metrics" in message:
            self._metrics_of[role.policy] = message["metrics"]
            if message["warning"]:
                self._reporter.note(f"warning: {message['warning']}.")
        if "workers" in message:
            self._supervisor.start_workers(role.policy)
        if "late_worker" in message:
            self._supervisor.replace_late(role.policy, message["late_worker"])
        self._compile_controls[role.policy].receive(role, message)

    def _finish(self, episodes: list[tuple[int, Episode]]) -> None:
        for index, episode in episodes:
            self.windows[index].add(episode.ret)
        self.moment.return_mean = self.windows[0].mean
        self._guarded(self._reporter.finished, episodes, self.plan.policies)

    def _guarded(self, call: Callable[..., None], *given: Any) -> None:
        """An error in a callback ends the run, with a checkpoint."""
        if self._error is not None:
            return
        try:
            call(*given)
        except BaseException as error:
            self._error = error
            self.moment.stop()

    def _look(self) -> None:
        """Reads the counts: for callbacks, the log and the progress bar."""
        moment, counts, progress = self.moment, self.plan.counts, self._reporter.progress
        steps, updates = counts.steps, counts.updates
        moment.seconds = time.monotonic() - self.plan.began_s
        if steps != moment.step:
            moment.step = steps
            self._guarded(self._reporter.call, "on_step")
        if updates != moment.updates:
            if not self._warmup_s:  # the wait for the first rows is no fault of the actors
                self._warmup_s = self.plan.ledger.snapshot(FIRST_LEARNER).phases_ns["wait_data"] / 1e9
            moment.updates = updates
            self._guarded(self._reporter.call, "on_update")
        if self._reporter.is_due():
            self._reporter.log(self._metrics())
            self._tell_episodes()
        if progress.is_due(steps):
            loss, epsilon = self._metrics_of[0].get("loss"), self._epsilon(0)
            progress.update(steps, moment.return_mean, loss, epsilon, self.paces[0].achieved())

    def _tell_episodes(self) -> None:
        """A learner saves the returns in its checkpoints."""
        windows = [window.state() for window in self.windows]
        for learner in self._supervisor.learners:
            self._supervisor.tell(learner, {"episodes": windows})

    def _epsilon(self, index: int) -> float | None:
        has_it = "epsilon" in self.plan.policies[index].algo_class().dials
        return self.plan.ledger.snapshot(self.plan.first_actor).gauges[epsilon_of(index)] if has_it else None

    def _metrics(self) -> dict[str, float]:
        moment, plan = self.moment, self.plan
        learners = [plan.ledger.snapshot(FIRST_LEARNER + i) for i in range(len(plan.policies))]
        actors = [plan.ledger.snapshot(plan.first_actor + i) for i in range(plan.layout.actors)]

        def total(name: str, roles: Sequence[Snapshot] = actors) -> float:
            return float(sum(role.counters[name] for role in roles))

        found = {
            "train/dropped_rows": total("dropped_rows"),
            "train/lost_rows": total("rows_begun") - total("rows"),
            "train/dropped_logs": float(self._reporter.sink.num_dropped),
            "train/dropped_messages": total("dropped_messages", (*learners, *actors)),
            "train/cut_episodes": total("cut_episodes"),
            "train/restarts": float(self._supervisor.num_deaths),
            **run_metrics(moment, self._usage, total("samples", learners), actors),
            **self._supervisor.usage(),
            **self._add_up().metrics(),
        }
        for i, (policy, pace, learner) in enumerate(zip(plan.policies, self.paces, learners, strict=True)):
            more = {
                "train/policy_lag": learner.gauges["policy_lag"],
                "train/version": learner.gauges["version"],
                "train/queue_depth": float(max(pace.backlog(), 0)),  # due, and waiting for the learner
            }
            if policy.bootstraps is None:
                more["train/sample_age"] = learner.gauges["sample_age"]
                more |= {f"train/{name}": float(learner.counters[name]) for name in ("redraws", "stale_priorities")}
            found |= policy_metrics(policy, pace, self._epsilon(i), self.windows[i].mean, self._metrics_of[i], more)
        return found

    def _add_up(self) -> Account:
        own = RoleTime.of(
            "supervisor",
            "supervisor",
            self.plan.ledger.snapshot(SUPERVISOR),
            time.monotonic() - self._began_s,
            cpu_s=time.process_time() - self._cpu_before_s,
        )
        return account(
            [*self._supervisor.times(), own],
            ratio_target=self.paces[0].target,
            ratio=self.paces[0].achieved(),
            is_free=self.config.local.free,
            warmup_s=self._warmup_s,
            fewer_updates=self.plan.policies[0].algo_class().fewer_updates,
        )
