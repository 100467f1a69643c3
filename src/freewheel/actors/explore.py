"""How much chance there is in an action: epsilon, by step and lane."""

from __future__ import annotations

from typing import Any

import numpy as np

from freewheel.actors.noise import LaneShares
from freewheel.config import ExploreConfig

Array = np.ndarray[Any, Any]


class Explorer:
    """Decides which lanes explore, and what they try.

    Epsilon of each lane at any step is the schedule's, or `override` instead, raised by pulses, never below the floor.
    `override` may be changed while the run goes on. With noisy networks there is no schedule: the noise explores.
    These are the lanes from `first_lane` on of `all_lanes` that a ladder is spread over. What a lane tries follows from the seed, its
    number in the run and its own steps, not from which lanes are ready together with it.
    """

    def __init__(
        self,
        config: ExploreConfig,
        num_lanes: int,
        num_actions: int,
        seed: int,
        has_noise: bool = False,
        first_lane: int = 0,
        all_lanes: int | None = None,
    ) -> None:
        self.config = config
        self.override = config.override
        self.chance = LaneShares(seed, num_lanes, 2 if config.hold_steps == 1 else 3, first_lane)
        self.held = np.zeros((2, num_lanes), np.int64)  # steps that a lane's action is held yet, and its place
        self._num_actions = num_actions
        self._has_noise = has_noise
        self._rungs = _ladder(config, all_lanes or num_lanes)[first_lane : first_lane + num_lanes]

    def epsilon(self, step: int) -> Array:
        """One number per lane."""
        config = self.config
        if self.override is not None:
            epsilon = np.full_like(self._rungs, self.override)
        elif self._has_noise:
            epsilon = np.zeros_like(self._rungs)
        elif config.schedule == "ladder":
            epsilon = self._rungs.copy()
        else:
            epsilon = np.full_like(self._rungs, scheduled(config, step))
        if is_pulse(config, step):
            np.maximum(epsilon, config.pulse_epsilon, out=epsilon)
        return np.maximum(epsilon, config.floor, out=epsilon)

    def explore(self, epsilon: Array, lanes: Array, first: Array) -> tuple[Array, Array]:
        """Which of these lanes explore, and the place of the action that each of them would try."""
        # Drawn also where it is not needed: a lane's draws are as many as its steps.
        drawn = self.chance.draw(lanes)
        begins = drawn[:, 0] < epsilon[lanes]
        tried = (drawn[:, 1] * self._num_actions).astype(np.int64)
        if self.config.hold_steps == 1:
            return begins, tried
        left, place = self.held[:, lanes]
        left[first] = 0
        begins &= left == 0
        lengths = 1 + (drawn[:, 2] * self.config.hold_steps).astype(np.int64)
        left, place = np.where(begins, lengths, left), np.where(begins, tried, place)
        explores = left > 0
        self.held[:, lanes] = left - explores, place
        return explores, place


def scheduled(config: ExploreConfig, step: int) -> float:
    if config.schedule == "constant":
        return config.end
    share = min(step / config.over_steps, 1.0)
    if config.schedule == "linear":
        return config.start + share * (config.end - config.start)
    return float(config.start * (config.end / config.start) ** share)


def is_pulse(config: ExploreConfig, step: int) -> bool:
    """Pulses begin after every `pulse_every_steps` steps."""
    every = config.pulse_every_steps
    return every > 0 and step >= every and step % every < config.pulse_steps


def _ladder(config: ExploreConfig, num_lanes: int) -> Array:
    """base ** (1 + power * i / (n - 1)): most lanes near greedy, a few that try much."""
    rung = np.arange(num_lanes) / max(num_lanes - 1, 1)
    return np.asarray(config.ladder_base ** (1 + config.ladder_power * rung), np.float64)
