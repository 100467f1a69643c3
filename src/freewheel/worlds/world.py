"""The contract of every world: groups of lanes behind recv and send, never a barrier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from freewheel.errors import ConfigError, EnvError
from freewheel.spec import Space

Array = np.ndarray[Any, Any]

# Field name of the row spec ("obs", or "obs.pos" for nested spaces; "action", or "action.0") -> C-contiguous array
# [k, *shape] of the field's dtype: what a lane's writer takes as it is.
Columns = dict[str, Array]
Obs = Columns

# An env that takes longer for one step is taken for dead.
TIMEOUT_S = 60.0
# How an episode ended, as bits of one byte. The core knows the first two.
TERMINATED, TRUNCATED, GOES_ON = 1, 2, 4


class _NoColumns(Columns):
    """Shared by every Ready that has no extra columns: a new dict per recv takes longer. Only what has a hash can be a default."""

    __hash__ = object.__hash__  # type: ignore[assignment]


NO_COLUMNS: Columns = _NoColumns()


@dataclass(frozen=True)
class Group:
    """Lanes with the same spaces, numbered from 0: the agents that one policy can play. A sole group has the name ""."""

    name: str
    obs_space: Space
    action_space: Space
    num_lanes: int


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
    """Lanes of one group that wait for an action, with the observation to choose it from; `lanes` is never empty.

    `reward` arrived with the observation and is 0 where `first`: there the observation begins an episode. `extra` has more
    columns of these rows, where the world has some.
    The rows of one recv are those of `ended`, then these. Arrays stay as they are until the next recv.
    """

    lanes: Array
    obs: Obs
    reward: Array
    first: Array
    ended: Ended | None
    group: int = 0
    extra: Columns = NO_COLUMNS


class World(Protocol):
    """Groups of lanes. Whoever calls recv sends an action for each lane it was given, then calls recv again.
    Where lanes `may_rest`, some may be left without one for good.

    An episode's end comes in `Ready.ended`; its lane comes in `Ready.lanes` with `first` in the same recv or a later one.
    """

    name: str
    may_rest: bool

    @property
    def groups(self) -> Sequence[Group]: ...

    def recv(self, timeout_s: float = TIMEOUT_S) -> tuple[Ready, ...]:
        """One Ready for each group that has lanes ready. () says that none is ready within this time, in a world that may be
        idle, such as one of remote simulators; in any other world that is an error.
        """

    def send(self, group: int, lanes: Array, actions: Columns) -> None:
        """Row i of each column of `actions` is for lane `lanes[i]` of the group."""

    def close(self) -> None:
        """Safe to call twice."""

    def state(self) -> dict[str, Array] | None:
        """What `set_state` needs to go on from here; None when this world cannot. Belongs between send and recv."""

    def set_state(self, state: dict[str, Array] | None) -> list[int]:
        """The lanes that go on exactly where they were; the others begin a new episode.

        Counted over all groups, in their order: lane 2 of the second group is the first group's num_lanes + 2.
        """


def sole_group(world: World) -> Group:
    """The group of a world that has only one."""
    if len(world.groups) != 1:
        names = ", ".join(group.name for group in world.groups)
        raise ConfigError(
            f"{world.name} has {len(world.groups)} groups of lanes ({names}), and one policy plays one group. "
            "Give a world with one group."
        )
    return world.groups[0]


def recv_sole(world: World) -> Ready:
    """The lanes of a sole group that are ready, for callers that cannot go on without one."""
    for ready in world.recv():
        return ready
    raise EnvError(
        f"{world.name} had no lane ready within {TIMEOUT_S:g} s. See whether what steps its lanes still runs."
    )
