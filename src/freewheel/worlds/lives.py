"""The loss of a life as an end for learning: the game goes on, and its return is counted to its own end."""

from __future__ import annotations

import numpy as np

from freewheel.worlds.world import Array, Ended, Ready


def end_lives(ready: Ready, lost: Array) -> None:
    """Ends the episodes of these lanes, and begins the next ones with the observation that ended them: no env is reset."""
    at = np.flatnonzero(np.isin(ready.lanes, lost))
    if not len(at):
        return
    none, all_ = np.zeros(len(at), np.bool_), np.ones(len(at), np.bool_)
    obs = {name: rows[at] for name, rows in ready.obs.items()}
    ended = Ended(ready.lanes[at], obs, ready.reward[at], all_, none, all_)
    ready.reward, ready.first = ready.reward.copy(), ready.first.copy()  # a world may use its own again
    ready.reward[at], ready.first[at] = 0, True
    ready.ended = ended if ready.ended is None else joined(ready.ended, ended)


def joined(one: Ended, two: Ended) -> Ended:
    return Ended(
        np.concatenate((one.lanes, two.lanes)),
        {name: np.concatenate((rows, two.obs[name])) for name, rows in one.obs.items()},
        np.concatenate((one.reward, two.reward)),
        np.concatenate((one.terminated, two.terminated)),
        np.concatenate((one.truncated, two.truncated)),
        np.concatenate((lives_of(one), lives_of(two))),
    )


def lives_of(ended: Ended) -> Array:
    return np.zeros(len(ended.lanes), np.bool_) if ended.goes_on is None else ended.goes_on
