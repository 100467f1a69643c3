"""Training, from settings to a trained policy: build the parts in order, run, stop, evaluate."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from freewheel.actors.infer import Acts
from freewheel.algos.algo import Loss
from freewheel.config import ON_POLICY, Config, assemble, from_dict, to_dict
from freewheel.config.check import refuse_in_turn
from freewheel.errors import CheckpointError, ConfigError
from freewheel.nets.build import GIVEN
from freewheel.report.account import Account
from freewheel.report.csvlog import EpisodesCsv, MetricsCsv
from freewheel.report.episodes import Episode
from freewheel.report.progress import Progress
from freewheel.report.sink import Log, Sink
from freewheel.report.tensorboard import TensorBoardLog
from freewheel.run.callback import Callback, Moment
from freewheel.run.checkpoint import Checkpoint, load_newest
from freewheel.run.clip import Clips
from freewheel.run.evaluate import evaluate
from freewheel.run.folder import DEFAULT_ROOT, RunFolder, new_run, open_run
from freewheel.run.job import Job
from freewheel.run.layout import Layout, choose
from freewheel.run.leaving import cannot_leave
from freewheel.run.local import Local, plan
from freewheel.run.local_on_policy import LocalOnPolicy, plan_on_policy
from freewheel.run.machine import num_cores
from freewheel.run.on_policy import OnPolicy
from freewheel.run.on_policy_parts import PolicyParts, build_on_policy
from freewheel.run.parts import Parts, build
from freewheel.run.policy import Policy, load_policy
from freewheel.run.refuse import NO_EVALUATION, can_evaluate, lanes_of, refuse_without_effect
from freewheel.run.sequential import Sequential
from freewheel.run.stopping import Interrupted, Signals, signals_stop
from freewheel.worlds.make import env_name


@dataclass
class Run:
    """What a training gave: its folder, its figures, the returns of its episodes, and the trained policy."""

    folder: Path
    config: Config
    result: dict[str, Any]
    episodes: list[Episode] = field(repr=False)
    signal: int | None = None
    body: Any = field(default=None, repr=False)
    account: Account | None = field(default=None, repr=False)

    @property
    def returns(self) -> list[float]:
        """Of the episodes in the order in which they ended."""
        return [episode.ret for episode in self.episodes]

    def policy(self) -> Policy:
        return load_policy(self.folder, body=self.body)


class Recorder(Callback):
    """Keeps the episodes of a run."""

    def __init__(self) -> None:
        self.episodes: list[Episode] = []

    def on_episode(self, moment: Moment, episode: Episode) -> None:
        self.episodes.append(episode)


def train(
    env: Any = None,
    *,
    algo: str | None = None,
    steps: int | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    preset: str = "auto",
    resume: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    body: Any = None,
    loss: Loss | None = None,
    is_quiet: bool = False,
) -> Run:
    """Trains a policy and gives its run.

    `env` is a Gymnasium id, module:function, a function that makes an env, an env or a VectorEnv. `settings` has any setting by
    its dotted name, {"learner.lr": 1e-3}. `resume` goes on with a run, by name or folder; steps and the settings that do not
    change what was learned may be given anew. `body` is a network of yours (nn.Module), `loss` a loss of yours.
    """
    named = {"algo": algo, "steps": steps, "seed": seed}
    given = {**{name: value for name, value in named.items() if value is not None}, **(settings or {})}
    if resume is not None:
        if preset != "auto":
            raise ConfigError(
                f"preset={preset!r} was given with a run to resume, whose own settings hold. Leave it out."
            )
        return _resume(env, given, resume, callbacks, body, loss, is_quiet)
    if env is None:
        raise ConfigError(
            "train() needs an env: a Gymnasium id, module:function, a function that makes an env, or an env."
        )
    if body is not None:
        given["net.body"] = GIVEN + getattr(body, "__name__", type(body).__name__)
    lanes = lanes_of(env)
    if lanes is not None and given.setdefault("world.lanes", lanes) != lanes:
        raise ConfigError(
            f"{env_name(env)} is an env object with {lanes} lanes of its own, not world.lanes={given['world.lanes']}. "
            "Leave that out, or give the env's id or a function that makes it."
        )
    config = assemble(env_name(env), given, preset)
    config, layout, why = arrange(config, env, body, loss, is_bound="runtime" in given)
    refuse_in_turn(config, given)
    made = _make(config, layout, env, body, loss)  # before the folder: what cannot work leaves nothing behind
    try:
        refuse_without_effect(config, given, env, made, loss)
        folder = new_run(Path(config.log.folder), config.env, config.algo, config.seed, to_dict(config))
        return _train(folder, config, made, env, None, callbacks, body, is_quiet, why)
    finally:
        made.close()


# A resumed run may change these: they say how long and how it is told, not what is learned.
MAY_CHANGE = (
    "steps",
    "eval_episodes",
    "eval_sampled",
    "checkpoint.",
    "log.",
    "local.",
    "learner.compile",
    "learner.threads",
    "learner.memory_format",
    "learner.precision",
    "learner.device",
    "learner.workers",
    "explore.override",
)


def _resume(
    env: Any,
    given: dict[str, Any],
    resume: str | Path,
    callbacks: Sequence[Callback],
    body: Any,
    loss: Loss | None,
    is_quiet: bool,
) -> Run:
    for name in given:
        if not name.startswith(MAY_CHANGE):
            raise ConfigError(
                f"{name} was given with a run to resume, whose own setting holds. Those that may change: "
                f"{', '.join(MAY_CHANGE)}. Start a new run for the others."
            )
    folder = open_run(resume, Path(given.get("log.folder", DEFAULT_ROOT)))
    config = from_dict(folder.config(), given)
    checkpoint = load_newest(folder.checkpoints)
    if checkpoint.state["steps"] >= config.steps:
        raise ConfigError(
            f"run {folder.name} has taken {checkpoint.state['steps']:,} of {config.steps:,} steps: there is nothing left to "
            "do. Give more steps to go on."
        )
    named = checkpoint.state.get("loss")
    if (named is None) != (loss is None):
        raise ConfigError(
            f"run {folder.name} was trained with {'the loss of its algorithm' if named is None else f'a loss of yours ({named})'}: "
            f"{'leave loss= out' if named is None else 'give it again as loss=...'}."
        )
    env = config.env if env is None else env
    config, layout, why = arrange(config, env, body, loss)
    refuse_in_turn(config, given)
    made = _make(config, layout, env, body, loss)
    try:
        refuse_without_effect(config, given, env, made, loss)
        return _train(folder, config, made, env, checkpoint, callbacks, body, is_quiet, why)
    finally:
        made.close()


def arrange(
    config: Config, env: Any, body: Any, loss: Loss | None, is_bound: bool = True
) -> tuple[Config, Layout, str]:
    """The runtime that these settings mean here, and the note that the user should read, if there is one.

    A runtime that only a preset prefers is not `is_bound`: it gives way where it cannot be.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ConfigError(
            "train() was called while a process of a run was importing your script. Put what the script does under "
            "if __name__ == '__main__':, or set runtime='sequential'."
        )
    layout = choose(config, num_cores())
    why = ""
    if layout.runtime == "local" and (hindrance := cannot_leave(env, body, loss)):
        if config.runtime == "local" and is_bound:
            raise ConfigError(
                f"runtime=local cannot be: {hindrance}. Set runtime to sequential, or give it another way."
            )
        why = f"runtime=sequential, because {hindrance}."
        layout = choose(replace(config, runtime="sequential"), num_cores())
    return replace(config, runtime=layout.runtime), layout, why


def _make(config: Config, layout: Layout, env: Any, body: Any, loss: Loss | None) -> Parts | PolicyParts | Job:
    if config.algo in ON_POLICY:
        if loss is not None:
            raise ConfigError(f"algo={config.algo} has its own loss: leave loss= out.")
        if layout.runtime == "local":
            return plan_on_policy(config, env, body, layout)
        return build_on_policy(config, env, body)
    if layout.runtime == "local":
        return plan(config, env, body, loss, layout)
    return build(config, env, body, loss)


def _train(
    folder: RunFolder,
    config: Config,
    made: Parts | PolicyParts | Job,
    env: Any,
    checkpoint: Checkpoint | None,
    callbacks: Sequence[Callback],
    body: Any,
    is_quiet: bool,
    why: str,
) -> Run:
    moment, recorder = Moment(folder=folder.path), Recorder()
    first = checkpoint.state["steps"] if checkpoint else 0
    with (
        folder.lock(),
        Sink(_logs(folder, config, first)) as sink,
        Progress(config.steps, f"{config.env} {config.algo}", is_quiet, first) as progress,
        signals_stop(moment.stop) as signals,
    ):
        if why:
            progress.note(why)
        if isinstance(made, Job) and made.why_world:
            progress.note(f"world.kind={made.config.world.kind}: {made.why_world}")
        if isinstance(made, Job) and made.why_form:
            progress.note(f"{made.why_form}.")
        if config.learner.precision != "fp32":
            progress.note(f"precision={made.precision}: {made.why_precision}.")
        if checkpoint is not None:
            _resume_at(checkpoint, moment, progress)
        runtime: Sequential | OnPolicy | Local
        all_callbacks = [recorder, *_clips(config, env), *callbacks]
        if isinstance(made, Job):
            made.checkpoints = folder.checkpoints
            local = LocalOnPolicy if made.is_on_policy else Local
            runtime = local(made, sink, progress, all_callbacks, moment)
        elif isinstance(made, PolicyParts):
            runtime = OnPolicy(made, config, folder.checkpoints, sink, progress, all_callbacks, moment)
        else:
            runtime = Sequential(made, config, folder.checkpoints, sink, progress, all_callbacks, moment)
        moment._runtime = runtime
        if checkpoint is not None and (note := runtime.go_on(checkpoint)):
            progress.note(f"resumed at step {checkpoint.step:,}: {note}.")
        _tell(folder, progress, "running", moment)
        try:
            runtime.run()
        except BaseException:
            _tell(folder, progress, "failed", moment)
            raise
        progress.close(moment.step)
        result = _figures(folder, config, runtime)
        if signals.received is None:
            result["eval_return_mean"] = _evaluated(runtime.infer(), config, env, is_quiet, signals)
        _tell(folder, progress, "finished" if moment.step >= config.steps else "stopped", moment, result)
    return Run(folder.path, config, result, recorder.episodes, signals.received, body, runtime.account())


def _clips(config: Config, env: Any) -> list[Callback]:
    if not (config.log.clip_every_steps and config.log.tensorboard) or lanes_of(env) is not None:
        return []
    return [Clips(config.log.clip_every_steps, env=env)]


def _tell(
    folder: RunFolder, progress: Progress, status: str, moment: Moment, result: dict[str, Any] | None = None
) -> None:
    """Writes how the run stands; a disk that is full is told, and does not end a training."""
    try:
        folder.write_status(status, steps=moment.step, return_mean=moment.return_mean)
        if result is not None:
            folder.write_result(result)
    except CheckpointError as error:
        progress.note(f"CheckpointError: {error}")


def _logs(folder: RunFolder, config: Config, first: int) -> list[Log]:
    logs: list[Log] = []
    if config.log.csv:
        logs += [MetricsCsv(folder.metrics_csv), EpisodesCsv(folder.episodes_csv)]
    if config.log.tensorboard:
        logs.append(TensorBoardLog(folder.tensorboard, to_dict(config), first or None))
    return logs


def _resume_at(checkpoint: Checkpoint, moment: Moment, progress: Progress) -> None:
    for warning in checkpoint.warnings:
        progress.note(f"warning: {warning}")
    moment.step, moment.updates = checkpoint.state["steps"], checkpoint.state["updates"]
    moment.seconds = checkpoint.state["seconds"]


def _figures(folder: RunFolder, config: Config, runtime: Sequential | OnPolicy | Local) -> dict[str, Any]:
    moment, account = runtime.moment, runtime.account()
    seconds = max(moment.seconds, 1e-9)
    return {
        "run": str(folder.path),
        "env": config.env,
        "algo": config.algo,
        "runtime": config.runtime,
        "seed": config.seed,
        "steps": moment.step,
        "updates": moment.updates,
        "seconds": round(moment.seconds, 3),
        "steps_per_s": round(moment.step / seconds, 1),
        "updates_per_s": round(moment.updates / seconds, 1),
        "ratio": round(runtime.ratio(), 4),
        "return_mean": moment.return_mean,
        "eval_return_mean": None,
        "eval_sampled": config.eval_sampled,
        "account": account.to_dict() if account else None,
    }


def _evaluated(infer: Acts, config: Config, env: Any, is_quiet: bool, signals: Signals) -> float | None:
    """None when there is nothing to play, or a signal ends it."""
    if not config.eval_episodes:
        return None
    with Progress(config.eval_episodes, "evaluation", is_quiet, unit="episodes") as progress:
        if not can_evaluate(env):
            progress.note(f"There is {NO_EVALUATION}.")
            return None
        played: list[Episode] = []

        def show(episode: Episode) -> None:
            played.append(episode)
            if signals.received is not None:
                raise Interrupted
            progress.update(len(played), math.fsum(e.ret for e in played) / len(played))

        try:
            evaluate(infer, config, env, config.eval_episodes, on_episode=show)
        except Interrupted:
            return None
        progress.close(len(played))
    return math.fsum(episode.ret for episode in played) / len(played)


def exit_code(run: Run) -> int:
    """130 and 143 tell that a signal ended it."""
    return 0 if run.signal is None else 128 + run.signal
