"""The local runtime: actors and learners as processes of their own, joined by shared memory, watched by this process."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from freewheel.learners import package
from freewheel.machine.fault_points import arm
from freewheel.report.account import Account, RoleTime, account
from freewheel.report.episodes import Episode, Window
from freewheel.report.phases import PHASES, epsilon_of
from freewheel.report.profile import profiled
from freewheel.report.usage import Usage, infer_ms
from freewheel.run import state
from freewheel.run.build import Acting, build_pace
from freewheel.run.channel import Message
from freewheel.run.compiling import Compiling
from freewheel.run.member import Member
from freewheel.run.plan import FIRST_LEARNER, SUPERVISOR, Plan
from freewheel.run.reporter import Reporter
from freewheel.run.supervisor import Supervisor
from freewheel.store.checkpoint import Checkpoint, sweep
from freewheel.store.load import Trained

START, WATCH, LOG, STOP = (PHASES.index(name) for name in ("start", "watch", "log", "stop"))
TICK_S = 0.2


class Local:
    """Runs a plan: hears the roles, logs, calls back, and ends with a checkpoint."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.config = plan, plan.config
        self._paces = [build_pace(plan, policy, policy.algo()) for policy in plan.policies]
        self._windows = [Window() for _ in plan.policies]
        self._usage = Usage()
        self._metrics_of: list[dict[str, float]] = [{} for _ in plan.policies]
        self._warmup_s = 0.0
        self._error: BaseException | None = None
        self._account: Account | None = None

    def close(self) -> None:
        """Nothing to do: shared memory goes with the last that holds it."""

    def attach(self, reporter: Reporter) -> None:
        """Tells what it does to the reporter; the run begins now."""
        self._reporter, self.moment = reporter, reporter.moment
        self._page = self.plan.ledger.page(SUPERVISOR)
        self._page.start(START)
        self._began_s, self._cpu_before_s = time.monotonic(), time.process_time()
        self.plan.began_s = self._began_s - self.moment.seconds
        self._supervisor = Supervisor(self.plan, reporter.note, self._hear)
        self._supervisor.before_last = self._tell_episodes
        self._compiling = [
            Compiling(self.plan, policy, self._supervisor, reporter.note) for policy in self.plan.policies
        ]

    def resume(self, checkpoint: Checkpoint) -> str | None:
        """Counts from where a saved run was; the learners themselves load the rest. The value says what is not as it was."""
        plan = self.plan
        state.restore_counts(plan, checkpoint)
        notes = ["every lane begins a new episode"]
        for policy, pace, window in zip(plan.policies, self._paces, self._windows, strict=True):
            _, saved = state.part_of(checkpoint, policy)
            if saved.get("episodes"):
                window.set_state(saved["episodes"])
            name = f"{policy.name}-replay.bin" if policy.name else "replay.bin"
            has_rows = name in checkpoint.files
            if has_rows:
                policy.lanes.restore(checkpoint.path_of(name))
            notes += pace.resume(saved, policy.lanes if has_rows else None)
            policy.pace_state = pace.counted_from()
        return "; ".join(dict.fromkeys(notes))

    def run(self) -> None:
        """Until all steps are taken or somebody stops it; ends with a checkpoint."""
        supervisor = self._supervisor
        try:
            arm("supervisor", 0)
            with profiled("supervisor", self.plan.folder, self.config.local.profile):
                self._watch()
            self._page.enter(STOP)
            self._account = self._add_up()
        finally:
            supervisor.close()
            package.sweep()
            for policy in self.plan.policies:
                with contextlib.suppress(OSError):
                    sweep(policy.checkpoints(self.plan))  # of a learner that was ended while it saved
        self._reporter.log(self._account.metrics())
        if self._error is not None:
            raise self._error
        if supervisor.failed is not None:
            raise supervisor.failed

    def _watch(self) -> None:
        """Over the roles, until the last has ended."""
        supervisor, page = self._supervisor, self._page
        supervisor.start()
        for one in self._compiling:
            one.begin()
        while not supervisor.is_over:
            page.enter(WATCH)
            supervisor.tick(TICK_S)
            page.enter(LOG)
            self._look()
            if self.moment.is_stopping:
                supervisor.stop(is_urgent=True)
            for one in self._compiling:
                one.decide()
        self._look()

    def account(self) -> Account | None:
        return self._account

    def ratio(self) -> float:
        return float(self._paces[0].achieved())

    def standings(self) -> list[tuple[float, float | None]]:
        """Ratio and mean return of each policy."""
        return [(float(pace.achieved()), own.mean) for pace, own in zip(self._paces, self._windows, strict=True)]

    def trained(self) -> list[Trained]:
        """The policies with the weights that were published last."""
        found = []
        for policy in self.plan.policies:
            acting = Acting(policy, policy.seed, range(1))
            acting.weights.fetch()
            found.append(Trained(acting.algo, acting.net, policy.config))
        return found

    def metrics(self) -> dict[str, float]:
        pairs = zip(self.plan.policies, self._metrics_of, strict=True)
        return {f"{policy.prefix}{name}": value for policy, own in pairs for name, value in own.items()}

    def _hear(self, member: Member, message: Message) -> None:
        for index, *row in message.get("episodes", ()):
            self._finish(int(index), Episode(*row))
        if "metrics" in message:
            assert member.policy is not None
            self._metrics_of[member.policy] = message["metrics"]
            if message["warning"]:
                self._reporter.note(f"warning: {message['warning']}.")
        if "note" in message:
            self._reporter.note(message["note"])
        if "workers" in message and member.policy is not None:
            self._supervisor.start_workers(member.policy)
        if "late_worker" in message and member.policy is not None:
            self._supervisor.replace_late(member.policy, message["late_worker"])
        if "saved" in message:
            self._call("on_checkpoint", Path(message["saved"]))
        if member.policy is not None:
            self._compiling[member.policy].hear(member, message)

    def _finish(self, index: int, episode: Episode) -> None:
        self._windows[index].add(episode.ret)
        self.moment.return_mean = self._windows[0].mean
        self._guarded(lambda: self._reporter.episode(episode, self.plan.policies[index].name))

    def _call(self, name: str, *given: Any) -> None:
        self._guarded(lambda: self._reporter.call(name, *given))

    def _guarded(self, call: Any) -> None:
        """A callback that fails ends the run, with a checkpoint."""
        if self._error is not None:
            return
        try:
            call()
        except BaseException as error:
            self._error = error
            self.moment.stop()

    def _look(self) -> None:
        """What the counts say by now: for callbacks, the log and the progress line."""
        moment, counts, progress = self.moment, self.plan.counts, self._reporter.progress
        steps, updates = counts.steps, counts.updates
        moment.seconds = time.monotonic() - self.plan.began_s
        if steps != moment.step:
            moment.step = steps
            self._call("on_step")
        if updates != moment.updates:
            if not self._warmup_s:  # what the learner waited for its first rows, nobody is to blame for
                self._warmup_s = self.plan.ledger.snapshot(FIRST_LEARNER).phases_ns["wait_data"] / 1e9
            moment.updates = updates
            self._call("on_update")
        if self._reporter.is_due():
            self._reporter.log(self._scalars())
            self._tell_episodes()
        if progress.is_due(steps):
            loss, epsilon = self._metrics_of[0].get("loss"), self._epsilon(0)
            progress.update(steps, moment.return_mean, loss, epsilon, self.ratio())

    def _tell_episodes(self) -> None:
        """A learner saves checkpoints, and this belongs in them."""
        windows = [window.state() for window in self._windows]
        for learner in self._supervisor.learners:
            self._supervisor.tell(learner, {"episodes": windows})

    def _epsilon(self, index: int) -> float | None:
        has_it = "epsilon" in self.plan.policies[index].algo_class().dials
        return self.plan.ledger.snapshot(self.plan.first_actor).gauges[epsilon_of(index)] if has_it else None

    def _scalars(self) -> dict[str, float]:
        moment, plan, ledger = self.moment, self.plan, self.plan.ledger
        learners = [ledger.snapshot(FIRST_LEARNER + i) for i in range(len(plan.policies))]
        actors = [ledger.snapshot(plan.first_actor + i) for i in range(plan.layout.actors)]
        samples = sum(learner.counters["samples"] for learner in learners)
        found: dict[str, float] = {
            "train/updates": float(moment.updates),
            "train/seconds": moment.seconds,
            "train/dropped_rows": float(sum(actor.counters["dropped_rows"] for actor in actors)),
            "train/lost_rows": float(sum(actor.counters["rows_begun"] - actor.counters["rows"] for actor in actors)),
            "train/dropped_logs": float(self._reporter.sink.num_dropped),
            "train/dropped_messages": float(sum(one.counters["dropped_messages"] for one in (*learners, *actors))),
            "train/cut_episodes": float(sum(actor.counters["cut_episodes"] for actor in actors)),
            "train/restarts": float(self._supervisor.num_deaths),
            **self._usage.metrics({"steps": moment.step, "updates": moment.updates, "samples": samples}),
            **infer_ms(actors),
            **self._supervisor.usage(),
            **self._add_up().metrics(),
        }
        for i, policy in enumerate(plan.policies):
            found |= {f"{policy.prefix}{name}": value for name, value in self._policy_scalars(i, learners[i]).items()}
        return found

    def _policy_scalars(self, index: int, learner: Any) -> dict[str, float]:
        policy, pace = self.plan.policies[index], self._paces[index]
        own: dict[str, float | None] = {
            "train/ratio": pace.achieved(),
            "train/epsilon": self._epsilon(index),
            "train/policy_lag": learner.gauges["policy_lag"],
            "train/version": learner.gauges["version"],
            "train/queue_depth": float(max(pace.backlog(), 0)),  # what is due and waits for the learner
            "train/return_mean": self._windows[index].mean,
            **({name: learner.gauges[name.rpartition("/")[2]] for name in ("train/sample_age",)}),
            **{f"train/{name}": float(learner.counters[name]) for name in ("redraws", "stale_priorities")},
            **{f"dial/{name}": value for name, value in policy.dials.state().items()},
            **{f"learner/{name}": value for name, value in self._metrics_of[index].items()},
        }
        left_out = () if policy.bootstraps is None else ("train/sample_age", "train/redraws", "train/stale_priorities")
        return {name: value for name, value in own.items() if value is not None and name not in left_out}

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
            ratio_target=self._paces[0].target,
            ratio=self.ratio(),
            is_free=self.config.local.free,
            warmup_s=self._warmup_s,
        )
