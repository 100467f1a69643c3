"""Returns and lengths of episodes, counted per lane from the rows of a world."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from freewheel.contracts import Array
from freewheel.errors import CheckpointError

WINDOW = 100  # the usual number of episodes in a reported mean return
_DAMAGE = (KeyError, TypeError, ValueError, OverflowError)


class EndedRows(Protocol):
    """The episodes that ended in one `recv` of a world: their lanes and their last rewards."""

    lanes: Array
    reward: Array
    goes_on: Array | None


@dataclass(frozen=True, slots=True)
class Episode:
    """A finished episode of `length` env steps. `step` and `seconds` say when it ended, counted from the start of the run."""

    lane: int
    ret: float
    length: int
    step: int = 0
    seconds: float = 0.0
    policy: str = ""  # the policy that played it, if the run has several


class Window:
    """The number of finished episodes, and the returns of the last 100."""

    def __init__(self) -> None:
        self.num_finished = 0
        self.returns: deque[float] = deque(maxlen=WINDOW)
        self.mean: float | None = None  # worked out when an episode ends: actors ask for it every turn

    def add(self, *returns: float) -> None:
        self.returns.extend(returns)
        self.num_finished += len(returns)
        self._average()

    def _average(self) -> None:
        self.mean = math.fsum(self.returns) / len(self.returns) if self.returns else None

    def state(self) -> dict[str, Any]:
        return {"last_returns": list(self.returns), "num_finished": self.num_finished}

    def set_state(self, state: Mapping[str, Any]) -> None:
        try:
            returns = deque((float(value) for value in state["last_returns"]), maxlen=WINDOW)
            self.returns, self.num_finished = returns, int(state["num_finished"])
            self._average()
        except _DAMAGE as error:
            raise CheckpointError(f"the state of the episode counts is damaged: {error!r}.") from error


class Episodes:
    """Return and length of each lane's running episode, and a window of finished ones.

    Sums are float64 (rewards are float32): the return of a long episode is exact enough, and a saved state goes on exactly.
    """

    def __init__(self, num_lanes: int) -> None:
        self.window = Window()
        self._returns = np.zeros(num_lanes, np.float64)
        self._lengths = np.zeros(num_lanes, np.int64)

    def add(
        self,
        lanes: Array,
        reward: Array,
        first: Array,
        ended: EndedRows | None = None,
        step: int = 0,
        seconds: float = 0.0,
    ) -> list[Episode]:
        """Counts one `recv` of a world; returns the episodes that ended in it, in its order.

        The reward of an episode's first row does not count. A lane that begins again without an end (its env was
        restarted) loses its count. If a game goes on after the loss of a life, so does the count.
        """
        finished, going_on = ([], None) if ended is None else self._finish(ended, step, seconds)
        self._returns[lanes] += reward
        self._lengths[lanes] += 1
        if np.count_nonzero(first):  # faster than any()
            begun = lanes[first]
            if going_on is not None:
                self._lengths[going_on] -= 1  # the row just counted is the first of the next life
                begun = begun[~np.isin(begun, going_on)]
            self.forget_running(begun)
        return finished

    def _finish(self, ended: EndedRows, step: int, seconds: float) -> tuple[list[Episode], Array | None]:
        """The episodes that ended, and the lanes that only lost a life."""
        lanes, reward, going_on = ended.lanes, ended.reward, None
        if ended.goes_on is not None and ended.goes_on.any():
            going_on = lanes[ended.goes_on]
            self._returns[going_on] += reward[ended.goes_on]
            self._lengths[going_on] += 1
            lanes, reward = lanes[~ended.goes_on], reward[~ended.goes_on]
        returns = self._returns[lanes] + reward
        lengths = self._lengths[lanes] + 1
        self.forget_running(lanes)
        self.window.add(*returns.tolist())
        rows = zip(lanes.tolist(), returns.tolist(), lengths.tolist(), strict=True)
        return [Episode(lane, ret, length, step, seconds) for lane, ret, length in rows], going_on

    def length_of(self, lane: int) -> int:
        """Steps of the lane's running episode."""
        return int(self._lengths[lane])

    def running(self, lanes: Array, least: int = 1) -> Array:
        """Those of the lanes whose running episode has at least so many steps."""
        return lanes[self._lengths[lanes] >= least]

    def cut(self, lanes: Array, step: int = 0) -> list[Episode]:
        """The running episodes of these lanes, as if they ended here."""
        rows = zip(lanes.tolist(), self._returns[lanes].tolist(), self._lengths[lanes].tolist(), strict=True)
        return [Episode(lane, ret, length, step) for lane, ret, length in rows]

    def state(self) -> dict[str, Any]:
        """For a checkpoint: JSON keeps these floats exactly."""
        return {"returns": self._returns.tolist(), "lengths": self._lengths.tolist(), **self.window.state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        try:
            returns, lengths = np.array(state["returns"], np.float64), np.array(state["lengths"], np.int64)
        except _DAMAGE as error:
            raise CheckpointError(f"the state of the episode counts is damaged: {error!r}.") from error
        if returns.shape != self._returns.shape or lengths.shape != self._lengths.shape:
            raise CheckpointError(
                f"the episode counts were saved for {returns.size} lanes, this run has {len(self._returns)}. "
                "Resume with the same number of lanes."
            )
        self.window.set_state(state)
        self._returns, self._lengths = returns, lengths

    def forget_running(self, lanes: Array) -> None:
        """Drops the counts of these lanes' running episodes, when their envs start again."""
        self._returns[lanes] = 0.0
        self._lengths[lanes] = 0
