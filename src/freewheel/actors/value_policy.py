"""A policy of action values: the best action, or by chance another one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import nn

from freewheel.actors.explore import Explorer
from freewheel.actors.infer import Infer
from freewheel.contracts import Array, Choice, Columns, ColumnSpec
from freewheel.memory.dials import Dials


class ValuePolicy:
    """`explorer` decides which lanes explore, `infer` what is best for the others. The dial `epsilon` goes before the schedule."""

    extra: Mapping[str, ColumnSpec] = {}

    def __init__(self, infer: Infer, explorer: Explorer, dials: Dials | None = None) -> None:
        self.infer, self.explorer, self._dials = infer, explorer, dials
        self._dial_version = -1
        self.refresh: Callable[[], None] = _nothing  # where another network follows the weights
        self._epsilon = explorer.epsilon(0)

    @property
    def epsilon(self) -> float | None:
        return float(self._epsilon.mean())

    def choose(self, obs: Columns, lanes: Array, first: Array, step: int) -> Choice:
        if self._dials is not None and self._dials.version != self._dial_version:
            self._dial_version = self._dials.version
            asked = self._dials.value("epsilon")
            self.explorer.override = self.explorer.config.override if asked is None else asked
        self._epsilon = self.explorer.epsilon(step)
        actions = self.infer.act(obs, lanes, *self.explorer.explore(self._epsilon, lanes, first))
        columns = {"action": actions}
        return Choice(columns, columns)

    def greedy(self, obs: Columns) -> Columns:
        return {"action": self.infer.greedy(obs)}

    def bootstrap(self, obs: Columns) -> Array | None:
        return None

    def refuse(self, obs: Columns) -> tuple[int, str] | None:
        return None

    def use(self, net: nn.Module) -> None:
        self.infer.use(net)

    def state(self) -> dict[str, Any]:
        return {
            "random.noise": self.infer.noise.get_state(),
            "random.taus": self.infer.taus.drawn,
            "explore.drawn": self.explorer.chance.drawn,
            "explore.held": self.explorer.held,
        }

    def set_state(self, state: Mapping[str, Any]) -> list[str]:
        self.infer.noise.set_state(state["random.noise"])
        self.explorer.held[...] = np.asarray(state["explore.held"])
        if "explore.drawn" not in state:
            return ["what lanes try is drawn anew: the checkpoint is of a version that drew for all of them together"]
        self.infer.taus.go_to(np.asarray(state["random.taus"]))
        self.explorer.chance.go_to(np.asarray(state["explore.drawn"]))
        return []


def _nothing() -> None:
    """The network is bound to the weights themselves."""
