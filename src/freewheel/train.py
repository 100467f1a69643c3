"""Training, from settings to a trained policy: settings → plan → runtime → evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from freewheel.config import Config
from freewheel.errors import ConfigError
from freewheel.films.clips import clips_for
from freewheel.machine.signals import signals_stop
from freewheel.report.account import Account
from freewheel.report.episodes import Episode
from freewheel.report.progress import Progress
from freewheel.report.sink import Sink
from freewheel.run.callback import Callback, Moment
from freewheel.run.outcome import Recorder, algo_names, evaluated, logs_for, new_folder, result_of, tell
from freewheel.run.prepare import Prepared, prepare_new, prepare_resumed
from freewheel.run.reporter import Reporter
from freewheel.run.runtime import make_runtime
from freewheel.store.folder import RunFolder
from freewheel.store.load import Policy, load_policy


@dataclass
class Run:
    """What a training gave: its folder, its figures, the returns of its episodes in order, and the trained policy."""

    folder: Path
    config: Config
    result: dict[str, Any]
    episodes: list[Episode] = field(repr=False)
    signal: int | None = None
    body: Any = field(default=None, repr=False)
    account: Account | None = field(default=None, repr=False)

    @property
    def returns(self) -> list[float]:
        return [episode.ret for episode in self.episodes]

    @property
    def exit_code(self) -> int:
        """130 and 143 tell that a signal ended it."""
        return 0 if self.signal is None else 128 + self.signal

    def policy(self, name: str = "") -> Policy:
        return load_policy(self.folder, body=self.body, name=name)


def train(
    env: Any = None,
    *,
    algo: str | None = None,
    steps: int | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    policies: Mapping[str, Mapping[str, Any]] | None = None,
    preset: str = "auto",
    resume: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    body: Any = None,
    loss: Any = None,
    is_quiet: bool = False,
) -> Run:
    """Trains a policy and gives its run.

    `env` is a Gymnasium id, module:function, a function that makes an env, an env or a VectorEnv. `settings` has any setting by
    its dotted name, {"learner.lr": 1e-3}. `resume` goes on with a run, by name or folder; steps and the settings that do not
    change what was learned may be given anew. `body` is a network of yours (nn.Module), `loss` a loss of yours. `policies` has
    settings for each of several policies, by the names of the groups of a world that has several.
    """
    named = {"algo": algo, "steps": steps, "seed": seed}
    given = {**{name: value for name, value in named.items() if value is not None}, **(settings or {})}
    if resume is None:
        return _train(prepare_new(env, given, preset, body, loss, policies), callbacks, is_quiet)
    if preset != "auto":
        raise ConfigError(f"preset={preset!r} was given with a run to resume, whose own settings hold. Leave it out.")
    return _train(prepare_resumed(env, given, resume, body, loss), callbacks, is_quiet)


def _train(prepared: Prepared, callbacks: Sequence[Callback], is_quiet: bool) -> Run:
    config, checkpoint = prepared.config, prepared.checkpoint
    with ExitStack() as stack:
        # Before the folder: what cannot work leaves nothing behind.
        runtime = make_runtime(prepared)
        stack.callback(runtime.close)
        folder: RunFolder = prepared.folder or new_folder(prepared)
        runtime.plan.checkpoints = folder.checkpoints
        moment, recorder = Moment(folder=folder.path, _runtime=runtime), Recorder()
        first = checkpoint.state["steps"] if checkpoint else 0
        stack.enter_context(folder.lock())
        sink = stack.enter_context(Sink(logs_for(folder, prepared, first)))
        progress = stack.enter_context(Progress(config.steps, f"{config.env} {algo_names(prepared)}", is_quiet, first))
        signals = stack.enter_context(signals_stop(moment.stop))
        everybody = [recorder, *clips_for(config, prepared.env), *callbacks]
        tell_running = partial(tell, folder, progress, "running", runtime)
        reporter = Reporter(sink, progress, everybody, moment, config.log.every_s, tell_running)
        for note in [*prepared.notes, *runtime.plan.notes]:
            progress.note(note)
        if checkpoint is not None:
            reporter.resume_at(checkpoint)
        runtime.attach(reporter)
        if checkpoint is not None and (lost := runtime.resume(checkpoint)):
            progress.note(f"resumed at step {checkpoint.step:,}: {lost}.")
        tell_running()
        try:
            runtime.run()
        except BaseException:
            tell(folder, progress, "failed", runtime)
            raise
        progress.close(moment.step)
        result = result_of(folder, prepared, runtime)
        if signals.received is None:
            evaluated(runtime, result, prepared.env, is_quiet, signals)
        tell(folder, progress, "finished" if moment.step >= config.steps else "stopped", runtime, result)
        return Run(folder.path, config, result, recorder.episodes, signals.received, prepared.body, runtime.account())
