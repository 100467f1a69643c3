"""The actor: takes what the world has ready, writes it as rows, answers with the newest weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from freewheel.actors.history import History
from freewheel.config import WorldConfig
from freewheel.contracts import Array, Columns, Policy
from freewheel.errors import EnvError
from freewheel.memory.counts import Counts
from freewheel.memory.lanes import Bootstrap, Bootstraps, Lanes, Writer
from freewheel.report.episodes import Episode, Episodes
from freewheel.report.ledger import Page
from freewheel.report.phases import COUNTERS, PHASES
from freewheel.worlds.world import Ended, Group, Ready, World

ENV, INFER, WRITE, FETCH = (PHASES.index(name) for name in ("env", "infer", "write", "fetch"))
ROWS_BEGUN, ROWS, CHOICES, FETCHED = (COUNTERS.index(n) for n in ("rows_begun", "rows", "choices", "fetched"))


class Weights(Protocol):
    """Where a policy's weights come from, and which they are."""

    @property
    def version(self) -> int: ...

    def fetch(self) -> bool: ...


class GroupActor:
    """One policy's place in a world: plays the lanes of a group and writes their rows.

    Lane 0 of the group is lane `first_lane` of the policy.
    """

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
        self.index, self.group, self.policy, self.weights, self.lanes, self.writer = (
            index,
            group,
            policy,
            weights,
            lanes,
            writer,
        )
        self.counts, self.pace, self.bootstraps, self.first_lane = counts, pace, bootstraps, first_lane
        self.episodes = Episodes(group.num_lanes)
        self._config = config
        stack = config.stack
        self.history = History(writer.spec.fields, group.num_lanes, stack) if stack > 1 else None
        self._none = {  # of a final observation, which no action follows
            f.name: np.zeros((group.num_lanes, *f.shape), f.dtype) for f in writer.spec.fields if not f.is_observation
        }
        self._never = np.zeros(group.num_lanes, np.bool_)
        self._enter: Callable[[int], None] = page.enter if page else _nothing
        self._count: Callable[[int, int], None] = page.count if page else _nothing
        self._ready: Ready | None = None
        self._seen: Columns = {}
        self._step = self._unshown = 0
        self.num_steps = 0  # taken by this actor

    @property
    def is_waiting(self) -> bool:
        """Lanes wait for an answer."""
        return self._ready is not None

    def receive(self, ready: Ready, seconds: float) -> list[Episode]:
        """Takes the outcomes of earlier actions; the episodes that ended with them."""
        self._enter(WRITE)
        self._step = self.counts.steps
        steps = len(ready.lanes) - int(np.count_nonzero(ready.first))
        if ready.ended is not None:
            steps += len(ready.ended.lanes)
            self._write_ends(ready.ended)
        finished = self.episodes.add(ready.lanes, ready.reward, ready.first, ready.ended, self._step + steps, seconds)
        self._seen = ready.obs if self.history is None else self.history.push(ready.lanes, ready.obs, ready.first)
        self._ready = ready if len(ready.lanes) else None
        self._unshown += steps
        self.num_steps += steps
        self.counts.add_steps(steps)
        return finished

    def may_answer(self) -> bool:
        return bool(self.pace.may_answer(self._unshown))

    def show(self) -> None:
        """What it has in hand, before it sleeps: the learner may be waiting for just that."""
        if not self._unshown:
            return
        ready = self._ready
        if self.bootstraps is not None and ready is not None:
            self._enter(INFER)
            values = self.policy.bootstrap(self._seen)
            assert values is not None
            goes_on = ~ready.first
            lanes, reward = ready.lanes[goes_on], learned(ready.reward[goes_on], self._config)
            self.bootstraps.put(Bootstrap(lanes + self.first_lane, reward, values[goes_on]), self.lanes)
        self.pace.show(self._unshown)
        self._unshown = 0

    def answer(self, world: World) -> None:
        """Chooses the actions, writes the rows, and sends."""
        ready = self._ready
        assert ready is not None
        if self.weights.fetch():
            self._count(FETCHED, 1)
            self.policy.refresh()
        self._enter(INFER)
        refused = self.policy.refuse(ready.obs)
        if refused is not None:
            self._refuse(world, int(ready.lanes[refused[0]]), refused[1])
        choice = self.policy.choose(self._seen, ready.lanes, ready.first, self._step)
        self._count(CHOICES, 1)
        self._enter(WRITE)
        never = self._never[: len(ready.lanes)]
        self._append(ready.lanes, {**ready.obs, **choice.columns}, ready.reward, never, never)
        self._enter(ENV)
        world.send(self.index, ready.lanes, choice.actions)
        self._ready = None
        if self._unshown:
            self.pace.show(self._unshown)
            self._unshown = 0

    def _write_ends(self, ended: Ended) -> None:
        none = {name: zeros[: len(ended.lanes)] for name, zeros in self._none.items()}
        self._append(ended.lanes, {**ended.obs, **none}, ended.reward, ended.terminated, ended.truncated)

    def _append(self, lanes: Array, fields: Columns, reward: Array, terminated: Array, truncated: Array) -> None:
        # Counted before and after: what an actor had begun when it died is then known to the row.
        self._count(ROWS_BEGUN, len(lanes))
        own = lanes + self.first_lane if self.first_lane else lanes
        reward = learned(reward, self._config)
        self.writer.append(own, fields, reward, terminated, truncated, self.weights.version)
        self._count(ROWS, len(lanes))

    def _refuse(self, world: World, lane: int, what: str) -> None:
        raise EnvError(
            f"{world.name} (lane {lane + self.first_lane}) gave {what}, at step {self.episodes.length_of(lane)} of "
            "its episode. Allow at least one, or end the episode there."
        )


class Actor:
    """Acts in one world, whose groups may be played by several policies. `turn` is called again and again.

    A turn takes what the world has ready and answers it. Where the pace of a policy does not allow that yet, the answer is owed:
    the next turn gives it.
    """

    def __init__(self, world: World, groups: Sequence[GroupActor], page: Page | None = None) -> None:
        self.world, self.groups = world, groups
        self.finished: list[tuple[int, Episode]] = []  # episodes that ended, each with its group
        self.seconds = 0.0  # of the run, for its episodes
        self._enter: Callable[[int], None] = page.enter if page else _nothing

    @property
    def owes(self) -> bool:
        """Lanes wait for an answer."""
        return any(group.is_waiting for group in self.groups)

    def turn(self) -> bool:
        """False while the pace holds it back, or the world has nothing ready."""
        if not self.owes:
            self._enter(ENV)
            received = self.world.recv()
            if not received:
                return False
            for ready in received:
                ended = self.groups[ready.group].receive(ready, self.seconds)
                if ended:
                    self.finished += [(ready.group, episode) for episode in ended]
        waiting = [group for group in self.groups if group.is_waiting]
        if not all(group.may_answer() for group in waiting):
            for group in waiting:
                group.show()
            return False
        for group in waiting:
            group.answer(self.world)
        return True

    def wait(self) -> None:
        """Until the learner that it waits for has caught up, or for a moment. A world that is idle waits by itself."""
        for group in self.groups:
            if group.is_waiting and not group.may_answer():
                group.pace.wait_to_act()
                return

    def take_finished(self) -> list[tuple[int, Episode]]:
        finished, self.finished = self.finished, []
        return finished

    def end(self) -> None:
        """No more turns come: what it has in hand is shown, and the world is closed."""
        for group in self.groups:
            group.show()
        self.world.close()


def learned(reward: Array, config: WorldConfig) -> Array:
    """The rewards as they are learned from: scaled, then clipped."""
    if config.reward_scale != 1.0:
        reward = (reward * config.reward_scale).astype(np.float32)
    if config.reward_clip > 0.0:
        reward = np.clip(reward, -config.reward_clip, config.reward_clip)
    return reward


def _nothing(*_: int) -> None:
    """In place of a mark where there is no ledger."""
