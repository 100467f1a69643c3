"""The parts of a run and what they promise each other. Read this file first.

    World → Actor (Policy) → Memory → Learner (Algo) → weights → Actor, at the speed that Pace allows

Every part is written once, for any world, algorithm and runtime. `World` is in worlds/world.py; run/plan.py lists a run's parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from freewheel.spec import RowSpec, Space

if TYPE_CHECKING:  # importing torch takes seconds; settings, spaces and worlds do without it
    from torch import Generator, Tensor, nn

Array = np.ndarray[Any, Any]
Columns = dict[str, Array]  # by the field names of a row: "obs.position", "action", "log_prob"
ColumnSpec = tuple[str, tuple[int, ...]]  # dtype and shape
Seed = Callable[[str], int]  # the seed of a random stream, by its name
Batch = Mapping[str, Any]  # tensors by name; obs and next_obs may be dicts of tensors
Draws = Mapping[str, "Tensor"]  # all random inputs of an update
Hyper = Mapping[str, "Tensor"]  # numbers that change during a run: "lr", "clip"


class Choice(NamedTuple):
    """What a policy chose for some rows: the actions for the world, and all columns that it adds to the rows."""

    actions: Columns
    columns: Columns


class Policy(Protocol):
    """How one set of weights acts."""

    extra: Mapping[str, ColumnSpec]  # columns that it adds to a row, besides the action
    refresh: Callable[[], None]  # called when the weights have changed

    @property
    def epsilon(self) -> float | None: ...  # mean probability of a random action, if it has one
    def choose(self, obs: Columns, lanes: Array, first: Array, step: int) -> Choice:
        """Actions for training. `first` marks lanes whose episode begins here; `step` counts the steps of the run."""

    def greedy(self, obs: Columns) -> Columns: ...  # the best actions, without randomness
    def bootstrap(self, obs: Columns) -> Array | None: ...  # state values where a rollout is cut, if they are needed
    def refuse(self, obs: Columns) -> tuple[int, str] | None: ...  # the first row that allows no action, and why
    def use(self, net: nn.Module) -> None: ...  # acts with this network from now on: in fewer bits, or on a device
    def state(self) -> dict[str, Any]: ...  # its random streams, as arrays: a resumed run continues them
    def set_state(self, state: Mapping[str, Any]) -> list[str]: ...  # returns what could not be restored


class Lesson(Protocol):
    """What becomes due at once: some batches from a replay, or epochs of minibatches of one rollout.
    Weights are published, saved and counted between lessons, never within one."""

    rows: Sequence[Any]  # whole rollouts, the newest first; empty for a replay
    num_versions: int  # versions of the weights that it makes

    # Each batch has `given` and `draws`: one entry per call of the update. `prepared` is `Algo.prepare` of each of `rows`.
    def batches(self, prepared: Sequence[Mapping[str, Any]] = ()) -> Iterator[Any]: ...
    def learned(self, batch: Any, outcomes: Sequence[Any]) -> None: ...  # priorities, or how far the policy moved


class Memory(Protocol):
    """The rows of one policy, as lessons."""

    file: str  # the name of its rows in a checkpoint
    is_always_saved: bool  # or only with checkpoint.replay
    has_fixed_size: bool  # all batches have the same number of rows
    has_priorities: bool
    generator: Generator  # of the random inputs of updates
    num_samples: int  # rows in all batches of the newest lesson
    sample_age: float  # mean age of a recent batch, in rows
    oldest_version: int  # of the weights that acted in it
    warning: str | None  # what looks wrong in the first rows; None before them

    def lesson(self, share_done: float, version: int, bootstraps: Any) -> Lesson | None: ...
    def example(self) -> tuple[Batch, Draws]: ...  # laid out as every update's inputs: to compile before any row exists
    def metrics(self) -> dict[str, float]: ...
    def totals(self) -> dict[str, int]: ...  # counters for the ledger
    def skip(self) -> None: ...  # a restarted learner cannot know which rows were used: leaves them out
    def lost_on_resume(self) -> list[str]: ...  # what a checkpoint does not hold, for the user
    def state(self) -> dict[str, Any]: ...
    def set_state(self, state: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


class Pace(Protocol):
    """Who may go on: actors that are too far ahead of their learner wait, and so does a learner with nothing due."""

    target: float  # the replay ratio to hold; 0 for none
    first_due: int  # steps of the policy before its first update, at least

    def may_answer(self, pending: int) -> bool: ...  # by an actor that has so many outcomes not yet shown
    def show(self, n: int) -> None: ...  # by an actor: n more outcomes are in rows or bootstraps
    def wait_to_act(self) -> None: ...
    def begin(self, is_again: bool) -> None: ...  # by a new learner, before its first lesson
    def due(self) -> bool: ...
    def backlog(self) -> int: ...  # lessons or updates that wait for the learner
    def share_done(self, all_steps: int) -> float: ...  # of the run, for schedules
    def learned(self, updates: int, memory: Any) -> None: ...  # by the learner, after a lesson is published
    def wait_to_learn(self) -> None: ...
    def achieved(self) -> float: ...  # rows sampled per step, so far
    def before_save(self, memory: Any) -> None: ...
    def resume(self, state: Mapping[str, Any], memory: Any) -> list[str]: ...  # memory: None if its rows are lost
    def state(self) -> dict[str, Any]: ...
    def counted_from(self) -> dict[str, Any]: ...  # for `set_state` of the other roles of a resumed run
    def set_state(self, state: Mapping[str, Any]) -> None: ...


Forward = Callable[..., "Tensor"]  # forward(params, obs, noise, taus): a pass through the network with these weights
LossFunction = Callable[[Forward, Any, Any, Batch, Draws, Hyper], "tuple[Tensor, Any]"]


@dataclass(frozen=True)
class TargetRule:
    """The target copy moves towards its parameters by `tau` every `every_updates`, and becomes equal every `refresh_updates`."""

    tau: float
    every_updates: int = 1
    refresh_updates: int = 0  # never


@dataclass(frozen=True)
class ParamGroup:
    """Parameters whose names begin with `prefix`: one optimiser step for all, and one slice of the vector of weights."""

    name: str
    prefix: str = ""
    lr: str = "lr"  # its name in `Hyper`
    clip_norm: float = 0.0  # 0 does not clip
    target: TargetRule | None = None
    decays: bool = True  # adamw's weight decay holds for it


@dataclass(frozen=True)
class Loss:
    """`function(forward, params, target, batch, draws, hyper)` trains its groups. Each loss sees the steps of those before it."""

    function: LossFunction
    groups: tuple[int, ...] = (0,)  # neighbours
    name: str = "loss"  # in the log


@dataclass(frozen=True)
class Lookahead:
    """`function(forward, target, batch, draws)`: what the first loss needs from the target weights only, as `names` in its batch.
    It may run early, in another process, and sees next_obs and the draws whose names begin with target_."""

    names: tuple[str, ...]
    function: Callable[[Forward, Any, Batch, Draws], dict[str, Tensor]]


class Algo(Protocol):
    """An algorithm with the settings and spaces of one policy: a file of `algos/`, or your own module:name.
    `Defaults`, `FromReplay` and `FromRollouts` in `algos/` implement most of it."""

    Settings: ClassVar[type]
    net: nn.Module
    groups: Sequence[ParamGroup]
    losses: Sequence[Loss]
    outcome: Any  # the type of what the first loss returns besides the loss
    lookahead: Lookahead | None
    custom_loss: str | None  # the name of the user's own loss
    batch_rows: int  # rows per update

    def policy(self, net: nn.Module, seed: Seed, lanes: range, all_lanes: int, dials: Any) -> Policy: ...
    def memory(self, lanes: Any, seed: Seed, prefetch: int) -> Any: ...  # a Memory
    def pace(self, counts: Any, num_lanes: int, is_local: bool, dials: Any) -> Any: ...  # a Pace
    def draws(self, rows: int, generator: Generator) -> dict[str, Tensor]: ...
    def hyper(self, share_done: float) -> dict[str, float]: ...  # numbers besides the learning rate
    def prepare(self, rows: Any, learner: Any, is_new: bool) -> dict[str, Any]: ...  # of a rollout: advantages, returns
    def observe(self, rows: Any, learner: Any) -> None: ...  # after a lesson: statistics for normalisation
    def stats(self) -> dict[str, Tensor]: ...  # these statistics, for a checkpoint
    def metrics(self) -> dict[str, float]: ...
    def warnings(self, metrics: Mapping[str, float]) -> list[str]: ...  # what looks wrong in them, each once
    def num_updates(self, steps: int) -> float: ...  # that so many steps make due
    def updates_together(self) -> int: ...  # updates per call, as one graph if they are compiled
    def publish_every(self) -> tuple[int, float]: ...  # updates and seconds between two versions of the weights
    def lane_rows(self, num_lanes: int, is_local: bool) -> int: ...
    def refuse_memory(self, spec: RowSpec, num_lanes: int) -> None: ...  # raises if this machine cannot hold the rows


class Role(Protocol):
    """A part that runs by itself: actor or learner. The sequential runtime calls one after the other; local gives each a process."""

    def turn(self) -> bool: ...  # does what can be done now; False: nothing, call `wait`
    def wait(self) -> None: ...  # sleeps until there may be something to do, at most for a moment


@dataclass(frozen=True)
class Spaces:
    """What a policy sees and does, and how many lanes it plays."""

    obs: Space
    action: Space
    num_lanes: int
