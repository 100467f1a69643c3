"""The local runtime: actors and learner as processes of their own, joined by shared memory, watched by this process."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from freewheel.actors.infer import Acts, Infer
from freewheel.algos.algo import Loss
from freewheel.config import Config
from freewheel.errors import ConfigError
from freewheel.learners import package, precision
from freewheel.learners.ahead import Ahead
from freewheel.learners.device import cuda_devices, pick_device
from freewheel.learners.ratio import NUM_COUNTS, STEPS, UPDATES, Ratio, slack_of
from freewheel.learners.step import seen_later
from freewheel.memory.counter import Counters
from freewheel.memory.lanes import Lanes
from freewheel.nets.flat import Flat
from freewheel.nets.inputs import has_images
from freewheel.report.account import Account, RoleTime, account, scalars
from freewheel.report.episodes import Episode, Window
from freewheel.report.phases import PHASES, new_ledger
from freewheel.report.progress import Progress
from freewheel.report.sink import Sink
from freewheel.report.usage import Usage, infer_ms
from freewheel.run import form_trial, payoff, state
from freewheel.run.callback import Callback, Moment
from freewheel.run.channel import Message
from freewheel.run.checkpoint import Checkpoint, sweep
from freewheel.run.guard import owner_id
from freewheel.run.helping import make_team
from freewheel.run.job import FIRST_ACTOR, LEARNER, SUPERVISOR, Job
from freewheel.run.layout import Layout, choose
from freewheel.run.learning import build_learner
from freewheel.run.machine import num_cores
from freewheel.run.member import Member
from freewheel.run.parts import build_policy, forecast, seed_of, updates_together
from freewheel.run.placing import place
from freewheel.run.points import arm
from freewheel.run.profile import profiled
from freewheel.run.supervisor import Supervisor
from freewheel.run.world_trial import choose_apart
from freewheel.spec import RowSpec, Space
from freewheel.weights.board import Board
from freewheel.worlds.make import make_world

START, WATCH, LOG, STOP = (PHASES.index(name) for name in ("start", "watch", "log", "stop"))
TICK_S = 0.2


def settled(config: Config, env: Any, layout: Layout) -> tuple[Config, Layout, str, Space, Space]:
    """The settings and the layout with the world that is best here, why, and the spaces of its lanes."""
    choice = choose_apart(env, config.world, layout.actors, config.local.step_timeout_s)
    if choice.reason:
        config = replace(config, world=choice.config)
        layout = choose(config, num_cores())
    # One env shows the spaces; a vector env may be made for its number of lanes alone.
    lanes = layout.lanes_per_actor[0] if config.world.kind == "vector" else 1
    kind: Any = "inline" if config.world.kind == "pool" else config.world.kind
    world = make_world(env, replace(config.world, lanes=lanes, kind=kind), seed_of(config, "probe"))
    world.close()
    return config, layout, choice.reason, world.obs_space, world.action_space


def plan(config: Config, env: Any, body: Any, loss: Loss | None, layout: Layout) -> Job:
    """Shared memory and all that the roles need; what cannot work is refused before any process starts."""
    config, layout, why_world, obs_space, action_space = settled(config, env, layout)
    net, _ = build_policy(config, obs_space, action_space, body, loss)
    spec = RowSpec.of(obs_space, action_space)
    forecast(spec, config.world.lanes, config.replay.rows)
    updates_together(config)  # refuses what does not go together
    job = Job(
        config,
        env,
        body,
        loss,
        obs_space,
        action_space,
        layout,
        Lanes(spec, config.world.lanes, config.replay.rows // config.world.lanes),
        Board(Flat(net).size * 4),
        new_ledger(FIRST_ACTOR + layout.actors),
        Counters(NUM_COUNTS),
        Ratio.of(config),
        slack_of(config),
        Path(),  # the run has no folder yet
        time.monotonic(),
        os.getpid(),
        owner_id(),
    )
    job.why_world = why_world
    job.device = str(pick_device(config.learner.device))
    pick_device(config.local.act_device, "local.act_device")
    job.placing = place(
        job.device,
        config.learner.workers,
        config.local.act_device,
        layout.lanes_per_actor,
        config.learner.ratio,
        cuda_devices(),
    )
    is_apart = config.learner.workers > 1 and not job.device.startswith("cpu")
    if is_apart:
        job.device = job.placing.workers[0]
    chosen, job.why_precision = "fp32", "the fastest here by the trial of the learner's forms"
    if config.learner.precision != "auto" or not has_images(net):
        chosen, job.why_precision = precision.choose(config.learner.precision, job.device.partition(":")[0])
    job.form, job.why_form, job.form_key = form_trial.choose(job, net, num_cores(), chosen)
    if config.local.act_precision == "bf16" and "why" in (found := precision.tried("bf16", "cpu")):
        raise ConfigError(f"local.act_precision=bf16 does not run on this machine ({found['why']}). Leave it out.")
    if is_apart:
        learner = build_learner(job, device="cpu")  # for its shapes: this process computes on no device
        job.team = make_team(learner, net.num_actions, config.learner.workers, num_cores(), is_apart)
        learner.replay.close()
    elif job.device == "cpu":
        learner = build_learner(job)
        if config.learner.workers != 1 and (config.learner.workers or job.form.threads == 1):
            job.team = make_team(learner, net.num_actions, config.learner.workers, num_cores())
        # Where the learner's threads take all cores there is none for a process ahead.
        has_core = num_cores() > job.form.threads
        if config.local.ahead and config.learner.compile != "off" and learner.step.has_later and has_core:
            seen, later = seen_later(*learner.example()), learner.step.later(*learner.example())
            job.ahead = Ahead(learner.step.state.target, seen, later, learner.num_groups)
        learner.replay.close()
    return job


class Local:
    """Runs a job: hears the roles, logs, calls back, and ends with a checkpoint."""

    def __init__(
        self,
        job: Job,
        sink: Sink,
        progress: Progress,
        callbacks: Sequence[Callback],
        moment: Moment,
    ) -> None:
        self.job, self.config, self.moment = job, job.config, moment
        self._sink, self._progress, self._callbacks = sink, progress, callbacks
        self._governor = job.governor()
        self._page = job.ledger.page(SUPERVISOR)
        self._page.start(START)
        self._began_s, self._cpu_before_s = time.monotonic(), time.process_time()
        job.began_s = self._began_s - moment.seconds
        self._window = Window()
        self._usage = Usage()
        self._figures: dict[str, float] = {}
        self._update_s = 0.0
        self._log_due = self._warmup_s = 0.0
        self._has_asked = False
        self._adopt: Message | None = None  # what came of compiling, for a learner that is started anew
        self._compiles = payoff.Decision(job.config, form_trial.known_gain(job))
        self._supervisor = Supervisor(job, progress.note, self._hear)
        self._supervisor.before_last = self._tell_episodes
        self._ratio_target = job.config.learner.ratio
        self._error: BaseException | None = None
        self._account: Account | None = None

    def go_on(self, checkpoint: Checkpoint) -> str | None:
        """Counts from where a saved run was; the learner itself loads the rest. The value says what is not as it was."""
        counts, saved = self.job.counts, checkpoint.state
        self.job.resumed_at = int(saved["steps"])
        counts.add(STEPS, self.job.resumed_at)
        counts.add(UPDATES, int(saved.get("all_updates", saved["updates"])))
        if saved.get("episodes"):
            self._window.set_state(saved["episodes"])
        ratio = self.job.ratio
        if state.REPLAY_FILE in checkpoint.files:
            self.job.lanes.restore(checkpoint.path_of(state.REPLAY_FILE))
            ratio.from_step, ratio.from_updates = int(saved["from_step"]), int(saved["from_updates"])
            return "every lane begins a new episode"
        ratio.from_step, ratio.from_updates = (
            self._governor.steps + self.config.replay.warmup_rows,
            self._governor.updates,
        )
        return "every lane begins a new episode; the replay was not saved and is collected anew"

    def run(self) -> None:
        """Until all steps are taken or somebody stops it; ends with a checkpoint."""
        supervisor, moment = self._supervisor, self.moment
        try:
            arm("supervisor", 0)
            with profiled("supervisor", self.job.folder, self.config.local.profile):
                self._watch()
            self._page.enter(STOP)
            self._account = self._add_up()
        finally:
            supervisor.close()
            package.sweep()
            with contextlib.suppress(OSError):
                sweep(self.job.checkpoints)  # of a learner that was ended while it saved
        self._sink.scalars(moment.step, scalars(self._account))
        if self._error is not None:
            raise self._error
        if supervisor.failed is not None:
            raise supervisor.failed

    def _watch(self) -> None:
        """Over the roles, until the last has ended."""
        supervisor, page = self._supervisor, self._page
        supervisor.start()
        self._begin_to_compile()
        while not supervisor.is_over:
            page.enter(WATCH)
            supervisor.tick(TICK_S)
            page.enter(LOG)
            self._look()
            if self.moment.is_stopping:
                supervisor.stop(is_urgent=True)
            self._decide_to_compile()
        self._look()

    def _begin_to_compile(self) -> None:
        if self.config.learner.compile == "on":
            self._supervisor.compile()

    def account(self) -> Account | None:
        return self._account

    def ratio(self) -> float:
        return self.job.ratio.achieved(self._governor.steps, self._governor.updates)

    def infer(self) -> Acts:
        """The policy with the weights that were published last, to evaluate it."""
        job = self.job
        net, algo = build_policy(job.config, job.obs_space, job.action_space, job.body, job.loss)
        flat = Flat(net)
        vector = flat.vector(net)
        job.board.fetch(vector)
        flat.bind(net, vector).eval().requires_grad_(False)
        return Infer(net, algo, job.action_space.dtype, seed_of(job.config, "noise"))

    def set_epsilon(self, epsilon: float | None) -> None:
        for actor in self._supervisor.actors:
            self._supervisor.tell(actor, {"epsilon": epsilon})

    def metrics(self) -> dict[str, float]:
        return self._figures

    def _hear(self, member: Member, message: Message) -> None:
        for row in message.get("episodes", ()):
            self._finish(Episode(*row))
        if "figures" in message:
            self._figures, self._update_s = message["figures"], message["update_s"]
            if message["doubt"]:
                self._progress.note(f"warning: {message['doubt']}.")
        if "note" in message:
            self._progress.note(message["note"])
        if "helpers" in message:
            self._supervisor.help()
        if "late_worker" in message:
            self._supervisor.replace_late(message["late_worker"])
        if "saved" in message:
            self._call("on_checkpoint", Path(message["saved"]))
        if message.get("package"):
            self._adopt = {"adopt": message["package"]}
            if self.job.ahead is not None:
                self._supervisor.go_ahead(message["package"][1])
            self._supervisor.tell(self._supervisor.learner, self._adopt)
        if "compiler_ended" in message and message["compiler_ended"] != 0:
            self._progress.note(f"the update could not be compiled ({message['why']}): training goes on eagerly.")
            self._adopt = {"adopt": None}
            self._supervisor.tell(self._supervisor.learner, self._adopt)
        if "stack" in message and member is self._supervisor.learner and self._adopt is not None:
            self._supervisor.tell(member, self._adopt)
        if "compiled" in message:
            self._progress.note(f"compiled updates from update {self._governor.updates:,} on.")

    def _finish(self, episode: Episode) -> None:
        self._window.add(episode.ret)
        self.moment.return_mean = self._window.mean
        self._sink.episode(episode)
        self._call("on_episode", episode)

    def _call(self, name: str, *given: Any) -> None:
        """A callback that fails ends the run, with a checkpoint."""
        if self._error is not None:
            return
        try:
            for callback in self._callbacks:
                getattr(callback, name)(self.moment, *given)
        except BaseException as error:
            self._error = error
            self.moment.stop()

    def _look(self) -> None:
        """What the counts say by now: for callbacks, the log and the progress line."""
        moment, governor = self.moment, self._governor
        steps, updates = governor.steps, governor.updates
        moment.seconds = time.monotonic() - self.job.began_s
        if steps != moment.step:
            moment.step = steps
            self._call("on_step")
        if updates != moment.updates:
            if not self._warmup_s:  # what the learner waited for its first rows, nobody is to blame for
                self._warmup_s = self.job.ledger.snapshot(LEARNER).phases_ns["wait_data"] / 1e9
            moment.updates = updates
            self._call("on_update")
        if moment.seconds >= self._log_due:
            self._log_due = moment.seconds + self.config.log.every_s
            self._sink.scalars(steps, self._scalars())
            self._tell_episodes()
        if self._progress.is_due(steps):
            self._progress.update(steps, moment.return_mean, self._figures.get("loss"), self._epsilon(), self.ratio())

    def _tell_episodes(self) -> None:
        """The learner saves checkpoints, and this belongs in them."""
        self._supervisor.tell(self._supervisor.learner, {"episodes": self._window.state()})

    def _decide_to_compile(self) -> None:
        if self.config.learner.compile != "auto" or self.config.learner.workers > 1 or not self._update_s:
            return
        note = self._compiles.ask(self._governor.steps, self._governor.updates, self._update_s)
        if note is not None:
            self._progress.note(note)
        if self._compiles.wants is not None and not self._has_asked:
            self._has_asked = True
            self._supervisor.compile(only_found=not self._compiles.wants)

    def _epsilon(self) -> float | None:
        return self.job.ledger.snapshot(FIRST_ACTOR).gauges["epsilon"]

    def _scalars(self) -> dict[str, float]:
        moment, ledger = self.moment, self.job.ledger
        learner = ledger.snapshot(LEARNER)
        actors = [ledger.snapshot(FIRST_ACTOR + i) for i in range(self.job.layout.actors)]
        samples = moment.updates * self.job.ratio.batch_size
        found = {
            "train/updates": float(moment.updates),
            "train/seconds": moment.seconds,
            "train/ratio": self.ratio(),
            "train/epsilon": sum(actor.gauges["epsilon"] for actor in actors) / len(actors),
            "train/sample_age": learner.gauges["sample_age"],
            "train/policy_lag": learner.gauges["policy_lag"],
            "train/version": learner.gauges["version"],
            "train/redraws": float(learner.counters["redraws"]),
            "train/stale_priorities": float(learner.counters["stale_priorities"]),
            "train/dropped_rows": float(sum(actor.counters["dropped_rows"] for actor in actors)),
            "train/lost_rows": float(sum(actor.counters["rows_begun"] - actor.counters["rows"] for actor in actors)),
            "train/dropped_logs": float(self._sink.num_dropped),
            "train/dropped_messages": float(sum(role.counters["dropped_messages"] for role in (learner, *actors))),
            "train/cut_episodes": float(sum(actor.counters["cut_episodes"] for actor in actors)),
            "train/restarts": float(self._supervisor.num_deaths),
            "train/lock_wait": 0.0,  # no role takes a lock that another one holds
            "train/queue_depth": float(max(self._governor.due(), 0)),  # updates that are due
            **{f"learner/{name}": value for name, value in self._figures.items()},
            **self._usage.figures({"steps": moment.step, "updates": moment.updates, "samples": samples}),
            **infer_ms(actors),
            **self._supervisor.usage(),
            **scalars(self._add_up()),
        }
        if moment.return_mean is not None:
            found["train/return_mean"] = moment.return_mean
        return found

    def _add_up(self) -> Account:
        own = RoleTime.of(
            "supervisor",
            "supervisor",
            self.job.ledger.snapshot(SUPERVISOR),
            time.monotonic() - self._began_s,
            cpu_s=time.process_time() - self._cpu_before_s,
        )
        return account(
            [*self._supervisor.times(), own],
            ratio_target=self._ratio_target,
            ratio=self.ratio(),
            is_free=self.config.local.free,
            warmup_s=self._warmup_s,
        )
