"""IQN: quantiles of the return at whichever fractions the network is asked for."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from freewheel.algos.algo import Outcome, Params
from freewheel.algos.qrdqn import best_of, goal_of, loss_of, q_values
from freewheel.algos.value_based import ValueBased
from freewheel.contracts import Batch, Draws, Forward, Lookahead, Seed, Spaces
from freewheel.nets.heads import midpoints


def loss(
    forward: Forward,
    params: Params,
    target: Params,
    batch: Batch,
    draws: Draws,
    *,
    double: bool,
    huber: float,
    num_choose: int,
    first_action: int = 0,
) -> tuple[Tensor, Outcome]:
    """`taus` and `target_taus` of the draws are the fractions of the online and the target quantiles.

    The best action is chosen by `num_choose` quantiles at evenly spread fractions, as the greedy policy does: equal for all rows,
    so that the network works out their part once and not for every row.
    """
    with torch.no_grad():
        seen = batch
        if "later" not in batch:
            seen = look_later(forward, target, batch, draws, double=double, num_choose=num_choose)
        best = seen["best"] if not double else _best(forward, params, batch, draws.get("choose_noise"), num_choose)
        goal = goal_of(batch, seen["later"], best)
    taus = draws["taus"]
    return loss_of(forward(params, batch["obs"], draws.get("noise"), taus), goal, taus, batch, huber, first_action)


def look_later(
    forward: Forward, target: Params, batch: Batch, draws: Draws, *, double: bool, num_choose: int
) -> dict[str, Tensor]:
    """The quantiles of the next states and, where the target network chooses too, the best action."""
    noise = draws.get("target_noise")
    found = {"later": forward(target, batch["next_obs"], noise, draws["target_taus"])}
    return found if double else found | {"best": _best(forward, target, batch, noise, num_choose)}


def _best(forward: Forward, by: Params, batch: Batch, noise: Tensor | None, num_choose: int) -> Tensor:
    next_obs = batch["next_obs"]
    device = next(iter(next_obs.values())).device if isinstance(next_obs, dict) else next_obs.device
    return best_of(forward(by, next_obs, noise, midpoints(num_choose, device).unsqueeze(0)))


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
        q = self.config.q
        given = {"double": q.double, "huber": q.huber, "num_choose": q.num_act_taus, "first_action": self.first_action}
        return loss(forward, params, target, batch, draws, **given)

    def q_values(self, out: Tensor) -> Tensor:
        return q_values(out)

    def make_lookahead(self) -> Lookahead:
        q = self.config.q
        names = ("later",) if q.double else ("later", "best")
        return Lookahead(names, partial(look_later, double=q.double, num_choose=q.num_act_taus))

    def draws(self, rows: int, generator: torch.Generator) -> dict[str, Tensor]:
        q, drawn = self.config.q, super().draws(rows, generator)
        counts = {"taus": q.num_taus, "target_taus": q.num_target_taus}
        return drawn | {name: torch.rand(rows, n, generator=generator) for name, n in counts.items()}
