"""Which roles a run has and how they share cores and lanes: chosen before anything starts, with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from freewheel.config import Config, find_algo

# CartPole on two cores: with 32 lanes each two actors of ppo gave 7-19 % more rows than one, with 4 each as many.
LANES_WORTH_AN_ACTOR = 16


@dataclass(frozen=True)
class Layout:
    """Processes, lanes and threads of a run. `learner_workers` 0 is measured at the start.

    In `sequential` the one process is both actor and learner, with the learner's threads.
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
    if config.runtime == "sequential" or (
        config.runtime == "auto" and (cores < 2 or find_algo(config.algo).is_lockstep)
    ):
        return Layout("sequential", 1, (lanes,), 1, {"actor": threads, "learner": threads}, _why_sequential(config))
    is_pool = config.world.kind == "pool"  # whose workers keep the cores busy: one actor serves them all
    own = config.local.actors or (1 if is_pool else max(1, cores - (0 if _rests(config, cores) else 1)))
    actors = min(own, lanes)
    return Layout(
        "local",
        actors,
        split(lanes, actors),
        config.learner.workers,
        {"actor": 1, "learner": threads},
        f"{_why_local(config, cores)}; {_why_actors(config, cores, actors)}.",
    )


def _rests(config: Config, cores: int) -> bool:
    """Whether the learner sleeps while actors act, and they have lanes enough for one more of them to pay."""
    return find_algo(config.algo).is_lockstep and config.world.lanes >= LANES_WORTH_AN_ACTOR * cores


def split(lanes: int, actors: int) -> tuple[int, ...]:
    """The lanes of each actor, as even as can be; the first ones have one more."""
    each, rest = divmod(lanes, actors)
    return tuple(each + (i < rest) for i in range(actors))


def _why_sequential(config: Config) -> str:
    if config.runtime == "sequential":
        return "runtime=sequential was asked for; one process acts and learns in turn."
    if find_algo(config.algo).is_lockstep:
        return f"algo={config.algo} learns from what its own policy just did; one process acts and learns in turn."
    return "There is 1 core, on which processes could only take turns; one process acts and learns in turn."


def _why_local(config: Config, cores: int) -> str:
    if config.runtime == "local":
        return "runtime=local was asked for" + (" although there is 1 core" if cores < 2 else "")
    return f"There are {cores} cores, so actors and learner run side by side"


def _why_actors(config: Config, cores: int, actors: int) -> str:
    lanes, asked = config.world.lanes, config.local.actors
    if asked:
        if actors < asked:
            return f"of local.actors={asked} only {actors} have one of the {lanes} lanes"
        return f"local.actors={asked} was asked for"
    if config.world.kind == "pool":
        return "one actor serves the workers of its pool"
    if actors == cores > 1:
        return "one actor per core, as the learner rests while they act"
    if actors < cores - 1:
        return f"one actor for each of the {lanes} lanes"
    return "one actor shares the core with the learner" if cores < 2 else "one actor per core but the learner's"
