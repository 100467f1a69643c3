"""The parts of a run and what they promise each other. Read this file first.

    World → Actor (Policy, Writer) → Memory → Learner (Update of an Algo) → weights → Actor, at the speed that Pace allows

Every part is written once: any world, any algorithm, any number of policies, any runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from freewheel.spec import Space

if TYPE_CHECKING:  # settings, spaces and worlds are known without torch, whose import takes seconds
    from torch import Generator, Tensor, nn

Array = np.ndarray[Any, Any]
Columns = dict[str, Array]  # by the names of a row's fields: "obs.position", "action", "log_prob"
ColumnSpec = tuple[str, tuple[int, ...]]  # dtype and shape
Seed = Callable[[str], int]  # the seed of a stream of chance, by its name
Batch = Mapping[str, Any]  # tensors by name; obs and next_obs may be dicts of tensors
Draws = Mapping[str, "Tensor"]  # everything random that an update is given
Hyper = Mapping[str, "Tensor"]  # numbers that change while a run goes on: "lr", "clip"


class Choice(NamedTuple):
    """What a policy chose for some rows: the action columns that the world takes, and all columns it adds to the rows."""

    actions: Columns
    columns: Columns


class Policy(Protocol):
    """How one set of weights acts. Its weights belong to whoever bound the network to a vector."""

    extra: Mapping[str, ColumnSpec]  # columns that it adds to a row beside the action
    refresh: Callable[[], None]  # called when the weights have changed

    @property
    def epsilon(self) -> float | None:
        """Mean chance of a random action, if it has one."""

    def choose(self, obs: Columns, lanes: Array, first: Array, step: int) -> Choice:
        """Actions to explore by. `first`: the episode begins here. `step` counts the steps of the run."""

    def greedy(self, obs: Columns) -> Columns:
        """The best actions, without chance."""

    def bootstrap(self, obs: Columns) -> Array | None:
        """The values of these states, where rollouts are cut; None for policies that need none."""

    def refuse(self, obs: Columns) -> tuple[int, str] | None:
        """The first row that allows no action at all, and what is wrong with it."""

    def use(self, net: nn.Module) -> None: ...  # acts by this network from now on: in fewer bits, or on a device
    def state(self) -> dict[str, Any]:
        """Where its random streams are, as arrays: a resumed run goes on with the same chances."""

    def set_state(self, state: Mapping[str, Any]) -> list[str]: ...  # says what could not be put back


class Lesson(Protocol):
    """What becomes due at once: some batches from a replay, or epochs of minibatches of one rollout.

    Weights are published, saved and counted between lessons, never within one.
    """

    rows: Sequence[Any]  # whole rollouts, the newest first; empty for a replay
    num_versions: int  # versions of the weights that it makes

    def begin(self, prepared: Sequence[Mapping[str, Any]]) -> None:
        """Takes what `Algo.prepare` made of each of `rows`."""

    def batches(self) -> Iterator[Any]:
        """One after the other: `given` and `draws` for each call of the update."""

    def learned(self, batch: Any, outcomes: Sequence[Any]) -> None:
        """What the updates of a batch found: priorities, or how far the policy has moved."""


class Memory(Protocol):
    """Rows of one policy, as lessons."""

    num_samples: int  # rows that the newest lesson's updates were made with

    def lesson(self, share_done: float, version: int, bootstraps: Any) -> Lesson | None: ...

    def example(self) -> tuple[Batch, Draws]:
        """A batch and draws of the shapes, dtypes and strides that every update is given: to compile by, before any row exists."""

    def metrics(self) -> dict[str, float]: ...
    def state(self) -> dict[str, Any]: ...
    def set_state(self, state: Mapping[str, Any]) -> None: ...


class Pace(Protocol):
    """Who may go on: actors ahead of their learner wait, and a learner that has nothing due waits."""

    def may_answer(self, pending: int) -> bool:
        """With so many outcomes in hand that were not shown yet."""

    def show(self, n: int) -> None:
        """By an actor: so many more outcomes stand in rows or bootstraps."""

    def learned(self, updates: int, memory: Any) -> None: ...  # by the learner, after a lesson
    def due(self) -> bool: ...
    def wait_to_act(self) -> None: ...
    def wait_to_learn(self) -> None: ...


Forward = Callable[..., "Tensor"]  # forward(params, obs, noise, taus): a pass through the network with these weights
LossFunction = Callable[[Forward, Any, Any, Batch, Draws, Hyper], "tuple[Tensor, Any]"]


@dataclass(frozen=True)
class TargetRule:
    """A target copy follows its parameters by `tau`, every so many updates."""

    tau: float
    every_updates: int = 1


@dataclass(frozen=True)
class ParamGroup:
    """Parameters whose names begin with `prefix`, stepped together. They lie side by side in the vector of weights."""

    name: str
    prefix: str = ""
    lr: str = "lr"  # its name in `Hyper`
    clip_norm: float = 0.0  # 0 does not clip
    target: TargetRule | None = None


@dataclass(frozen=True)
class Loss:
    """`function(forward, params, target, batch, draws, hyper)` trains one group. Losses go in order; each sees the steps before it."""

    function: LossFunction
    group: int = 0


@dataclass(frozen=True)
class Lookahead:
    """`function(forward, target, batch, draws)`: what the first loss needs of the target weights alone, by these names.

    It sees next_obs and the draws whose names begin with target_. It may be worked out before the update, and is then in the batch.
    """

    names: tuple[str, ...]
    function: Callable[[Forward, Any, Batch, Draws], dict[str, Tensor]]


class Algo(Protocol):
    """An algorithm, bound to the settings and spaces of one policy. One file of `algos/`, or module:name from outside."""

    Settings: ClassVar[type]
    net: nn.Module
    groups: Sequence[ParamGroup]
    losses: Sequence[Loss]
    outcome: Any  # the type of what the first loss tells
    lookahead: Lookahead | None
    custom_loss: str | None  # the name of a loss of the user's
    batch_rows: int  # rows of one update

    def policy(self, net: nn.Module, seed: Seed, lanes: range, all_lanes: int, dials: Any) -> Policy: ...
    def memory(self, lanes: Any, seed: Seed, prefetch: int) -> Any: ...
    def pace(self, counts: Any, num_lanes: int, is_local: bool, dials: Any) -> Any: ...
    def draws(self, rows: int, generator: Generator) -> dict[str, Tensor]: ...

    def hyper(self, share_done: float) -> dict[str, float]:
        """Numbers beside the learning rate, at this share of the run's steps."""

    def prepare(self, rows: Any, learner: Any, is_new: bool) -> dict[str, Any]:
        """Columns of a rollout, once per lesson: advantages, goals."""

    def observe(self, rows: Any, learner: Any) -> None: ...  # after a lesson: statistics that normalise
    def stats(self) -> dict[str, Tensor]: ...  # for a checkpoint, over their own memory
    def metrics(self) -> dict[str, float]: ...


class Role(Protocol):
    """Anything that runs by itself: actor, learner. Sequential calls roles in turn, local gives each a process."""

    def turn(self) -> bool:
        """Does what can be done at once; False: there is nothing, call `wait`."""

    def wait(self) -> None:
        """Sleeps until there may be something to do, or for a moment."""


@dataclass(frozen=True)
class Spaces:
    """What a policy sees and does, and how many lanes it plays."""

    obs: Space
    action: Space
    num_lanes: int
