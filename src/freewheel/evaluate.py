"""Evaluation: episodes of trained policies, with greedy or sampled actions, on seeds that training never uses."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from freewheel.actors.actor import History
from freewheel.algos.make import seed_of
from freewheel.config import Config
from freewheel.contracts import Columns
from freewheel.errors import ConfigError, EnvError
from freewheel.machine.trial import Work, throwaway
from freewheel.report.episodes import Episode, Episodes
from freewheel.report.progress import Progress
from freewheel.spec import RowSpec, Space, choices, leaves
from freewheel.store.load import Trained
from freewheel.worlds.make import env_name, make_world
from freewheel.worlds.pool import START_S, PoolWorld
from freewheel.worlds.seeds import lane_key
from freewheel.worlds.world import Group, Ready, World

# Enough for cheap passes of the network, few enough that the last episode is not long alone.
MOST_LANES = 25
# A pool replaces a worker that hangs before this whole process counts as hanging.
POOL_SHARE = 0.8
PULSE_S = 0.25

Tell = Callable[..., None]


@dataclass
class Played:
    """Episodes of one policy. `num_cut` of them had not ended when a limit was reached: their returns are those so far."""

    episodes: list[Episode] = field(default_factory=list)
    num_cut: int = 0

    @property
    def mean(self) -> float | None:
        return math.fsum(one.ret for one in self.episodes) / len(self.episodes) if self.episodes else None


def evaluate(
    trained: Sequence[Trained],
    config: Config,
    env: Any,
    episodes: int,
    seed: int | None = None,
    progress: Progress | None = None,
) -> list[Played]:
    """Plays `episodes` episodes in each group of the world; greedy unless a policy has eval_sampled."""
    played: list[Played] = []

    def hear(message: Any = None, limit_s: float = 0.0) -> None:
        if message is None:
            return
        played.extend(Played([Episode(*row) for row in rows], cut) for rows, cut in message.get("played", ()))
        if progress is not None and "note" in message:
            progress.note(message["note"])
        if progress is not None and "done" in message:
            progress.update(message["done"], message["mean"])

    seed = seed_of(config, "eval") if seed is None else seed
    needs = (env, *(one.body for one in trained))
    try:
        play_apart(config, env, needs, hear, _play, list(trained), config, env, episodes, seed)
    except EnvError as error:
        if not played:
            raise
        if progress is not None:
            progress.note(f"EnvError: {error}")
    return played


def what_was_cut(played: Sequence[Played], config: Config, episodes: int) -> str:
    """A sentence about episodes that a limit has cut, or that were not played; "" if there are none."""
    cut, missing = sum(own.num_cut for own in played), sum(episodes - len(own.episodes) for own in played)
    if not cut and not missing:
        return ""
    return (
        f"{cut} of {episodes * len(played)} evaluation episodes were cut (eval_max_steps={config.eval_max_steps:,}, "
        f"eval_timeout_s={config.eval_timeout_s:g}); their returns so far count."
        + f" {missing} were not played."
        * bool(missing)
    )


def play_apart(config: Config, env: Any, needs: Sequence[Any], hear: Tell, work: Work, *given: Any) -> None:
    """Runs `work(*given, tell)`, which makes and steps the env: in the local runtime in a process of its own, as an env may hang or
    crash there, in the sequential runtime here. `hear` gets what it tells; `needs` as in `throwaway`.
    """
    if config.runtime != "local":
        work(*given, hear)
        return
    local, threads = config.local, config.learner.threads or 1
    report = throwaway(
        _work, work, given, threads, timeout_s=local.step_timeout_s, start_timeout_s=START_S, needs=needs, hear=hear
    )
    if report.failure:
        raise report.error(env_name(env), "while it was played")


def _work(work: Work, given: Sequence[Any], threads: int, tell: Tell) -> None:
    torch.set_num_threads(threads)
    work(*given, _Pulse(tell))


class _Pulse:
    """Passes on what is told; progress and signs of life only now and then, as an env may take thousands of steps a second."""

    def __init__(self, tell: Tell) -> None:
        self._tell, self._due_s = tell, 0.0

    def __call__(self, value: Any = None, **limit: float) -> None:
        now, is_progress = time.monotonic(), value is None or "done" in value
        if now >= self._due_s or limit or not is_progress:
            self._due_s = 0.0 if limit else now + PULSE_S  # a longer limit ends with the next sign of life
            self._tell(value, **limit)


def _play(trained: Sequence[Trained], config: Config, env: Any, episodes: int, seed: int, tell: Tell) -> None:
    """Each lane plays a fixed share: counting the episodes that end first would favour short ones.

    No world can end an episode of its lanes. A lane whose episode was cut rests, and plays the rest of its share in another world.
    """
    is_one_env = hasattr(env, "step") and not isinstance(env, type)  # an object cannot be copied
    world_config = dataclasses.replace(config.world, lanes=1 if is_one_env else min(episodes, MOST_LANES))
    end_s = time.monotonic() + config.eval_timeout_s
    step_s = POOL_SHARE * config.local.step_timeout_s
    make = partial(make_world, env, world_config, step_timeout_s=step_s, restarts=config.local.restarts, alive=tell)
    players: list[_Player] = []
    number, is_over = 0, False
    while not is_over:
        tell(limit_s=START_S)
        world = make(lane_key(seed, -number) if number else seed)
        try:
            if not number:
                _check_groups(trained, env_name(env), world.groups)
                players = [_Player(*each, config, episodes, seed) for each in zip(trained, world.groups, strict=True)]
            for player in players:
                player.begin()
            _play_in(world, players, end_s, step_s, tell)
            is_over = time.monotonic() > end_s or not any(player.left.any() for player in players)
            if is_over:  # told first: an env that fails to close costs nothing
                played = [own.played for own in players]
                tell({"played": [[list(map(dataclasses.astuple, own.episodes)), own.num_cut] for own in played]})
        finally:
            world.close()
        number += 1


def _play_in(world: World, players: Sequence[_Player], end_s: float, step_s: float, tell: Tell) -> None:
    """Until all lanes have played their share, or rest, or the time is over."""
    while any(player.plays.any() for player in players):
        for ready in world.recv(step_s):
            player = players[ready.group]
            if player.receive(ready):
                tell({"done": sum(len(each.played.episodes) for each in players), "mean": player.played.mean})
            _act(world, player, ready)
        tell()
        if isinstance(world, PoolWorld):
            for note in world.take_notes():
                tell({"note": note})
        if time.monotonic() > end_s:
            for player in players:
                player.cut(player.count.running(np.flatnonzero(player.plays)))
            return


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
    """Plays a group with a policy. `left` counts the episodes that each lane still has to play; a lane that `rests` waits for
    another world.
    """

    def __init__(self, trained: Trained, group: Group, config: Config, episodes: int, seed: int) -> None:
        is_sampled = trained.config.eval_sampled
        if is_sampled and not trained.algo.can_sample:
            raise ConfigError(
                f"algo={trained.config.algo} learns values, so there is no policy to sample actions from. "
                "Leave eval_sampled and --actions sampled out."
            )
        self.policy, self.is_sampled = trained.acting(group.num_lanes, seed), is_sampled
        self.played, self.steps = Played(), 0
        self._fields, self._stack = RowSpec.of(group.obs_space, group.action_space).fields, config.world.stack
        self._most_steps, self._num_lanes = config.eval_max_steps, group.num_lanes
        self.left = np.full(group.num_lanes, episodes // group.num_lanes)
        self.left[: episodes % group.num_lanes] += 1

    def begin(self) -> None:
        """In a new world."""
        self.count, self.rests = Episodes(self._num_lanes), np.zeros(self._num_lanes, np.bool_)
        self._history = History(self._fields, self._num_lanes, self._stack) if self._stack > 1 else None

    @property
    def plays(self) -> Any:
        """Whether each lane has episodes to play here."""
        return (self.left > 0) & ~self.rests

    def receive(self, ready: Ready) -> bool:
        """Whether episodes have ended that count."""
        self.steps += len(ready.lanes)
        before = len(self.played.episodes)
        for episode in self.count.add(ready.lanes, ready.reward, ready.first, ready.ended, self.steps):
            if self.rests[episode.lane]:
                self.rests[episode.lane] = False  # it was cut, and has ended now
            elif self.left[episode.lane] > 0:
                self.left[episode.lane] -= 1
                self.played.episodes.append(episode)
        if self._most_steps:
            late = self.count.running(ready.lanes, self._most_steps)
            self.cut(late[self.plays[late]])
        return len(self.played.episodes) > before

    def cut(self, lanes: Any) -> None:
        """Counts the running episodes of these lanes as they are."""
        self.played.episodes += self.count.cut(lanes, self.steps)
        self.played.num_cut += len(lanes)
        self.left[lanes] -= 1
        self.rests[lanes] = True

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
    wanted = player.plays[ready.lanes] | (not world.may_rest)
    if wanted.any():
        chosen = {name: column[wanted] for name, column in actions.items()}
        world.send(ready.group, ready.lanes[wanted], chosen)
