"""`freewheel eval RUN`: plays episodes with a trained agent and shows their returns."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import tyro

from freewheel.config.check import check
from freewheel.errors import ConfigError, EnvError, FreewheelError
from freewheel.machine.process import start_forkserver
from freewheel.machine.signals import interrupt, signals_stop
from freewheel.machine.threads import limit_threads
from freewheel.report.progress import number
from freewheel.store.folder import DEFAULT_ROOT, IDENTITY, open_run

if TYPE_CHECKING:
    from freewheel.config import Config
    from freewheel.evaluate import Played
    from freewheel.report.episodes import Episode
    from freewheel.store.checkpoint import Checkpoint
    from freewheel.store.load import Policy


@dataclass(frozen=True)
class RunArgs:
    """Which agent acts, and in which env."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Name of a run, its folder, or the folder of one checkpoint."""

    env: str | None = None
    """Another env with the same spaces; by default the env that it was trained on."""

    kwargs: str | None = None
    """Keyword arguments for the env, as a JSON object; by default the run's."""

    seed: int | None = None
    """Seed of the episodes; by default the seed of the evaluation after training."""

    root: Path = DEFAULT_ROOT
    """Where the runs are."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the result as a JSON object on the last line."""

    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Do not show progress."""


@dataclass(frozen=True)
class EvalArgs(RunArgs):
    """Play episodes with a trained agent, from its newest complete checkpoint, and show their returns."""

    episodes: int = 100
    """Number of episodes."""

    max_steps: int | None = None
    """Cut an episode that has not ended after this many steps, 0 for never; by default the run's eval_max_steps."""

    timeout_s: float | None = None
    """Time limit in seconds: episodes that are still running are cut; by default the run's eval_timeout_s."""

    actions: Literal["run", "greedy", "sampled"] = "run"
    """greedy: the best or most likely action; sampled: from a stochastic policy, as in training; run: as the run's eval_sampled says."""


@dataclass(frozen=True)
class Agent:
    """A trained policy, and the env in which it acts, with its settings."""

    checkpoint: Checkpoint
    policy: Policy
    config: Config
    env: str
    name: str = ""  # of its policy, if the run has several

    @property
    def run(self) -> Path | None:
        """The folder of its run; None for a checkpoint outside of one."""
        above = self.checkpoint.path.absolute().parents[1:3]  # each of several policies may have its own folder
        return next((folder for folder in above if (folder / IDENTITY).is_file()), None)

    def figures(self) -> dict[str, Any]:
        return {
            "run": str(self.run or self.checkpoint.path),
            "env": self.env,
            "algo": self.config.algo,
            "checkpoint": str(self.checkpoint.path),
            "step": self.checkpoint.step,
        }


def main(arguments: Sequence[str]) -> int:
    args = tyro.cli(EvalArgs, prog="freewheel eval", args=list(arguments))
    check_episodes(args.episodes)
    given = {"eval_max_steps": args.max_steps, "eval_timeout_s": args.timeout_s}
    given |= {"eval_sampled": None if args.actions == "run" else args.actions == "sampled"}
    own: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    agents = [replace(agent, config=replace(agent.config, **own)) for agent in load_agents(args)]
    for agent in agents:
        check(agent.config)
    return until_signal(partial(_evaluate, agents, args))


def until_signal(work: Callable[[], None]) -> int:
    """The exit code of a command that the first Ctrl-C or SIGTERM ends."""
    with signals_stop(interrupt) as signals:
        try:
            work()
        except KeyboardInterrupt:
            if signals.received in (None, signal.SIGINT):
                raise
            print("terminated", file=sys.stderr)
            return 128 + signals.received
    return 0


def _evaluate(agents: Sequence[Agent], args: EvalArgs) -> None:
    began_s = time.monotonic()
    played = _play(agents, args)
    seconds = {"seconds": round(time.monotonic() - began_s, 3)}
    figures, tables = dict[str, dict[str, Any]](), list[str]()
    for agent, own in zip(agents, played, strict=True):
        found = agent.figures() | {"sampled": agent.config.eval_sampled} | _summary(own)
        figures[agent.name] = found
        tables.append(f"policy      {agent.name}\n" * (len(agents) > 1) + _table(found | seconds, own.episodes))
    if sys.stderr.isatty() or not args.json:
        print("\n\n".join(tables), file=sys.stderr if args.json else sys.stdout)
    if args.json:
        print(json.dumps(({"policies": figures} if len(agents) > 1 else found) | seconds))


def check_episodes(episodes: int) -> None:
    if episodes < 1:
        raise ConfigError(f"--episodes {episodes} must be at least 1.")


def load_agent(args: RunArgs) -> Agent:
    """The agent of a run with a single policy."""
    agents = load_agents(args)
    if len(agents) > 1:
        names = ", ".join(agent.name for agent in agents)
        raise ConfigError(
            f"{args.run} has several policies ({names}), which act in one world; this command takes a run with one."
        )
    return agents[0]


def load_agents(args: RunArgs) -> list[Agent]:
    """The agents of a run's policies, in the order of the world's groups."""
    limit_threads(1)  # before torch is imported
    with suppress(FreewheelError):  # it is no run: loading it says more
        if open_run(args.run, args.root).config().get("runtime") == "local":
            start_forkserver()  # it loads what plays while this process loads the same
    from freewheel.store.load import policy_names

    return [_load_agent(args, name) for name in policy_names(args.run, args.root)]


def _load_agent(args: RunArgs, name: str) -> Agent:
    """Builds a policy; warns on standard error about checkpoints that had to be skipped."""
    from freewheel.store.load import find_checkpoint, policy_of

    checkpoint = find_checkpoint(args.run, args.root, name)
    for warning in checkpoint.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    policy = policy_of(checkpoint, name=name)
    limit_threads(policy.config.learner.threads or 1)
    world = policy.config.world
    if args.kwargs is not None:
        world = replace(world, kwargs=args.kwargs)
    if args.env is not None:
        world = replace(world, kind="auto")  # the other env may need another kind
    config = replace(policy.config, world=world)
    if args.env is None:
        _check_known(config)
    return Agent(checkpoint, policy, config, args.env or config.env, name)


def _check_known(config: Config) -> None:
    """Refuses a run whose env was passed in Python as an object or a function: only its name is known."""
    from freewheel.imports import is_import
    from freewheel.worlds.find import find_spec

    env = config.env
    if is_import(env) or is_import(config.world.kind):  # only the user's own world knows its env
        return
    try:
        find_spec(env)
    except ConfigError as error:
        raise ConfigError(
            f"the run was trained on {env!r}, which is not the id of an env. If a function makes it, add "
            "--env module:function; if a package registers it, add --env package:id."
        ) from error


def _play(agents: Sequence[Agent], args: EvalArgs) -> list[Played]:
    """The episodes of each agent."""
    from freewheel.evaluate import evaluate, what_was_cut
    from freewheel.report.progress import Progress

    first = agents[0]
    trained = [replace(agent.policy.trained, config=agent.config) for agent in agents]
    with Progress(args.episodes * len(agents), f"eval {first.env}", args.quiet, unit="episodes") as progress:
        played = evaluate(trained, first.config, first.env, args.episodes, args.seed, progress)
        progress.close(sum(len(own.episodes) for own in played))
        if note := what_was_cut(played, first.config, args.episodes):
            progress.note(note)
    if not all(own.episodes for own in played):
        raise EnvError(
            f"{first.env} took no step within --timeout-s {first.config.eval_timeout_s:g}. Give it more time."
        )
    return played


def _summary(played: Played) -> dict[str, Any]:
    returns = np.array([episode.ret for episode in played.episodes])
    lengths = np.array([episode.length for episode in played.episodes])
    return {
        "episodes": len(played.episodes),
        "cut": played.num_cut,
        **{f"return_{name}": float(getattr(np, name)(returns)) for name in ("mean", "std", "min", "max", "median")},
        "length_mean": float(lengths.mean()),
    }


def _table(result: dict[str, Any], played: Sequence[Episode]) -> str:
    lengths = [episode.length for episode in played]
    return "\n".join(
        [
            f"run         {result['run']}",
            f"agent       {result['algo']} at step {result['step']:,} in {result['env']}, {'sampled actions' if result['sampled'] else 'greedy'}",
            f"return      {number(result['return_mean'])} mean, {number(result['return_std'])} std, "
            f"{number(result['return_min'])} min, {number(result['return_median'])} median, {number(result['return_max'])} max",
            f"length      {result['length_mean']:,.1f} mean, {min(lengths):,} min, {max(lengths):,} max",
            f"episodes    {result['episodes']:,} in {result['seconds']:,.1f} s"
            + f", {result['cut']:,} cut" * bool(result["cut"]),
        ]
    )
