"""The algorithm of a run, by name and settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from freewheel.algos import c51, dqn, quantile
from freewheel.algos.algo import Algo, Later, Loss, look_later
from freewheel.config import QConfig
from freewheel.errors import ConfigError

NAMES = ("dqn", "qrdqn", "iqn", "c51", "rainbow")


class Net(Protocol):
    """What an algorithm has to know of a network."""

    num_noise: int
    first_action: int


def make_algo(name: str, q: QConfig, net: Net, custom_loss: Loss | None = None) -> Algo:
    """Rainbow's loss is C51's; what else belongs to it are settings. `custom_loss` takes the place of the algorithm's own."""
    if name not in NAMES:
        raise ConfigError(f"algo={name!r} is not known; choose one of {', '.join(NAMES)}.")
    loss, q_values = _mathematics(name, q, net.first_action)
    fractions = {}
    if name == "iqn":
        fractions = {"taus": q.num_taus, "target_taus": q.num_target_taus}
    noises = ("noise", "target_noise", *(["choose_noise"] if q.double else [])) if net.num_noise else ()
    return Algo(
        name=name,
        loss=custom_loss or loss,
        q_values=q_values,
        draws=partial(_draws, noises=noises, num_noise=net.num_noise, fractions=fractions),
        num_act_noise=net.num_noise,
        num_act_taus=q.num_act_taus if fractions else 0,
        first_action=net.first_action,
        later=None if custom_loss else _later(name, q),
        custom_loss=None if custom_loss is None else getattr(custom_loss, "__name__", type(custom_loss).__name__),
    )


def _mathematics(name: str, q: QConfig, first_action: int) -> tuple[Loss, Callable[[Tensor], Tensor]]:
    if name == "dqn":
        huber = None if q.loss == "mse" else q.huber
        return partial(dqn.loss, double=q.double, huber=huber, first_action=first_action), dqn.q_values
    if name == "qrdqn":
        given = partial(quantile.qrdqn_loss, double=q.double, huber=q.huber, first_action=first_action)
        return given, quantile.q_values
    if name == "iqn":
        given = partial(
            quantile.iqn_loss, double=q.double, huber=q.huber, num_choose=q.num_act_taus, first_action=first_action
        )
        return given, quantile.q_values
    return (
        partial(c51.loss, double=q.double, v_min=q.v_min, v_max=q.v_max, first_action=first_action),
        partial(c51.q_values, v_min=q.v_min, v_max=q.v_max),
    )


def _later(name: str, q: QConfig) -> Later:
    if name == "iqn":
        return partial(quantile.iqn_later, double=q.double, num_choose=q.num_act_taus)
    return look_later


def _draws(
    batch_size: int, generator: torch.Generator, *, noises: tuple[str, ...], num_noise: int, fractions: dict[str, int]
) -> dict[str, Tensor]:
    drawn = {name: torch.randn(num_noise, generator=generator) for name in noises}
    return drawn | {name: torch.rand(batch_size, n, generator=generator) for name, n in fractions.items()}
