"""A seed for every episode, from only the run's seed, the lane and the number of the episode.

So an episode does not depend on earlier ones or on the order of lanes, and can be replayed.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
_STRIDE = 0x9E3779B97F4A7C15


def lane_key(seed: int, lane: int) -> int:
    return _mix(_mix(seed & _MASK) + (lane + 1) * _STRIDE)


def episode_seed(key: int, episode: int) -> int:
    """Below 2**31, which every env accepts."""
    return _mix(key + (episode + 1) * _STRIDE) >> 33


def _mix(x: int) -> int:
    """The finaliser of splitmix64: every bit of the input changes every bit of the output, in a microsecond."""
    x &= _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
