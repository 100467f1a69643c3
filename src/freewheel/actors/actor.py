"""The actor: takes what is ready in the world, writes it as rows, and answers with actions by the newest weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from freewheel.config import WorldConfig
from freewheel.contracts import Array, Columns, Policy
from freewheel.errors import EnvError
from freewheel.memory.counts import Counts
from freewheel.memory.lanes import Bootstrap, Bootstraps, Lanes, Writer
from freewheel.report.episodes import Episode, Episodes
from freewheel.report.ledger import Page
from freewheel.report.phases import COUNTERS, PHASES
from freewheel.spec import Field
from freewheel.worlds.world import Ended, Group, Ready, World

ENV, INFER, WRITE, FETCH = (PHASES.index(name) for name in ("env", "infer", "write", "fetch"))
ROWS_BEGUN, ROWS, CHOICES, FETCHED = (COUNTERS.index(n) for n in ("rows_begun", "rows", "choices", "fetched"))


class Weights(Protocol):
    """Fetches a policy's weights and knows their version."""

    @property
    def version(self) -> int: ...

    def fetch(self, step: int) -> bool: ...


class GroupActor:
    """Plays the lanes of one group of a world by one policy and writes their rows. Lane 0 of the group is lane `first_lane` of the policy."""

    def __init__(
        self,
        index: int,
        group: Group,
        policy: Policy,
        weights: Weights,
        lanes: Lanes,
        writer: Writer,
        counts: Counts,
        pace: Any,
        config: WorldConfig,
        *,
        first_lane: int = 0,
        bootstraps: Bootstraps | None = None,
        page: Page | None = None,
    ) -> None:
        self.index, self.group, self.policy, self.weights = index, group, policy, weights
        self.lanes, self.writer, self.first_lane, self.bootstraps = lanes, writer, first_lane, bootstraps
        self.counts, self.pace, self._config = counts, pace, config
        self._learns_raw = config.reward_scale == 1.0 and config.reward_clip <= 0.0
        self.episodes = Episodes(group.num_lanes)
        fields = writer.spec.fields
        self.history = History(fields, group.num_lanes, config.stack) if config.stack > 1 else None
        # No action follows a final observation.
        self._no_action = {
            f.name: np.zeros((group.num_lanes, *f.shape), f.dtype) for f in fields if not f.is_observation
        }
        self._false = np.zeros(group.num_lanes, np.bool_)
        self._enter: Callable[[int], None] = page.enter if page else _nothing
        self._count: Callable[[int, int], None] = page.count if page else _nothing
        self._ready: Ready | None = None
        self._seen: Columns = {}
        self._step = 0
        self.unshown = 0  # outcomes in hand that the learner has not seen
        self.num_steps = 0  # taken by this actor

    @property
    def seen(self) -> Columns:
        """The newest observations, as the policy sees them."""
        return self._seen

    def receive(self, ready: Ready, seconds: float) -> list[Episode]:
        """Takes the outcomes of earlier actions; returns the episodes that ended with them."""
        self._enter(WRITE)
        self._step = self.counts.run_steps
        num_begun = int(np.count_nonzero(ready.first))
        steps = len(ready.lanes) - num_begun
        if ready.ended is not None:
            steps += len(ready.ended.lanes)
            self._write_ends(ready.ended)
        if num_begun:
            self.writer.begin(ready.lanes[ready.first] + self.first_lane)
        finished = self.episodes.add(ready.lanes, ready.reward, ready.first, ready.ended, self._step + steps, seconds)
        self._seen = ready.obs if self.history is None else self.history.push(ready.lanes, ready.obs, ready.first)
        self._ready = ready if len(ready.lanes) else None
        self.unshown += steps
        self.num_steps += steps
        self.counts.add_steps(steps)
        return finished

    def show(self) -> None:
        """Shows the learner what was received, before the actor waits: the learner may need it to go on."""
        if not self.unshown:
            return
        ready = self._ready
        if self.bootstraps is not None and ready is not None:
            self._enter(INFER)
            values = self.policy.bootstrap(self._seen)
            assert values is not None
            goes_on = ~ready.first
            lanes, reward = ready.lanes[goes_on], learned(ready.reward[goes_on], self._config)
            self.bootstraps.put(Bootstrap(lanes + self.first_lane, reward, values[goes_on]), self.lanes)
        self.pace.show(self.unshown)
        self.unshown = 0

    def answer(self, world: World) -> None:
        """Chooses the actions, writes the rows and sends the actions."""
        ready = self._ready
        assert ready is not None
        self._enter(FETCH)
        if self.weights.fetch(self._step):
            self._count(FETCHED, 1)
            self.policy.refresh()
        self._enter(INFER)
        refused = self.policy.refuse(ready.obs)
        if refused is not None:
            self._refuse(world, int(ready.lanes[refused[0]]), refused[1])
        choice = self.policy.choose(self._seen, ready.lanes, ready.first, self._step)
        self._count(CHOICES, 1)
        self._enter(WRITE)
        false = self._false[: len(ready.lanes)]
        self._append(ready.lanes, {**ready.obs, **choice.columns}, ready.reward, false, false)
        self._enter(ENV)
        world.send(self.index, ready.lanes, choice.actions)
        self._ready = None
        if self.unshown:
            self.pace.show(self.unshown)
            self.unshown = 0

    def _write_ends(self, ended: Ended) -> None:
        no_action = {name: zeros[: len(ended.lanes)] for name, zeros in self._no_action.items()}
        self._append(ended.lanes, {**ended.obs, **no_action}, ended.reward, ended.terminated, ended.truncated)

    def _append(self, lanes: Array, fields: Columns, reward: Array, terminated: Array, truncated: Array) -> None:
        # Counted before and after: if the actor dies in between, the number of unfinished rows is known.
        self._count(ROWS_BEGUN, len(lanes))
        own = lanes + self.first_lane if self.first_lane else lanes
        if not self._learns_raw:
            reward = learned(reward, self._config)
        self.writer.append(own, fields, reward, terminated, truncated, self.weights.version)
        self._count(ROWS, len(lanes))

    def _refuse(self, world: World, lane: int, what: str) -> None:
        raise EnvError(
            f"{world.name} (lane {lane + self.first_lane}) gave {what}, at step {self.episodes.length_of(lane)} of "
            "its episode. Allow at least one action, or end the episode there."
        )


class Actor:
    """Acts in one world, whose groups may be played by several policies. `turn` is called again and again.

    A turn takes what is ready in the world and answers it. If the pace of a policy does not allow that yet, a later turn answers.
    """

    def __init__(self, world: World, groups: Sequence[GroupActor], page: Page | None = None) -> None:
        self.world, self.groups = world, groups
        self.finished: list[tuple[int, Episode]] = []  # group and episode
        self.seconds = 0.0  # since the run began: the time stamp of its episodes
        self._enter: Callable[[int], None] = page.enter if page else _nothing
        self.waiting: list[GroupActor] = []  # groups that it owes an answer

    def turn(self) -> bool:
        """False while the pace holds it back, or nothing is ready in the world."""
        if not self.waiting:
            self._enter(ENV)
            received = self.world.recv()
            if not received:
                return False
            for ready in received:
                group = self.groups[ready.group]
                ended = group.receive(ready, self.seconds)
                if ended:
                    self.finished += [(ready.group, episode) for episode in ended]
                if len(ready.lanes):
                    self.waiting.append(group)
        for group in self.waiting:
            if not group.pace.may_answer(group.unshown):
                for waiting in self.waiting:
                    waiting.show()
                return False
        for group in self.waiting:
            group.answer(self.world)
        self.waiting.clear()
        return True

    def wait(self) -> None:
        """Until the learner has caught up, or for a moment. An idle world waits in its `recv`."""
        for group in self.waiting:
            if not group.pace.may_answer(group.unshown):
                group.pace.wait_to_act()
                return

    def take_finished(self) -> list[tuple[int, Episode]]:
        finished, self.finished = self.finished, []
        return finished

    def end(self) -> None:
        """After the last turn: shows what was received and closes the world."""
        for group in self.groups:
            group.show()
        self.world.close()


class History:
    """The newest `stack` observations of each lane, oldest first; an episode's first observation fills the places before it."""

    def __init__(self, fields: tuple[Field, ...], num_lanes: int, stack: int) -> None:
        self._frames = {f.name: np.zeros((num_lanes, stack, *f.shape), f.dtype) for f in fields if f.is_observation}

    def push(self, lanes: Array, obs: Columns, first: Array) -> Columns:
        """Adds an observation of each of these lanes; returns their stacks [k, stack, ...]."""
        stacks = {}
        for name, rows in obs.items():
            frames = self._frames[name]
            stack = frames[lanes]
            stack[:, :-1] = stack[:, 1:]
            stack[:, -1] = rows
            stack[first] = rows[first][:, None]
            frames[lanes] = stack
            stacks[name] = stack
        return stacks

    def state(self) -> Columns:
        return dict(self._frames)

    def set_state(self, state: Columns) -> None:
        for name, frames in self._frames.items():
            frames[...] = state[name]


def learned(reward: Array, config: WorldConfig) -> Array:
    """The rewards that are stored and learned from: scaled, then clipped."""
    if config.reward_scale != 1.0:
        reward = (reward * config.reward_scale).astype(np.float32)
    if config.reward_clip > 0.0:
        reward = np.clip(reward, -config.reward_clip, config.reward_clip)
    return reward


def _nothing(*_: int) -> None:
    """Used where there is no ledger."""
