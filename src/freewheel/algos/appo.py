"""APPO: PPO that goes on collecting while it learns; rows of an older policy are corrected by V-trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from freewheel.algos import ppo
from freewheel.algos.from_rollouts import RolloutSettings, unused_rollouts
from freewheel.algos.vtrace import vtrace
from freewheel.contracts import Array
from freewheel.memory.rollout import Collected


@dataclass(frozen=True)
class APPOConfig(ppo.PPOConfig):
    """PPO with V-trace."""

    rho_bar: float = 1.0
    """V-trace rho-bar: upper bound on the importance weight of a row."""

    c_bar: float = 1.0
    """V-trace c-bar: upper bound on the importance weights of the rows after it."""


@dataclass(frozen=True)
class Settings(RolloutSettings):
    """Settings of APPO."""

    ppo: APPOConfig = field(default_factory=APPOConfig)


class Algorithm(ppo.Algorithm):
    name = "appo"
    Settings = Settings  # type: ignore[assignment]
    # One rollout is collected while another is learned from: more would only be older.
    defaults = {**ppo.Algorithm.defaults, "rollout.max_lag": 1}  # noqa: RUF012
    preset_sections = ("ppo",)
    is_lockstep = False
    shares_cores = True
    revalues = True
    _rho = 1.0

    @property
    def max_lag(self) -> int:
        return int(self.config.rollout.max_lag)

    def estimate(self, rows: Collected, learner: Any) -> tuple[Array, Array, Array, Array]:
        """By the weights as they are before the first update.

        Only where a lane is cut at an outcome that is in no row yet, the value is that of the actor which holds it.
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
        goal, advantage = vtrace(
            rows.reward,
            value,
            after,
            rows.terminated,
            rows.goes_on,
            ratio,
            config.gamma,
            config.gae_lambda,
            config.rho_bar,
            config.c_bar,
        )
        return value[rows.kept], log_prob, goal[rows.kept], advantage[rows.kept]

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), "rho": self._rho}

    @classmethod
    def unused(cls, config: Any) -> dict[str, str]:
        return unused_rollouts(config)
