"""Evaluation: episodes of trained policies, with greedy or sampled actions, on seeds that training never uses."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import numpy as np
from gymnasium import spaces

from freewheel.actors.actor import History
from freewheel.algos.make import seed_of
from freewheel.config import Config
from freewheel.contracts import Columns
from freewheel.errors import ConfigError, EnvError
from freewheel.machine.global_seeds import globals_seeded
from freewheel.report.episodes import Episode, Episodes
from freewheel.report.progress import Progress
from freewheel.spec import RowSpec, Space, choices, leaves
from freewheel.store.load import Trained
from freewheel.worlds.make import env_name, make_world
from freewheel.worlds.world import Group, Ready, World

# Enough for cheap passes of the network, few enough that the last episode is not long alone.
MOST_LANES = 25


def evaluate(
    trained: Sequence[Trained],
    config: Config,
    env: Any,
    episodes: int,
    seed: int | None = None,
    progress: Progress | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> list[list[Episode]]:
    """Plays `episodes` episodes in each group of the world; greedy unless a policy has eval_sampled.

    Each lane plays a fixed share: counting the episodes that end first would favour short ones.
    """
    is_one_env = hasattr(env, "step") and not isinstance(env, type)  # an object cannot be copied
    lanes = 1 if is_one_env else min(episodes, MOST_LANES)
    seed = seed_of(config, "eval") if seed is None else seed
    with globals_seeded(seed), closing(make_world(env, dataclasses.replace(config.world, lanes=lanes), seed)) as world:
        _check_groups(trained, env_name(env), world.groups)
        players = [_Player(*each, config, episodes, seed) for each in zip(trained, world.groups, strict=True)]
        while any(player.left.any() for player in players) and not is_stopped():
            for ready in world.recv():
                player = players[ready.group]
                if player.receive(ready) and progress is not None:
                    progress.update(sum(len(each.finished) for each in players), mean_return(player.finished))
                _act(world, player, ready)
        return [player.finished for player in players]


def _check_groups(trained: Sequence[Trained], env: str, groups: Sequence[Group]) -> None:
    """Refuses a world with other groups than the policies were trained on."""
    if len(groups) != len(trained):
        raise ConfigError(f"{env} has {len(groups)} groups of agents, but the run has {len(trained)} policies.")
    for own, group in zip(trained, groups, strict=True):
        check_spaces(own, env, group.obs_space, group.action_space)


def check_spaces(trained: Trained, env: str, obs_space: Space, action_space: Space) -> None:
    """Refuses an env with other spaces than the policy was trained on."""
    known = trained.algo.spaces
    for what, theirs, ours in (("observations", obs_space, known.obs), ("actions", action_space, known.action)):
        if _outline(theirs) != _outline(ours):
            raise ConfigError(
                f"{env} has the {what} {theirs}, and the policy was trained on {ours}. "
                "Choose an env with the same spaces by --env, or train on this one."
            )


def _outline(space: Space) -> list[Any]:
    """What a network depends on: bounds may differ, and so may the integer type of a Discrete."""
    return [
        (path, part.shape, choices(part), None if isinstance(part, spaces.Discrete) else part.dtype)
        for _, path, part in leaves(space)
    ]


class _Player:
    """Plays a group with a policy. `left` counts the episodes that each lane still has to play."""

    def __init__(self, trained: Trained, group: Group, config: Config, episodes: int, seed: int) -> None:
        is_sampled = trained.config.eval_sampled
        if is_sampled and not trained.algo.can_sample:
            raise ConfigError(
                f"algo={trained.config.algo} learns values, so there is no policy to sample actions from. "
                "Leave eval_sampled and --actions sampled out."
            )
        self.policy, self.is_sampled = trained.acting(group.num_lanes, seed), is_sampled
        self.count, self.finished, self.steps = Episodes(group.num_lanes), list[Episode](), 0
        fields, stack = RowSpec.of(group.obs_space, group.action_space).fields, config.world.stack
        self._history = History(fields, group.num_lanes, stack) if stack > 1 else None
        self.left = np.full(group.num_lanes, episodes // group.num_lanes)
        self.left[: episodes % group.num_lanes] += 1

    def receive(self, ready: Ready) -> bool:
        """Whether episodes have ended that count."""
        self.steps += len(ready.lanes)
        before = len(self.finished)
        for episode in self.count.add(ready.lanes, ready.reward, ready.first, ready.ended, self.steps):
            if self.left[episode.lane] > 0:
                self.left[episode.lane] -= 1
                self.finished.append(episode)
        return len(self.finished) > before

    def actions(self, ready: Ready) -> Columns:
        seen = ready.obs if self._history is None else self._history.push(ready.lanes, ready.obs, ready.first)
        if (refused := self.policy.refuse(ready.obs)) is not None:
            raise EnvError(
                f"observation {refused[0]} of {len(ready.lanes)} has {refused[1]}. Allow at least one, or end the episode there."
            )
        if self.is_sampled:
            return self.policy.choose(seen, ready.lanes, ready.first, 0).actions
        return self.policy.greedy(seen)


def _act(world: World, player: _Player, ready: Ready) -> None:
    if not len(ready.lanes):
        return
    actions = player.actions(ready)
    wanted = (player.left[ready.lanes] > 0) | (not world.may_rest)
    if wanted.any():
        chosen = {name: column[wanted] for name, column in actions.items()}
        world.send(ready.group, ready.lanes[wanted], chosen)


def mean_return(episodes: Sequence[Episode]) -> float:
    return math.fsum(episode.ret for episode in episodes) / len(episodes)
