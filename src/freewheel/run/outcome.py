"""What a run leaves: its folder, its logs, its figures, and how its policies play."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from freewheel.config import Config, to_dict
from freewheel.errors import CheckpointError, ConfigError
from freewheel.evaluate import evaluate
from freewheel.imports import find_name
from freewheel.machine.signals import Interrupted, Signals
from freewheel.report.csvlog import EpisodesCsv, MetricsCsv
from freewheel.report.episodes import Episode
from freewheel.report.progress import Progress
from freewheel.report.sink import Log
from freewheel.report.tensorboard import TensorBoardLog
from freewheel.run.callback import Callback, Moment
from freewheel.run.local import Local
from freewheel.run.prepare import NO_EVALUATION, SINK_HINT, Prepared, can_evaluate
from freewheel.run.sequential import Sequential
from freewheel.store.folder import RunFolder, new_run

Runtime = Sequential | Local


class Recorder(Callback):
    """Keeps the episodes of a run."""

    def __init__(self) -> None:
        self.episodes: list[Episode] = []

    def on_episode(self, moment: Moment, episode: Episode) -> None:
        self.episodes.append(episode)


def new_folder(prepared: Prepared) -> RunFolder:
    config, saved = prepared.config, to_dict(prepared.config)
    if prepared.policies is not None:
        saved["policies"] = {name: to_dict(own) for name, own in prepared.policies.items()}
    return new_run(Path(config.log.folder), config.env, algo_names(prepared), config.seed, saved)


def algo_names(prepared: Prepared) -> str:
    """The algorithm of a run, or of several policies those of all: dqn+ppo."""
    own = prepared.policies or {"": prepared.config}
    return "+".join(dict.fromkeys(config.algo for config in own.values()))


def logs_for(folder: RunFolder, prepared: Prepared, first: int) -> list[Log]:
    config, logs = prepared.config, list[Log]()
    if config.log.csv:
        episodes = EpisodesCsv(folder.episodes_csv, has_policies=prepared.policies is not None)
        logs += [MetricsCsv(folder.metrics_csv), episodes]
    if config.log.tensorboard:
        own = prepared.policies or {"": config}
        shown = {name: to_dict(each) for name, each in own.items()} if prepared.policies else to_dict(config)
        logs.append(TensorBoardLog(folder.tensorboard, shown, first or None))
    logs += [_own_log(name, folder, config) for name in config.log.sinks]
    return logs


def _own_log(name: str, folder: RunFolder, config: Config) -> Log:
    made = find_name(name, SINK_HINT)(folder.path, to_dict(config))
    for method in ("open", "write", "close"):
        if not callable(getattr(made, method, None)):
            raise ConfigError(
                f"log.sinks: {name} gave {type(made).__name__}, which has no {method}(). A log has open, write and close."
            )
    if not hasattr(made, "name"):
        made.name = name
    log: Log = made
    return log


def tell(
    folder: RunFolder, progress: Progress, status: str, runtime: Runtime, result: dict[str, Any] | None = None
) -> None:
    """Writes how the run stands; a disk that is full is told, and does not end a training."""
    moment = runtime.moment
    try:
        folder.write_status(status, steps=moment.step, return_mean=moment.return_mean, **_by_policy(runtime))
        if result is not None:
            folder.write_result(result)
    except CheckpointError as error:
        progress.note(f"CheckpointError: {error}")


def _by_policy(runtime: Runtime) -> dict[str, Any]:
    """Steps, updates, ratio and return of each of several policies, by its name; nothing where there is one."""
    plan = runtime.plan
    if len(plan.policies) == 1:
        return {}
    found = {}
    for policy, (ratio, return_mean) in zip(plan.policies, runtime.standings(), strict=True):
        counts = plan.counts.of(policy.index)
        figures = {"algo": policy.config.algo, "steps": counts.steps, "updates": counts.updates}
        found[policy.name] = {**figures, "ratio": round(ratio, 4), "return_mean": return_mean}
    return {"policies": found}


def result_of(folder: RunFolder, prepared: Prepared, runtime: Runtime) -> dict[str, Any]:
    config, moment, account = prepared.config, runtime.moment, runtime.account()
    seconds = max(moment.seconds, 1e-9)
    return {
        "run": str(folder.path),
        "env": config.env,
        "algo": algo_names(prepared),
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
        **_by_policy(runtime),
    }


def evaluated(runtime: Runtime, result: dict[str, Any], env: Any, is_quiet: bool, signals: Signals) -> None:
    """Adds the mean return of the evaluation, of several policies one for each; none when there is nothing to play, or a signal
    ends it.
    """
    trained, config = runtime.trained(), runtime.config
    if not config.eval_episodes:
        return
    with Progress(config.eval_episodes * len(trained), "evaluation", is_quiet, unit="episodes") as progress:
        if not can_evaluate(env):
            progress.note(f"There is {NO_EVALUATION}.")
            return
        played: list[list[float]] = [[] for _ in trained]

        def show(episode: Episode, group: int) -> None:
            played[group].append(episode.ret)
            if signals.received is not None:
                raise Interrupted
            progress.update(sum(len(own) for own in played), math.fsum(played[group]) / len(played[group]))

        try:
            evaluate(trained, config, env, config.eval_episodes, on_episode=show)
        except Interrupted:
            return
        progress.close(sum(len(own) for own in played))
    means = [math.fsum(own) / len(own) for own in played]
    result["eval_return_mean"] = means[0]
    for name, mean in zip(result.get("policies", ()), means, strict=False):
        result["policies"][name]["eval_return_mean"] = mean
