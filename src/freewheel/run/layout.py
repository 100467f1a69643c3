"""The layout of a run: its processes, and how they share cores and lanes. Chosen before anything starts, with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from freewheel.config import Config, find_algo

# CartPole on two cores: with 32 lanes each, two actors of ppo gave 7-19 % more rows than one; with 4 each, as many.
LANES_WORTH_AN_ACTOR = 16


@dataclass(frozen=True)
class Layout:
    """Processes, lanes and threads of a run. `learner_workers` 0 is measured at the start.

    In `sequential` one process is both actor and learner, with the learner's threads.
    """

    runtime: Literal["local", "sequential"]
    actors: int
    lanes_per_actor: tuple[int, ...]
    learner_workers: int
    threads: dict[str, int]
    reason: str


def choose(config: Config, cores: int) -> Layout:
    """The layout of these settings on so many cores."""
    lanes, threads = config.world.lanes, config.learner.threads or 1
    is_lockstep = find_algo(config.algo).is_lockstep
    if config.runtime == "sequential" or (config.runtime == "auto" and (cores < 2 or is_lockstep)):
        reason = _why_sequential(config, is_lockstep)
        return Layout("sequential", 1, (lanes,), 1, {"actor": threads, "learner": threads}, reason)
    asked, actors = config.local.actors, cores - 1
    if config.world.kind == "pool" or cores < 2:  # the workers of a pool keep the cores busy: one actor serves them all
        actors = 1
    elif is_lockstep and lanes >= LANES_WORTH_AN_ACTOR * cores:  # the learner sleeps while actors act
        actors = cores
    actors = min(asked or actors, lanes)
    reason = f"{_why_local(config, cores)}; {_why_actors(config, cores, actors)}."
    return Layout(
        "local", actors, split(lanes, actors), config.learner.workers, {"actor": 1, "learner": threads}, reason
    )


def split(lanes: int, actors: int) -> tuple[int, ...]:
    """The lanes of each actor, as evenly as possible."""
    each, rest = divmod(lanes, actors)
    return tuple(each + (i < rest) for i in range(actors))


def _why_sequential(config: Config, is_lockstep: bool) -> str:
    if config.runtime == "sequential":
        why = "runtime=sequential is set"
    elif is_lockstep:
        why = f"algo={config.algo} learns from what its current policy just did"
    else:
        why = "There is only 1 core"
    return f"{why}; one process acts and learns in turn."


def _why_local(config: Config, cores: int) -> str:
    if config.runtime == "local":
        return "runtime=local is set" + (" although there is 1 core" if cores < 2 else "")
    return f"There are {cores} cores, so actors and learner run side by side"


def _why_actors(config: Config, cores: int, actors: int) -> str:
    lanes, asked = config.world.lanes, config.local.actors
    if asked:
        if actors < asked:
            return f"of local.actors={asked} only {actors} have one of the {lanes} lanes"
        return f"local.actors={asked} is set"
    if config.world.kind == "pool":
        return "one actor serves the workers of its pool"
    if actors == cores > 1:
        return "one actor per core, because the learner sleeps while they act"
    if actors < cores - 1:
        return f"one actor for each of the {lanes} lanes"
    return "one actor shares the core with the learner" if cores < 2 else "one actor per core but the learner's"
