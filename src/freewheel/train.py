"""Training, from settings to a trained policy: settings → plan → runtime → evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from freewheel.config import Config
from freewheel.errors import exits_are_errors, with_run
from freewheel.films.clips import clips_for
from freewheel.machine.signals import signals_stop
from freewheel.report.account import Account
from freewheel.report.episodes import Episode
from freewheel.report.progress import Progress
from freewheel.report.sink import Sink
from freewheel.run.callback import Callback, Moment
from freewheel.run.outcome import Outcome, algo_names, logs_for, new_folder
from freewheel.run.plan import Setup
from freewheel.run.prepare import prepare_new, prepare_resumed
from freewheel.run.reporter import Reporter
from freewheel.run.runtime import make_runtime
from freewheel.store.load import Policy, load_policy


@dataclass
class Run:
    """The outcome of a training: its folder, its result, its episodes in order, and the trained policy."""

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
        """130 and 143 mean that a signal ended it."""
        return 0 if self.signal is None else 128 + self.signal

    def policy(self, name: str = "") -> Policy:
        return load_policy(self.folder, body=self.body, name=name)


@exits_are_errors()
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
    """Trains a policy and returns its run.

    `env` is a Gymnasium id, module:function, a function that makes an env, an env or a VectorEnv. `settings` has any setting by
    its dotted name: {"learner.lr": 1e-3}. `resume` continues a run, by name or folder; steps and settings that do not change
    what is learned may be given again. `body` is your own network (nn.Module), `loss` your own loss. `policies` has settings
    for each of several policies, by the names of the world's groups.
    """
    named = {"algo": algo, "steps": steps, "seed": seed}
    given = {**{name: value for name, value in named.items() if value is not None}, **(settings or {})}
    if resume is None:
        return _train(prepare_new(env, given, preset, body, loss, policies), callbacks, is_quiet)
    given |= {"preset": preset} if preset != "auto" else {"policies": policies} if policies else {}  # refused there
    return _train(prepare_resumed(env, given, resume, body, loss), callbacks, is_quiet)


def _train(setup: Setup, callbacks: Sequence[Callback], is_quiet: bool) -> Run:
    config, checkpoint = setup.config, setup.checkpoint
    with ExitStack() as stack:
        # Before the folder: a run that cannot work leaves nothing behind.
        runtime = make_runtime(setup)
        stack.callback(runtime.close)
        folder = setup.folder or new_folder(setup)
        runtime.plan.checkpoints = folder.checkpoints
        moment = Moment(folder=folder.path, _runtime=runtime)
        first = checkpoint.state["steps"] if checkpoint else 0
        stack.enter_context(folder.lock())
        sink = stack.enter_context(Sink(logs_for(folder, setup, first)))
        progress = stack.enter_context(Progress(config.steps, f"{config.env} {algo_names(setup)}", is_quiet, first))
        signals = stack.enter_context(signals_stop(moment.stop))
        everybody = [*clips_for(config, setup.env), *callbacks]
        outcome = Outcome(folder, progress, runtime)
        reporter = Reporter(sink, progress, everybody, moment, config.log.every_s, partial(outcome.write, "running"))
        for note in [*setup.notes, *runtime.plan.notes]:
            progress.note(note)
        if checkpoint is not None:
            reporter.resume_at(checkpoint)
        runtime.attach(reporter)
        if checkpoint is not None and (lost := runtime.resume(checkpoint)):
            progress.note(f"Resumed at step {checkpoint.step:,}: {lost}.")
        outcome.write("running")
        try:
            runtime.run()
        except BaseException:
            outcome.fail()
            raise
        progress.close(moment.step)
        result, error = outcome.finish(setup, signals, is_quiet)
        run = Run(folder.path, config, result, reporter.episodes, signals.received, setup.body, runtime.account)
        if error is not None:
            raise with_run(error, run)
        return run
