"""IQN: quantiles of the return at any fractions that the network is given."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from freewheel.algos.algo import Outcome, Params
from freewheel.algos.value_based import ValueBased, quantile_goal, quantile_loss
from freewheel.contracts import Batch, Draws, Forward, Lookahead, Seed, Spaces
from freewheel.nets.value_net import midpoints


class Algorithm(ValueBased):
    name = "iqn"
    has_fractions = True
    own_settings = ("q.num_taus", "q.num_target_taus", "q.num_act_taus", "q.num_cosines", "q.huber")

    def __init__(self, config: Any, spaces: Spaces, seed: Seed, body: Any = None, loss: Any = None) -> None:
        super().__init__(config, spaces, seed, body, loss)
        self.num_act_taus = config.q.num_act_taus

    def loss(
        self, forward: Forward, params: Params, target: Params, batch: Batch, draws: Draws
    ) -> tuple[Tensor, Outcome]:
        """`taus` and `target_taus` of the draws are the fractions of the online and the target quantiles."""
        q = self.config.q
        with torch.no_grad():
            found = batch if "next_out" in batch else self.look_ahead(forward, target, batch, draws)
            best = self._best(forward, params, batch, draws.get("choose_noise")) if q.double else found["best"]
            goal = quantile_goal(batch, found["next_out"], best)
        taus = draws["taus"]
        out = forward(params, batch["obs"], draws.get("noise"), taus)
        return quantile_loss(out, goal, taus, batch, q.huber, self.first_action)

    def make_lookahead(self) -> Lookahead:
        return Lookahead(("next_out",) if self.config.q.double else ("next_out", "best"), self.look_ahead)

    def look_ahead(self, forward: Forward, target: Params, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """The quantiles of the next states and, where the target network chooses too, the best action."""
        noise = draws.get("target_noise")
        found = {"next_out": forward(target, batch["next_obs"], noise, draws["target_taus"])}
        return found if self.config.q.double else found | {"best": self._best(forward, target, batch, noise)}

    def _best(self, forward: Forward, params: Params, batch: Batch, noise: Tensor | None) -> Tensor:
        """The best next action, by quantiles at evenly spread fractions, as the greedy policy chooses it.

        The fractions are the same for all rows, so that the network embeds them once and not for every row.
        """
        next_obs = batch["next_obs"]
        device = next(iter(next_obs.values())).device if isinstance(next_obs, dict) else next_obs.device
        taus = midpoints(self.config.q.num_act_taus, device).unsqueeze(0)
        return self.q_values(forward(params, next_obs, noise, taus)).argmax(1)

    def draws(self, rows: int, generator: torch.Generator) -> dict[str, Tensor]:
        q, drawn = self.config.q, super().draws(rows, generator)
        counts = {"taus": q.num_taus, "target_taus": q.num_target_taus}
        return drawn | {name: torch.rand(rows, n, generator=generator) for name, n in counts.items()}
