"""APPO: PPO that collects while it learns. V-trace corrects the rows of older policies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from freewheel.algos import ppo
from freewheel.algos.from_rollouts import RolloutSettings
from freewheel.config.ranges import AboveZero, NotNegative
from freewheel.contracts import Array, Seed, Spaces
from freewheel.memory.rollout import Collected


@dataclass(frozen=True)
class APPOConfig(ppo.PPOConfig):
    """PPO with V-trace."""

    rho_bar: AboveZero = 1.0
    """V-trace rho-bar: upper bound on the importance weight of a row."""

    c_bar: NotNegative = 1.0
    """V-trace c-bar: upper bound on the importance weights of the rows after it."""


@dataclass(frozen=True)
class Settings(RolloutSettings):
    """Settings of APPO."""

    ppo: APPOConfig = field(default_factory=APPOConfig)


class Algorithm(ppo.Algorithm):
    name = "appo"
    Settings = Settings  # type: ignore[assignment]
    # One rollout is collected while another is learned from. More would only be older.
    defaults = {**ppo.Algorithm.defaults, "rollout.max_lag": 1}  # noqa: RUF012
    preset_sections = ("ppo",)
    is_lockstep = False
    shares_cores = True
    revalues = True
    _rho = 1.0

    def __init__(self, config: Any, spaces: Spaces, seed: Seed, body: Any = None, loss: Any = None) -> None:
        super().__init__(config, spaces, seed, body, loss)
        self.max_lag = config.rollout.max_lag

    def estimate(self, rows: Collected, learner: Any) -> tuple[Array, Array, Array, Array]:
        """By the weights before the first update of the lesson.

        Where a lane is cut at an outcome that is not in a row yet, the value comes from the actor that holds it.
        """
        config = self.config.ppo
        out = self.outputs(learner, rows.obs)
        with torch.inference_mode():
            log_prob: Array = self.actions.log_prob(out[:, :-1], torch.from_numpy(rows.action))[0].numpy()
        value, ratio = np.zeros_like(rows.value), np.ones_like(rows.value)
        value[rows.kept], ratio[rows.kept] = out[:, -1].numpy(), np.exp(log_prob - rows.columns["log_prob"])
        self._rho = float(np.minimum(ratio[rows.kept], config.rho_bar).mean())
        after = np.array(rows.next_value)
        after[:, :-1] = np.where(rows.goes_on[:, :-1], value[:, 1:], after[:, :-1])
        given = (rows.reward, value, after, rows.terminated, rows.goes_on, ratio)
        goal, advantage = vtrace(*given, config.gamma, config.gae_lambda, config.rho_bar, config.c_bar)
        return value[rows.kept], log_prob, goal[rows.kept], advantage[rows.kept]

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), "rho": self._rho}


def vtrace(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    goes_on: Array,
    ratio: Array,
    gamma: float,
    trace_lambda: float = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
) -> tuple[Array, Array]:
    """Of arrays [..., T] in the order of time: the goals of the values, and the advantages.

    `ratio` is the probability of the action by the policy that learns, divided by that of the policy that acted. Values are of the
    policy that learns; `next_value`, `terminated` and `goes_on` are as in `ppo.advantages`. `rho_bar` bounds the weight of a
    step's own TD error, `c_bar` the weights of the TD errors of later steps.

    If all ratios are 1, this is GAE. If `trace_lambda` is 1, this is V-trace as published.
    """
    rho, c = np.minimum(ratio, np.float32(rho_bar)), np.minimum(ratio, np.float32(c_bar))
    delta = reward + np.float32(gamma) * next_value * ~terminated - value
    factor = np.float32(gamma * trace_lambda) * goes_on
    above = ppo.scan(rho * delta, factor * c)  # goal - value
    next_above = np.zeros_like(above)
    next_above[..., :-1] = above[..., 1:]
    return value + above, rho * (delta + factor * next_above)
