"""Quantiles of the return instead of its mean: QR-DQN at fixed fractions, IQN at whichever fractions it is asked for."""

from __future__ import annotations

import torch
from torch import Tensor

from freewheel.algos.algo import Batch, Draws, Forward, Outcome, Params, chosen, look_ahead, midpoints, outcome


def q_values(out: Tensor) -> Tensor:
    """The mean over the quantiles: [B, A, N] to [B, A]."""
    return out.mean(-1)


def quantile_huber(online: Tensor, goal: Tensor, taus: Tensor, kappa: float) -> Tensor:
    """[B]: online quantiles [B, N], whose fractions are taus [B, N] or [N], against samples of the target [B, M].

    Each pair's error u weighs tau if the target lies above and 1 - tau below; sum over the online, mean over the target ones.
    """
    u = goal.unsqueeze(1) - online.unsqueeze(2)
    far = u.abs()
    huber = torch.where(far <= kappa, 0.5 * u.square(), kappa * (far - 0.5 * kappa))
    side = (taus.unsqueeze(-1) - (u.detach() < 0).float()).abs()
    return (side * huber / kappa).mean(2).sum(1)


def qrdqn_loss(
    forward: Forward,
    params: Params,
    target: Params,
    batch: Batch,
    draws: Draws,
    *,
    double: bool,
    huber: float,
    first_action: int = 0,
) -> tuple[Tensor, Outcome]:
    with torch.no_grad():
        later, choose = look_ahead(forward, params, target, batch, draws, double)
        goal = _goal(batch, later, best_of(choose))
    out = forward(params, batch["obs"], draws.get("noise"), None)
    taus = midpoints(out.shape[-1], out.device)
    return _loss(out, goal, taus, batch, huber, first_action)


def iqn_loss(
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
            seen = iqn_later(forward, target, batch, draws, double=double, num_choose=num_choose)
        best = seen["best"] if not double else _best(forward, params, batch, draws.get("choose_noise"), num_choose)
        goal = _goal(batch, seen["later"], best)
    taus = draws["taus"]
    return _loss(forward(params, batch["obs"], draws.get("noise"), taus), goal, taus, batch, huber, first_action)


def iqn_later(
    forward: Forward, target: Params, batch: Batch, draws: Draws, *, double: bool, num_choose: int
) -> dict[str, Tensor]:
    """The quantiles of the next states and, where the target network chooses too, the best action."""
    noise = draws.get("target_noise")
    found = {"later": forward(target, batch["next_obs"], noise, draws["target_taus"])}
    return found if double else found | {"best": _best(forward, target, batch, noise, num_choose)}


def best_of(choose: Tensor) -> Tensor:
    return q_values(choose).argmax(1)


def _best(forward: Forward, by: Params, batch: Batch, noise: Tensor | None, num_choose: int) -> Tensor:
    next_obs = batch["next_obs"]
    device = next(iter(next_obs.values())).device if isinstance(next_obs, dict) else next_obs.device
    return best_of(forward(by, next_obs, noise, midpoints(num_choose, device).unsqueeze(0)))


def _goal(batch: Batch, later: Tensor, best: Tensor) -> Tensor:
    """[B, M]: each quantile of the next state's best action, discounted and with the reward added."""
    quantiles = chosen(later, best)
    reward: Tensor = batch["reward"]
    discount: Tensor = batch["discount"]
    return reward.unsqueeze(1) + discount.unsqueeze(1) * quantiles


def _loss(
    out: Tensor, goal: Tensor, taus: Tensor, batch: Batch, huber: float, first_action: int
) -> tuple[Tensor, Outcome]:
    online = chosen(out, batch["action"] - first_action)
    rows = quantile_huber(online, goal, taus, huber)
    total = (batch["weight"] * rows).mean()
    # The error of the means, which is DQN's: a wide distribution is no reason to see a row more often.
    td = goal.mean(1) - online.mean(1)
    return total, outcome(td.abs(), q_values(out), td)
