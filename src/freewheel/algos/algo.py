"""What all algorithms share: the defaults of an algorithm's class."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from freewheel.config import Config
from freewheel.contracts import ColumnSpec, Lookahead, Loss, ParamGroup, Seed, Spaces
from freewheel.errors import ConfigError
from freewheel.nets.masks import WORTHLESS

Given = ParamSpec("Given")
Net = TypeVar("Net", bound=nn.Module)
Params = Any  # what `forward` takes: views of a vector by name, or a network whose tensors are such views


class Outcome(NamedTuple):
    """What an update reports beside its loss, per row: priorities [B] >= 0, action values [B, A], TD errors [B]. Without gradients."""

    priorities: Tensor
    q: Tensor
    td: Tensor

    @classmethod
    def joined(cls, parts: Sequence[Outcome], shares: Sequence[float]) -> Outcome:
        return cls.in_order(parts)

    @classmethod
    def in_order(cls, updates: Sequence[Outcome]) -> Outcome:
        return cls(*(torch.cat(parts) for parts in zip(*updates, strict=True)))

    def metrics(self) -> dict[str, float]:
        """For the log; computed on demand, since most updates are not logged."""
        allowed, td = self.q[~(self.q <= WORTHLESS)], self.td
        q = allowed if len(allowed) else self.q
        return {
            "q_mean": q.mean().item(),
            "q_min": q.min().item(),
            "q_max": q.max().item(),
            "td_abs": td.abs().mean().item(),
        }


class Defaults:
    """An algorithm, bound to the settings and spaces of one policy. Subclasses define the rest.

    `defaults` are its default settings by dotted name. It takes `preset_sections` of presets beside its own. If it `is_lockstep`,
    it learns only from rows of its newest policy: actors wait while it learns.
    """

    name: ClassVar[str]
    Settings: ClassVar[type[Config]] = Config
    defaults: ClassVar[Mapping[str, Any]] = {}
    preset_sections: ClassVar[Sequence[str]] = ()
    is_lockstep: ClassVar[bool] = False
    dials: ClassVar[Sequence[str]] = ("lr",)  # numbers that may change while it runs
    can_sample: ClassVar[bool] = False  # has a stochastic policy
    takes_loss: ClassVar[bool] = False  # the user may give a loss that replaces its own
    needs_bootstraps: ClassVar[bool] = False
    takes_complete: ClassVar[bool] = False  # net.complete: the user may give a network of action values
    uses_mask: ClassVar[bool] = False  # reads the mask of allowed actions
    shares_cores: ClassVar[bool] = False  # its learner computes while all actors act
    trains_as_it_acts: ClassVar[bool] = False  # its network must be the same in training and in evaluation mode
    fewer_updates: ClassVar[str] = ""  # the setting for fewer updates per step, which the account advises
    outcome: ClassVar[Any] = Outcome
    extra: Mapping[str, ColumnSpec] = {}  # columns that its policy adds to a row
    lookahead: Lookahead | None = None
    custom_loss: str | None = None
    config: Any  # its `Settings`
    net: nn.Module
    groups: Sequence[ParamGroup]
    losses: Sequence[Loss]

    def __init__(self, config: Config, spaces: Spaces, seed: Seed) -> None:
        self.config, self.spaces, self.seed = config, spaces, seed

    @classmethod
    def check(cls, config: Any) -> None:
        """Refuses settings that cannot work together."""

    @classmethod
    def unused(cls, config: Any) -> dict[str, str]:
        """Settings without effect, each with the reason."""
        return {}

    @classmethod
    def refuse_dial(cls, config: Any, name: str) -> None:
        """Refuses a dial that this algorithm does not have with these settings."""
        if name not in cls.dials:
            raise ConfigError(f"algo={config.algo} has no dial {name!r}; it has {', '.join(cls.dials)}.")

    @classmethod
    def unused_here(cls, spaces: Spaces, has_loss: bool) -> dict[str, str]:
        """Settings without effect in this env or with these arguments, each with the reason."""
        return {}

    def may_compile(self) -> bool:
        """Sequential runs compile only on request: a run is repeatable only if its updates always have the same form."""
        learner = self.config.learner
        is_worth_it = self.config.runtime == "local" and learner.workers < 2
        return bool(learner.compile == "on" or (learner.compile == "auto" and is_worth_it))

    def draws(self, rows: int, generator: torch.Generator) -> dict[str, Tensor]:
        """The random inputs of one update."""
        return {}

    def hyper(self, share_done: float) -> dict[str, float]:
        """Numbers beside the learning rate that change during a run."""
        return {}

    def prepare(self, rows: Any, learner: Any, is_new: bool) -> dict[str, Any]:
        """Columns of a rollout, once per lesson."""
        return {}

    def observe(self, rows: Any, learner: Any) -> None:
        """Updates the statistics that normalise, after a lesson."""

    def stats(self) -> dict[str, Tensor]:
        """Statistics for a checkpoint, over their own memory."""
        return {}

    def metrics(self) -> dict[str, float]:
        return {}

    def warnings(self, metrics: Mapping[str, float]) -> list[str]:
        """What looks wrong in the metrics of the newest update, each once."""
        return []


def seeded(seed: int, build: Callable[Given, Net], *given: Given.args, **named: Given.kwargs) -> Net:
    """A network with its initial weights, the same in every process."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(*given, **named)
