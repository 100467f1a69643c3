"""One turn of an actor whose rows are learned from once: take what is ready; the learner may learn; answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from freewheel.actors.history import History
from freewheel.actors.loop import CHOICES, ENV, INFER, ROWS, ROWS_BEGUN, WRITE, learned
from freewheel.actors.sample import Sampler, first_forbidden
from freewheel.config import WorldConfig
from freewheel.errors import EnvError
from freewheel.memory.lanes import Writer
from freewheel.memory.rollout import Tail
from freewheel.nets.actor_critic import mask_field
from freewheel.report.episodes import Episode, Episodes
from freewheel.report.ledger import Page
from freewheel.worlds.world import Ended, Obs, Ready, World

Array = np.ndarray[Any, Any]


class RolloutActor:
    """`receive`, then `answer`, again and again. Between the two nobody has chosen an action yet: what is learned there
    counts for the very next one, so all rows of a rollout come from one policy where lanes go in step.
    """

    def __init__(
        self,
        world: World,
        writer: Writer,
        sampler: Sampler,
        config: WorldConfig,
        first_lane: int = 0,
        page: Page | None = None,
    ) -> None:
        self.world, self.writer, self.sampler = world, writer, sampler
        self.episodes = Episodes(world.num_lanes)
        self._config = config
        stack = config.stack
        self.history = History(writer.spec.fields, world.num_lanes, stack) if stack > 1 else None
        self._mask, self._first_lane = mask_field(world.obs_space), first_lane
        self._spans = sampler.actions.spans
        self._action_shape, self._action_dtype = world.action_space.shape or (), world.action_space.dtype
        self._never = np.zeros(world.num_lanes, np.bool_)
        self._enter: Callable[[int], None] = page.enter if page else lambda phase: None
        self._count: Callable[[int, int], None] = page.count if page else lambda counter, n: None
        self._ready: Ready | None = None
        self._seen: Obs = {}

    def receive(self, step: int, seconds: float = 0.0) -> tuple[int, list[Episode]]:
        """The steps that were completed (`step` of the run were before), and the episodes that ended with them."""
        self._enter(ENV)
        ready = self.world.recv()
        self._enter(WRITE)
        steps = len(ready.lanes) - int(np.count_nonzero(ready.first))
        if ready.ended is not None:
            steps += len(ready.ended.lanes)
            self._write_ends(ready.ended)
        finished = self.episodes.add(ready.lanes, ready.reward, ready.first, ready.ended, step + steps, seconds)
        self._seen = ready.obs if self.history is None else self.history.push(ready.lanes, ready.obs, ready.first)
        if self._mask is not None:
            self._check_mask(ready)
        self._ready = ready
        return steps, finished

    def tail(self) -> Tail:
        """Of the lanes that wait for an answer: the reward of their last action, and the value of where it led."""
        ready = self._waiting()
        self._enter(INFER)
        goes_on = ~ready.first
        lanes, reward = ready.lanes[goes_on], learned(ready.reward[goes_on], self._config)
        return Tail(lanes + self._first_lane, reward, self.sampler.values(self._seen)[goes_on])

    def answer(self, version: int) -> None:
        """Chooses the actions, writes the rows, and sends."""
        ready = self._waiting()
        self._enter(INFER)
        acted = self.sampler.act(self._seen, ready.lanes)
        self._count(CHOICES, 1)
        self._enter(WRITE)
        never = self._never[: len(ready.lanes)]
        columns = {"action": acted.stored, "log_prob": acted.log_prob, "value": acted.value}
        self._append(ready.lanes, {**ready.obs, **columns}, ready.reward, never, never, version)
        self._enter(ENV)
        self.world.send(ready.lanes, acted.for_env)
        self._ready = None

    def _waiting(self) -> Ready:
        if self._ready is None:
            raise ValueError("nothing waits for an answer: receive() comes first.")
        return self._ready

    def _write_ends(self, ended: Ended) -> None:
        count = len(ended.lanes)
        none, zeros = np.zeros((count, *self._action_shape), self._action_dtype), np.zeros(count, np.float32)
        fields = {**ended.obs, "action": none, "log_prob": zeros, "value": zeros}
        self._append(ended.lanes, fields, ended.reward, ended.terminated, ended.truncated, 0)

    def _append(
        self, lanes: Array, fields: Obs, reward: Array, terminated: Array, truncated: Array, version: int
    ) -> None:
        self._count(ROWS_BEGUN, len(lanes))
        own = lanes + self._first_lane if self._first_lane else lanes
        self.writer.append(own, fields, learned(reward, self._config), terminated, truncated, version)
        self._count(ROWS, len(lanes))

    def _check_mask(self, ready: Ready) -> None:
        found = first_forbidden(ready.obs[self._mask or ""], self._spans)
        if found is not None:
            row, what = found
            lane = int(ready.lanes[row])
            raise EnvError(
                f"{self.world.name} (lane {lane + self._first_lane}) gave {what}, at step {self.episodes.length_of(lane)} of "
                "its episode. Allow at least one, or end the episode there."
            )
