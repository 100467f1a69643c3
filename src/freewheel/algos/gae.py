"""Advantages of the rows of a rollout (GAE), and discounted sums: along time, for all lanes at once."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def advantages(
    reward: Array, value: Array, next_value: Array, terminated: Array, goes_on: Array, gamma: float, gae_lambda: float
) -> Array:
    """Of arrays [..., T] in the order of time: how much better each action was than the value of its state.

    `next_value` is that of the state after the action, whatever follows it: the next row's, the final observation's where the
    episode was truncated, the newest one's where the rollout is cut. It counts for nothing where `terminated`.
    `goes_on` says that the next place of the array is the next step of the same episode: nothing leaks across any other.
    """
    delta = reward + np.float32(gamma) * next_value * ~terminated - value
    return scan(delta, np.float32(gamma * gae_lambda) * goes_on)


def scan(x: Array, factor: Array) -> Array:
    """y[t] = x[t] + factor[t] * y[t + 1] along the last axis, 0 after its end.

    In about log2(T) passes over the whole array: each doubles how far every place has looked ahead.
    """
    y, far = np.array(x), np.array(factor)
    by = 1
    while by < y.shape[-1]:
        y[..., :-by] += far[..., :-by] * y[..., by:]
        far[..., :-by] *= far[..., by:]
        by *= 2
    return y


def running_returns(reward: Array, goes_on: Array, gamma: float, before: Array) -> Array:
    """g[t] = reward[t] + gamma * goes_on[t] * g[t - 1], where g[-1] is `before`: what each episode has gathered up to t.

    `goes_on` says here that the place before belongs to the same episode.
    """
    factor = np.float32(gamma) * goes_on
    first = np.array(reward)
    first[..., 0] += factor[..., 0] * before
    return scan(first[..., ::-1], factor[..., ::-1])[..., ::-1]


def explained(value: Array, target: Array) -> float:
    """The share of the returns' variance that the values explain: 1 is all of it, 0 and less none."""
    spread = float(target.var())
    return 1.0 - float((target - value).var()) / spread if spread > 0 else 0.0
