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
    if why := _why_sequential(config, cores):
        reason = f"{why}; one process acts and learns."
        return Layout("sequential", 1, (lanes,), 1, {"actor": threads, "learner": threads}, reason)
    why = f"There are {cores} cores, so actors and learner run side by side"
    if config.runtime == "local":
        why = "runtime=local is set" + (" although there is 1 core" if cores < 2 else "")
    actors, why_actors = _actors(config, cores)
    roles = {"actor": 1, "learner": threads}
    return Layout("local", actors, split(lanes, actors), config.learner.workers, roles, f"{why}; {why_actors}.")


def split(lanes: int, actors: int) -> tuple[int, ...]:
    """The lanes of each actor, as evenly as possible."""
    each, rest = divmod(lanes, actors)
    return tuple(each + (i < rest) for i in range(actors))


def _why_sequential(config: Config, cores: int) -> str:
    """Empty if actors and learner run side by side."""
    if config.runtime == "sequential":
        return "runtime=sequential is set"
    if config.runtime == "auto" and find_algo(config.algo).is_lockstep:
        return f"algo={config.algo} learns from what its current policy just did"
    return "There is only 1 core" if config.runtime == "auto" and cores < 2 else ""


def _actors(config: Config, cores: int) -> tuple[int, str]:
    """How many, and why."""
    lanes, asked = config.world.lanes, config.local.actors
    if asked > lanes:
        return lanes, f"of local.actors={asked} only {lanes} have one of the {lanes} lanes"
    if asked:
        return asked, f"local.actors={asked} is set"
    if config.world.kind == "pool":  # its workers keep the cores busy
        return 1, "one actor serves the workers of its pool"
    if cores < 2:
        return 1, "one actor shares the core with the learner"
    if find_algo(config.algo).is_lockstep and lanes >= LANES_WORTH_AN_ACTOR * cores:
        return cores, "one actor per core, because the learner sleeps while they act"
    if lanes < cores - 1:
        return lanes, f"one actor for each of the {lanes} lanes"
    return cores - 1, "one actor per core but the learner's"
