"""Episode returns and lengths, counted per lane from what a world gives."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from freewheel.errors import CheckpointError

Array = np.ndarray[Any, Any]
WINDOW = 100  # the usual number of episodes behind a reported return


class EndedRows(Protocol):
    """The episodes that ended in one `recv` of a world: their lanes, and the rewards of their last rows."""

    @property
    def lanes(self) -> Array: ...
    @property
    def reward(self) -> Array: ...
    @property
    def goes_on(self) -> Array | None: ...


@dataclass(frozen=True, slots=True)
class Episode:
    """A finished episode: `step` and `seconds` are those of the run when it ended, `length` its env steps."""

    lane: int
    ret: float
    length: int
    step: int = 0
    seconds: float = 0.0
    policy: str = ""  # who played it, where there are several


class Window:
    """The returns of the last 100 finished episodes, whoever played them."""

    def __init__(self) -> None:
        self.num_finished = 0
        self._returns: deque[float] = deque(maxlen=WINDOW)

    def add(self, ret: float) -> None:
        self._returns.append(ret)
        self.num_finished += 1

    @property
    def mean(self) -> float | None:
        return math.fsum(self._returns) / len(self._returns) if self._returns else None

    def state(self) -> dict[str, Any]:
        return {"last_returns": list(self._returns), "num_finished": self.num_finished}

    def set_state(self, state: Mapping[str, Any]) -> None:
        try:
            self._returns = deque((float(value) for value in state["last_returns"]), maxlen=WINDOW)
            self.num_finished = int(state["num_finished"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise CheckpointError(f"the state of the episode counts is damaged: {error!r}.") from error


class Episodes:
    """Running return and length of each lane, and the last finished ones.

    Sums are float64 (rewards are float32), so that a long episode's return is that of its rewards, and so that a saved state
    goes on exactly.
    """

    def __init__(self, num_lanes: int) -> None:
        self.num_finished = 0
        self._returns = np.zeros(num_lanes, np.float64)
        self._lengths = np.zeros(num_lanes, np.int64)
        self._window: deque[float] = deque(maxlen=WINDOW)
        self.return_mean: float | None = None  # of the last 100 finished episodes

    def add(
        self,
        lanes: Array,
        reward: Array,
        first: Array,
        ended: EndedRows | None = None,
        step: int = 0,
        seconds: float = 0.0,
    ) -> list[Episode]:
        """Counts one `recv` of a world; gives the episodes that ended in it, in its order.

        What comes with a row that begins an episode is no reward. A lane that begins without having ended (its env was
        restarted) loses what it had counted. Where a game goes on after the loss of a life, so does what is counted.
        """
        finished, going_on = ([], None) if ended is None else self._finish(ended, step, seconds)
        self._returns[lanes] += reward
        self._lengths[lanes] += 1
        if first.any():
            begun = lanes[first]
            if going_on is not None:
                self._lengths[going_on] -= 1  # their first row is the one that was just counted
                begun = begun[~np.isin(begun, going_on)]
            self._returns[begun] = 0.0
            self._lengths[begun] = 0
        return finished

    def _finish(self, ended: EndedRows, step: int, seconds: float) -> tuple[list[Episode], Array | None]:
        """The episodes that ended, and the lanes that lost a life only."""
        lanes, reward, going_on = ended.lanes, ended.reward, None
        if ended.goes_on is not None and ended.goes_on.any():
            going_on = lanes[ended.goes_on]
            self._returns[going_on] += reward[ended.goes_on]
            self._lengths[going_on] += 1
            lanes, reward = lanes[~ended.goes_on], reward[~ended.goes_on]
        returns = self._returns[lanes] + reward
        lengths = self._lengths[lanes] + 1
        self._returns[lanes] = 0.0
        self._lengths[lanes] = 0
        self._window.extend(returns.tolist())
        self._average()
        self.num_finished += len(lanes)
        rows = zip(lanes.tolist(), returns.tolist(), lengths.tolist(), strict=True)
        return [Episode(lane, ret, length, step, seconds) for lane, ret, length in rows], going_on

    def _average(self) -> None:
        self.return_mean = math.fsum(self._window) / len(self._window) if self._window else None

    @property
    def last_returns(self) -> list[float]:
        """The returns behind `return_mean`, oldest first."""
        return list(self._window)

    def length_of(self, lane: int) -> int:
        """Steps of the lane's running episode."""
        return int(self._lengths[lane])

    def state(self) -> dict[str, Any]:
        """For a checkpoint: JSON keeps these floats exactly."""
        return {
            "returns": self._returns.tolist(),
            "lengths": self._lengths.tolist(),
            "last_returns": list(self._window),
            "num_finished": self.num_finished,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        try:
            returns = np.array(state["returns"], np.float64)
            lengths = np.array(state["lengths"], np.int64)
            window = [float(value) for value in state["last_returns"]]
            num_finished = int(state["num_finished"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise CheckpointError(f"the state of the episode counts is damaged: {error!r}.") from error
        if returns.shape != self._returns.shape or lengths.shape != self._lengths.shape:
            raise CheckpointError(
                f"the episode counts were saved for {returns.shape} lanes, this run has {len(self._returns)}. "
                "Resume with the same number of lanes."
            )
        self._returns, self._lengths = returns, lengths
        self._window = deque(window, maxlen=WINDOW)
        self._average()
        self.num_finished = num_finished

    def forget_running(self, lanes: Array) -> None:
        """Drops what the running episodes of these lanes have counted, when their envs begin anew."""
        self._returns[lanes] = 0.0
        self._lengths[lanes] = 0
