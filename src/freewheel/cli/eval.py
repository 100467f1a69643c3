"""`freewheel eval RUN`: episodes of a trained agent, and what they returned."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import tyro

from freewheel.errors import ConfigError
from freewheel.run.folder import DEFAULT_ROOT, IDENTITY
from freewheel.run.threads import limit_threads

if TYPE_CHECKING:
    from freewheel.config import Config
    from freewheel.report.episodes import Episode
    from freewheel.run.checkpoint import Checkpoint
    from freewheel.run.policy import Policy
    from freewheel.spec import Space


@dataclass(frozen=True)
class RunArgs:
    """Which agent acts, and in what."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Name of a run, its folder, or the folder of one checkpoint."""

    env: str | None = None
    """Another env with the same spaces; by default the one it was trained on."""

    kwargs: str | None = None
    """Arguments for making the env, as a JSON object; by default the run's."""

    seed: int | None = None
    """Seed of the episodes; by default that of the evaluation after training."""

    root: Path = DEFAULT_ROOT
    """Where the runs are."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the figures as a JSON object on the last line."""

    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Show no progress."""


@dataclass(frozen=True)
class EvalArgs(RunArgs):
    """Play episodes with a trained agent (its newest whole checkpoint), greedy ones unless told otherwise, and show their returns."""

    episodes: int = 100
    """How many."""

    actions: Literal["run", "greedy", "sampled"] = "run"
    """The best or likeliest ones, or (ppo, appo) drawn as in training; run: as the run's eval_sampled says."""


@dataclass(frozen=True)
class Agent:
    """A trained policy, and the env it acts in with the settings it is made with."""

    checkpoint: Checkpoint
    policy: Policy
    config: Config
    env: str

    @property
    def run(self) -> Path | None:
        """The folder of its run; None for a checkpoint that lies elsewhere."""
        folder = self.checkpoint.path.absolute().parents[1]
        return folder if (folder / IDENTITY).is_file() else None

    def figures(self) -> dict[str, Any]:
        return {
            "run": str(self.run or self.checkpoint.path),
            "env": self.env,
            "algo": self.config.algo,
            "checkpoint": str(self.checkpoint.path),
            "step": self.checkpoint.step,
        }


def main(arguments: Sequence[str]) -> None:
    args = tyro.cli(EvalArgs, prog="freewheel eval", args=list(arguments))
    check_episodes(args.episodes)
    agent = load_agent(args)
    if args.actions != "run":
        config = dataclasses.replace(agent.config, eval_sampled=args.actions == "sampled")
        agent = dataclasses.replace(agent, config=config)
    check_spaces(agent, *_spaces_of(agent))
    began_s = time.monotonic()
    played = _play(agent, args)
    result = (
        agent.figures()
        | {"sampled": agent.config.eval_sampled}
        | _summary(played)
        | {"seconds": round(time.monotonic() - began_s, 3)}
    )
    if sys.stderr.isatty() or not args.json:
        print(_table(result, played), file=sys.stderr if args.json else sys.stdout)
    if args.json:
        print(json.dumps(result))


def check_episodes(episodes: int) -> None:
    if episodes < 1:
        raise ConfigError(f"--episodes {episodes} must be at least 1.")


def load_agent(args: RunArgs) -> Agent:
    """Finds the checkpoint and builds its policy; checkpoints that had to be passed over are named on standard error."""
    limit_threads(1)  # before torch is imported
    from freewheel.run.policy import find_checkpoint, policy_of

    checkpoint = find_checkpoint(args.run, args.root)
    for warning in checkpoint.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    policy = policy_of(checkpoint)
    limit_threads(policy.config.learner.threads or 1)
    world = policy.config.world
    if args.kwargs is not None:
        world = dataclasses.replace(world, kwargs=args.kwargs)
    if args.env is not None:
        world = dataclasses.replace(world, kind="auto")  # the other env may come in another form
    config = dataclasses.replace(policy.config, world=world)
    if args.env is None:
        _check_known(config.env)
    return Agent(checkpoint, policy, config, args.env or config.env)


def check_spaces(agent: Agent, obs_space: Space, action_space: Space) -> None:
    """Refuses an env that is not like the one the policy was trained on."""
    from freewheel.spec import describe

    pairs = {
        "observations": (obs_space, agent.policy.obs_space),
        "actions": (action_space, agent.policy.action_space),
    }
    for what, (theirs, ours) in pairs.items():
        if _outline(describe(theirs)) != _outline(describe(ours)):
            raise ConfigError(
                f"{agent.env} has the {what} {theirs}, and the policy of {agent.checkpoint.path} was trained on {ours}. "
                "Give an env with the same ones by --env, or train on this one."
            )


def _check_known(env: str) -> None:
    """An env that was given in Python as an object or a function left only its name in the run."""
    from freewheel.worlds.find import find_spec, is_import

    if is_import(env):
        return
    try:
        find_spec(env)
    except ConfigError as error:
        raise ConfigError(
            f"the run was trained on {env!r}, which is not the id of an env. If a function made it, name that by "
            "--env module:function; if a package registers it, by --env package:id."
        ) from error


def _spaces_of(agent: Agent) -> tuple[Space, Space]:
    from freewheel.worlds.make import make_world

    world = make_world(agent.env, dataclasses.replace(agent.config.world, lanes=1), seed=0)
    try:
        return world.obs_space, world.action_space
    finally:
        world.close()


def _outline(space: Any) -> Any:
    """What a network depends on: bounds may differ, and a Discrete is the same in any integer type."""
    if isinstance(space, list):
        return [_outline(part) for part in space]
    if not isinstance(space, dict):
        return space
    ignored = ("low", "high", "dtype") if space.get("kind") == "Discrete" else ("low", "high")
    return {key: _outline(part) for key, part in space.items() if key not in ignored}


def _play(agent: Agent, args: EvalArgs) -> list[Episode]:
    from freewheel.report.progress import Progress
    from freewheel.run.evaluate import evaluate

    played: list[Episode] = []
    with Progress(args.episodes, f"eval {agent.env}", args.quiet, unit="episodes") as progress:

        def show(episode: Episode) -> None:
            played.append(episode)
            progress.update(len(played), float(np.mean([each.ret for each in played])))

        evaluate(agent.policy.infer, agent.config, agent.env, args.episodes, args.seed, show)
        progress.close(len(played))
    return played


def _summary(played: Sequence[Episode]) -> dict[str, Any]:
    returns = np.array([episode.ret for episode in played])
    lengths = np.array([episode.length for episode in played])
    return {
        "episodes": len(played),
        "return_mean": float(returns.mean()),
        "return_std": float(returns.std()),
        "return_min": float(returns.min()),
        "return_max": float(returns.max()),
        "return_median": float(np.median(returns)),
        "length_mean": float(lengths.mean()),
    }


def _table(result: dict[str, Any], played: Sequence[Episode]) -> str:
    lengths = [episode.length for episode in played]
    return "\n".join(
        [
            f"run         {result['run']}",
            f"agent       {result['algo']} at step {result['step']:,} in {result['env']}, {'drawn actions' if result['sampled'] else 'greedy'}",
            f"return      {result['return_mean']:,.1f} mean, {result['return_std']:,.1f} std, "
            f"{result['return_min']:,.1f} min, {result['return_median']:,.1f} median, {result['return_max']:,.1f} max",
            f"length      {result['length_mean']:,.1f} mean, {min(lengths):,} min, {max(lengths):,} max",
            f"episodes    {result['episodes']:,} in {result['seconds']:,.1f} s",
        ]
    )
