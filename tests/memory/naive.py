"""A replay as one would write it without a thought for speed: what the real one must agree with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Row:
    number: int
    obs: dict[str, Any]
    action: Any
    reward: float
    terminated: bool
    truncated: bool
    step: int
    version: int

    @property
    def is_last(self) -> bool:
        return self.terminated or self.truncated


@dataclass
class Sample:
    reward: float
    discount: float
    steps: int
    obs: dict[str, Any]
    next_obs: dict[str, Any]
    action: Any
    version: int
    age: int


@dataclass
class NaiveLane:
    lane_rows: int
    first_row: int
    rows: list[Row] = field(default_factory=list)  # every row ever written
    begins_episode: bool = True

    def append(
        self, obs: dict[str, Any], action: Any, reward: float, terminated: bool, truncated: bool, version: int
    ) -> None:
        step = 0 if self.begins_episode else self.rows[-1].step + 1
        number = (self.first_row + len(self.rows)) % 2**64
        self.rows.append(Row(number, obs, action, reward, terminated, truncated, step, version))
        self.begins_episode = terminated or truncated

    def reopen(self) -> None:
        self.begins_episode = True

    def samples(self, n_step: int, gamma: float, stack: int, pad: str) -> dict[int, Sample]:
        """Every row that may be drawn, by its number, with what it must give."""
        found = {}
        wrapped = len(self.rows) > self.lane_rows
        first = len(self.rows) - self.lane_rows + stack - 1 if wrapped else 0
        for at in range(first, len(self.rows)):
            made = self._sample(at, n_step, gamma, stack, pad)
            if made is not None:
                found[self.rows[at].number] = made
        return found

    def _sample(self, at: int, n_step: int, gamma: float, stack: int, pad: str) -> Sample | None:
        start = self.rows[at]
        if start.is_last:
            return None
        reward, discount, end = 0.0, 1.0, at
        while end - at < n_step:
            if end + 1 == len(self.rows):
                return None  # the n steps are not there yet
            after = self.rows[end + 1]
            if after.step == 0:
                break  # another writer took over: the episode was cut here
            end += 1
            reward += discount * after.reward
            discount *= gamma
            if after.is_last:
                if after.terminated:
                    discount = 0.0
                break
        if end == at:
            return None
        return Sample(
            reward,
            discount,
            end - at,
            self._stack(at, stack, pad),
            self._stack(end, stack, pad),
            start.action,
            start.version,
            len(self.rows) - at,
        )

    def _stack(self, at: int, stack: int, pad: str) -> dict[str, Any]:
        frames = []
        for back in range(stack - 1, -1, -1):
            if back <= self.rows[at].step:
                frames.append(self.rows[at - back].obs)
            elif pad == "zero":
                frames.append({name: np.zeros_like(value) for name, value in self.rows[at].obs.items()})
            else:
                frames.append(self.rows[at - self.rows[at].step].obs)
        if stack == 1:
            return frames[0]
        return {name: np.stack([frame[name] for frame in frames]) for name in frames[0]}
