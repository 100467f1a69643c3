"""The contract of every world: groups of lanes behind recv and send, without a barrier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from freewheel.errors import ConfigError, EnvError
from freewheel.spec import Space

Array = np.ndarray[Any, Any]

# Field name of the row spec ("obs", or "obs.pos" for nested spaces; "action", or "action.0") -> C-contiguous array
# [k, *shape] of the field's dtype, as a lane's writer takes it.
Columns = dict[str, Array]
Obs = Columns

# An env that takes longer for one step counts as dead.
TIMEOUT_S = 60.0
# How an episode ended, as bits of one byte. The core uses the first two.
TERMINATED, TRUNCATED, GOES_ON = 1, 2, 4


class _NoColumns(Columns):
    """The default of `Ready.extra`, shared since a new dict per recv takes longer. A dataclass needs a hashable default."""

    __hash__ = object.__hash__  # type: ignore[assignment]


NO_COLUMNS: Columns = _NoColumns()


@dataclass(frozen=True)
class Group:
    """Lanes with the same spaces, numbered from 0, which one policy can play. A sole group has the name ""."""

    name: str
    obs_space: Space
    action_space: Space
    num_lanes: int


@dataclass(slots=True)
class Ended:
    """Episodes that ended, with their true final observations. No action follows these."""

    lanes: Array
    obs: Obs
    reward: Array
    terminated: Array
    truncated: Array
    goes_on: Array | None = None  # only a life was lost: an end for learning, while the game and its return go on

    @classmethod
    def of(cls, lanes: Array, obs: Obs, reward: Array, ends: Array) -> Ended:
        """`ends` has the sum of TERMINATED, TRUNCATED and GOES_ON for each lane."""
        return cls(lanes, obs, reward, *(ends & flag != 0 for flag in (TERMINATED, TRUNCATED, GOES_ON)))

    @property
    def ends(self) -> Array:
        flags: Array = self.terminated * TERMINATED + self.truncated * TRUNCATED
        return flags if self.goes_on is None else flags + self.goes_on * GOES_ON

    def joined(self, other: Ended) -> Ended:
        lives = [np.zeros(len(one.lanes), np.bool_) if one.goes_on is None else one.goes_on for one in (self, other)]
        return Ended(
            np.concatenate((self.lanes, other.lanes)),
            {name: np.concatenate((rows, other.obs[name])) for name, rows in self.obs.items()},
            np.concatenate((self.reward, other.reward)),
            np.concatenate((self.terminated, other.terminated)),
            np.concatenate((self.truncated, other.truncated)),
            np.concatenate(lives),
        )


@dataclass(slots=True)
class Ready:
    """Lanes of one group that wait for an action, with the observation to choose it from; `lanes` is never empty.

    `reward` came with the observation. Where `first`, the observation begins an episode and the reward is 0. `extra` has more columns
    of these rows, if the world has some.
    The rows of one recv are first those of `ended`, then these. The arrays do not change until the next recv.
    """

    lanes: Array
    obs: Obs
    reward: Array
    first: Array
    ended: Ended | None
    group: int = 0
    extra: Columns = NO_COLUMNS

    def end_lives(self, lost: Array) -> None:
        """Ends the episodes of these lanes, and begins the next ones with the same observation. The envs are not reset."""
        at = np.flatnonzero(np.isin(self.lanes, lost))
        if not len(at):
            return
        none, all_ = np.zeros(len(at), np.bool_), np.ones(len(at), np.bool_)
        obs = {name: rows[at] for name, rows in self.obs.items()}
        ended = Ended(self.lanes[at], obs, self.reward[at], all_, none, all_)
        self.reward, self.first = self.reward.copy(), self.first.copy()  # a world may reuse its own arrays
        self.reward[at], self.first[at] = 0, True
        self.ended = ended if self.ended is None else self.ended.joined(ended)


class World(Protocol):
    """Groups of lanes. The caller of recv sends an action for each lane it got, then calls recv again.
    Where lanes `may_rest`, it may stop sending actions to some of them.

    The end of an episode comes in `Ready.ended`; its lane comes in `Ready.lanes` with `first`, in the same recv or a later one. An
    episode whose lane comes with `first` and without an end was cut: what its last action did is not known.
    """

    name: str
    may_rest: bool

    @property
    def groups(self) -> Sequence[Group]: ...

    def recv(self, timeout_s: float = TIMEOUT_S) -> tuple[Ready, ...]:
        """One Ready for each group that has lanes ready. () if none was ready within this time, in a world that may be idle, such as
        one of remote simulators; any other world raises an error.
        """

    def send(self, group: int, lanes: Array, actions: Columns) -> None:
        """Row i of each column of `actions` is for lane `lanes[i]` of the group."""

    def close(self) -> None:
        """Safe to call twice."""

    def state(self) -> dict[str, Array] | None:
        """What `set_state` needs to go on from here; None if this world cannot. Call it between send and recv."""

    def set_state(self, state: dict[str, Array] | None) -> list[int]:
        """Gives the lanes that go on exactly where they were; the others begin a new episode.

        Lanes are counted over all groups: lane 2 of the second group is the first group's num_lanes + 2.
        """


class OneGroup:
    """What worlds of one group have in common. Such a world cannot be replayed, unless it has a state of its own."""

    def __init__(self, name: str, obs_space: Space, action_space: Space, num_lanes: int) -> None:
        self.name, self.obs_space, self.action_space, self.num_lanes = name, obs_space, action_space, num_lanes
        self.groups = (Group("", obs_space, action_space, num_lanes),)

    def first_mask(self) -> Any:
        """info["action_mask"] of the first reset of a lane; None if there is none. Call it before the first recv."""
        return None

    def state(self) -> dict[str, Array] | None:
        return None

    def set_state(self, state: dict[str, Array] | None) -> list[int]:
        return []


def sole_group(world: World) -> Group:
    """The group of a world that has only one."""
    if len(world.groups) != 1:
        names = ", ".join(group.name for group in world.groups)
        raise ConfigError(
            f"{world.name} has {len(world.groups)} groups of lanes ({names}), and one policy plays one group. "
            "Use a world with one group."
        )
    return world.groups[0]


def recv_sole(world: World) -> Ready:
    """The lanes of a sole group that are ready, for callers that need at least one."""
    for ready in world.recv():
        return ready
    raise EnvError(
        f"{world.name} had no lane ready within {TIMEOUT_S:g} s. Check that the simulators or workers behind it still run."
    )
