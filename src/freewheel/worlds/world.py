"""The contract of every world: lanes behind recv and send, never a barrier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from freewheel.spec import Space

Array = np.ndarray[Any, Any]

# Field name of the row spec ("obs", or "obs.pos" for nested spaces) -> C-contiguous array [k, *shape] of the field's
# dtype: what a lane's writer takes as it is.
Obs = dict[str, Array]

# An env that takes longer for one step is taken for dead.
TIMEOUT_S = 60.0
# How an episode ended, as bits of one byte. The core knows the first two.
TERMINATED, TRUNCATED, GOES_ON = 1, 2, 4


@dataclass(slots=True)
class Ended:
    """Episodes that ended: their true final observations, which no action follows."""

    lanes: Array
    obs: Obs
    reward: Array
    terminated: Array
    truncated: Array
    goes_on: Array | None = (
        None  # where only a life was lost: an end for learning, within a game whose return is counted on
    )


@dataclass(slots=True)
class Ready:
    """Lanes that wait for an action, with the observation to choose it from; `lanes` is never empty.

    `reward` arrived with the observation and is 0 where `first`: there the observation begins an episode.
    The rows of one recv are those of `ended`, then these. Arrays stay as they are until the next recv.
    """

    lanes: Array
    obs: Obs
    reward: Array
    first: Array
    ended: Ended | None


class World(Protocol):
    """A batch of lanes. Whoever calls recv sends an action for each lane it was given, then calls recv again.
    Where lanes `may_rest`, some may be left without one for good.

    An episode's end comes in `Ready.ended`; its lane comes in `Ready.lanes` with `first` in the same recv or a later one.
    """

    name: str
    num_lanes: int
    may_rest: bool
    obs_space: Space
    action_space: Space

    def recv(self, timeout_s: float = TIMEOUT_S) -> Ready: ...

    def send(self, lanes: Array, actions: Array) -> None:
        """Row i of `actions` is for lane `lanes[i]`."""

    def close(self) -> None:
        """Safe to call twice."""

    def state(self) -> dict[str, Array] | None:
        """What `set_state` needs to go on from here; None when this world cannot. Belongs between send and recv."""

    def set_state(self, state: dict[str, Array] | None) -> list[int]:
        """The lanes that go on exactly where they were; the others begin a new episode."""
