"""What a run leaves: its folder, its logs, its result, and the evaluation of its policies."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from freewheel.config import Config
from freewheel.errors import RAISED, CheckpointError, ConfigError, EnvError, FreewheelError, quoted
from freewheel.evaluate import evaluate, what_was_cut
from freewheel.imports import find_name
from freewheel.machine.signals import Signals, interrupt, signals_stop
from freewheel.report.csvlog import EpisodesCsv, MetricsCsv
from freewheel.report.progress import Progress
from freewheel.report.sink import Log
from freewheel.report.tensorboard import TensorBoardLog
from freewheel.run.local import Local
from freewheel.run.plan import Setup
from freewheel.run.prepare import NO_EVALUATION, SINK_HINT, can_evaluate
from freewheel.run.sequential import Sequential
from freewheel.store.folder import RunFolder, new_run

Runtime = Sequential | Local


def new_folder(setup: Setup) -> RunFolder:
    config, saved = setup.config, asdict(setup.config)
    if setup.policies is not None:
        saved["policies"] = {name: asdict(own) for name, own in setup.policies.items()}
    return new_run(Path(config.log.folder), config.env, algo_names(setup), config.seed, saved)


def algo_names(setup: Setup) -> str:
    """The algorithm of a run, or the algorithms of several policies: dqn+ppo."""
    return "+".join(dict.fromkeys(config.algo for config in setup.configs.values()))


def logs_for(folder: RunFolder, setup: Setup, first: int) -> list[Log]:
    """`first` is the step at which the run was resumed."""
    config, logs = setup.config, list[Log]()
    if config.log.csv:
        episodes = EpisodesCsv(folder.path / "episodes.csv", has_policies=setup.policies is not None)
        logs += [MetricsCsv(folder.path / "metrics.csv"), episodes]
    if config.log.tensorboard:
        shown = {name: asdict(own) for name, own in setup.configs.items()}
        logs.append(TensorBoardLog(folder.tensorboard, shown if setup.policies else shown[""], first or None))
    return logs + [_own_log(name, folder, config) for name in config.log.sinks]


def _own_log(name: str, folder: RunFolder, config: Config) -> Log:
    make = find_name(name, SINK_HINT)
    try:
        made = make(folder.path, asdict(config))
    except Exception as error:
        raise ConfigError(f"log.sinks: {name} raised {type(error).__name__}: {error}. {SINK_HINT}") from error
    for method in ("open", "write", "close"):
        if not callable(getattr(made, method, None)):
            raise ConfigError(
                f"log.sinks: {name} returned {type(made).__name__}, which has no {method}(). A log has open, write and close."
            )
    if not hasattr(made, "name"):
        made.name = name
    log: Log = made
    return log


class Outcome:
    """Writes what a run leaves into its folder. A full disk is reported once, and does not end the training."""

    def __init__(self, folder: RunFolder, progress: Progress, runtime: Runtime) -> None:
        self.folder, self.progress, self.runtime = folder, progress, runtime
        self._has_failed = False
        self._updates: list[int] = []  # of each policy, when the run began or was resumed

    def write(self, status: str) -> None:
        moment, plan = self.runtime.moment, self.runtime.plan
        self._updates = self._updates or [plan.counts.of(policy.index).updates for policy in plan.policies]
        figures = {"steps": moment.step, "return_mean": moment.return_mean, **_by_policy(self.runtime)}
        try:
            self.folder.write_status(status, **figures)
        except CheckpointError as error:
            if not self._has_failed:
                self.progress.note(f"CheckpointError: {error}")
            self._has_failed = True

    def fail(self) -> None:
        """Training ended with an error."""
        for text in self.runtime.unsaved:
            self.progress.note(f"CheckpointError: {text}")
        self.write("failed")

    def finish(self, setup: Setup, signals: Signals, is_quiet: bool) -> tuple[dict[str, Any], BaseException | None]:
        """Training is complete: evaluates its policies and writes the result. Also returns the error that the run ends with, if any."""
        runtime, result = self.runtime, result_of(self.folder, setup, self.runtime)
        errors: list[BaseException] = [CheckpointError(text) for text in runtime.unsaved]
        try:
            add_evaluation(runtime, result, setup.env, is_quiet, signals)
        except RAISED as raised:
            error = raised if isinstance(raised, FreewheelError) else _failed_evaluation(raised)
            error.args = (
                f"{error} Training is complete; freewheel eval {self.folder.path} plays the evaluation again.",
            )
            errors.append(error)
        is_finished = runtime.moment.step >= runtime.config.steps
        if is_finished:
            _tell_untrained(self.progress, runtime, self._updates)
        self.write("unsaved" if runtime.unsaved else "finished" if is_finished else "stopped")
        try:
            self.folder.write_result(result)
        except CheckpointError as error:
            errors.append(error)
        # After a signal the exit code is the signal's.
        for told in errors if signals.received is not None else errors[1:]:
            self.progress.note(f"{type(told).__name__}: {told}")
        return result, errors[0] if errors and signals.received is None else None


def _failed_evaluation(error: BaseException) -> EnvError:
    found = EnvError(f"the evaluation raised {type(error).__name__}: {quoted(error)}.")
    found.__cause__ = error
    return found


def _tell_untrained(progress: Progress, runtime: Runtime, before: list[int]) -> None:
    """A run may end before a policy's first update, and a resumed one before its next."""
    for policy, pace in zip(runtime.plan.policies, runtime.paces, strict=True):
        counts, began = runtime.plan.counts.of(policy.index), before[policy.index]
        if counts.updates == began > 0:
            which = f"policy {policy.name}" if policy.name else "the policy"
            progress.note(
                f"warning: {which} was not trained further. Give more steps, or save the replay (checkpoint.replay)."
            )
        elif counts.updates == 0:
            which = f"policy {policy.name}" if policy.name else "the policy"
            progress.note(
                f"warning: {which} was not trained: it took {counts.steps:,} steps, and its first update needs at least "
                f"{pace.first_due:,}. Give more steps, or a shorter warm-up or rollout."
            )


def _by_policy(runtime: Runtime) -> dict[str, Any]:
    """Steps, updates, ratio and return of each of several policies; nothing for a single one."""
    plan = runtime.plan
    if len(plan.policies) == 1:
        return {}
    found = {}
    for policy, pace, window in zip(plan.policies, runtime.paces, runtime.windows, strict=True):
        counts = plan.counts.of(policy.index)
        found[policy.name] = {
            "algo": policy.config.algo,
            "steps": counts.steps,
            "updates": counts.updates,
            "ratio": round(pace.achieved(), 4),
            "return_mean": window.mean,
        }
    return {"policies": found}


def result_of(folder: RunFolder, setup: Setup, runtime: Runtime) -> dict[str, Any]:
    config, moment, account = setup.config, runtime.moment, runtime.account
    seconds = max(moment.seconds, 1e-9)
    return {
        "run": str(folder.path),
        "env": config.env,
        "algo": algo_names(setup),
        "runtime": config.runtime,
        "seed": config.seed,
        "steps": moment.step,
        "updates": moment.updates,
        "seconds": round(moment.seconds, 3),
        "steps_per_s": round(moment.step / seconds, 1),
        "updates_per_s": round(moment.updates / seconds, 1),
        "ratio": round(runtime.paces[0].achieved(), 4),
        "return_mean": moment.return_mean,
        "eval_return_mean": None,
        "eval_cut_episodes": 0,
        "eval_sampled": config.eval_sampled,
        "account": account.to_dict() if account else None,
        **_by_policy(runtime),
    }


def add_evaluation(runtime: Runtime, result: dict[str, Any], env: Any, is_quiet: bool, signals: Signals) -> None:
    """Adds each policy's mean return in the evaluation to the result, unless there is nothing to play or a signal ends it."""
    trained, config = runtime.trained(), runtime.config
    if not config.eval_episodes or signals.received is not None:
        return
    with (
        signals_stop(interrupt) as own_signals,
        Progress(config.eval_episodes * len(trained), "evaluation", is_quiet, unit="episodes") as progress,
    ):
        if not can_evaluate(env):
            progress.note(f"No evaluation: {NO_EVALUATION}")
            return
        try:
            played = evaluate(trained, config, env, config.eval_episodes, None, progress)
        except KeyboardInterrupt:
            if own_signals.received is None:
                raise
            signals.received = own_signals.received
            return
        progress.close(sum(len(own.episodes) for own in played))
        if note := what_was_cut(played, config, config.eval_episodes):
            progress.note(note)
    result["eval_return_mean"], result["eval_cut_episodes"] = played[0].mean, sum(own.num_cut for own in played)
    for name, own in zip(result.get("policies", ()), played, strict=False):
        result["policies"][name]["eval_return_mean"] = own.mean
