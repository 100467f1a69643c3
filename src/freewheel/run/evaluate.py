"""Episodes of a policy, greedy or as it draws its actions, on seeds that training never sees."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from freewheel.actors.history import History
from freewheel.actors.infer import Acts
from freewheel.actors.sample import Sampler
from freewheel.config import Config
from freewheel.errors import ConfigError
from freewheel.report.episodes import Episode, Episodes
from freewheel.run.parts import seed_of
from freewheel.spec import RowSpec
from freewheel.worlds.make import make_world
from freewheel.worlds.world import Array, Obs, World

# From observations and their lanes to actions.
Choose: TypeAlias = Callable[[Obs, Array], Array]

# Enough to make the network's passes cheap, few enough that no lane waits long for the last one.
MOST_LANES = 25


def evaluate(
    infer: Acts,
    config: Config,
    env: Any,
    episodes: int,
    seed: int | None = None,
    on_episode: Callable[[Episode], None] = lambda episode: None,
) -> list[Episode]:
    """Plays `episodes` and gives them all; greedy ones, unless config.eval_sampled says otherwise.

    Each lane plays a share that is fixed beforehand: taking whichever end first would favour the short ones.
    """
    is_one_env = hasattr(env, "step") and not isinstance(env, type)  # an object cannot be copied
    lanes = 1 if is_one_env else min(episodes, MOST_LANES)
    settings = dataclasses.replace(config.world, lanes=lanes)
    seed = seed_of(config, "eval") if seed is None else seed
    world = make_world(env, settings, seed)
    try:
        return _play(world, _chooser(infer, config, world.num_lanes, seed), config, episodes, on_episode)
    finally:
        world.close()


def _chooser(infer: Acts, config: Config, num_lanes: int, seed: int) -> Choose:
    if not config.eval_sampled:
        return lambda obs, lanes: infer.greedy(obs)
    if not isinstance(infer, Sampler):
        raise ConfigError(
            f"algo={config.algo} has values, not a policy to draw actions from, and plays greedy episodes only. "
            "Leave eval_sampled and --actions sampled out."
        )
    return infer.for_lanes(num_lanes, seed).drawn


def _play(
    world: World, choose: Choose, config: Config, episodes: int, on_episode: Callable[[Episode], None]
) -> list[Episode]:
    count = Episodes(world.num_lanes)
    fields = RowSpec.of(world.obs_space, world.action_space).fields
    stack = config.world.stack
    history = History(fields, world.num_lanes, stack) if stack > 1 else None
    # Lane i plays one more if the episodes do not come out even.
    left = np.full(world.num_lanes, episodes // world.num_lanes)
    left[: episodes % world.num_lanes] += 1
    finished: list[Episode] = []
    steps = 0
    while left.any():
        ready = world.recv()
        steps += len(ready.lanes)
        for episode in count.add(ready.lanes, ready.reward, ready.first, ready.ended, steps):
            if left[episode.lane] > 0:
                left[episode.lane] -= 1
                finished.append(episode)
                on_episode(episode)
        seen = ready.obs if history is None else history.push(ready.lanes, ready.obs, ready.first)
        actions = choose(seen, ready.lanes)
        wanted = left[ready.lanes] > 0 if world.may_rest else np.full(len(ready.lanes), True)
        if wanted.any():
            world.send(ready.lanes[wanted], actions[wanted])
    return finished
