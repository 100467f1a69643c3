"""Losses whose first call sabotages the learner's process: only there a loss is ever called."""

from __future__ import annotations

import errno
import multiprocessing
import os
from collections.abc import Callable
from typing import Any

import freewheel
from freewheel.store import saver

calls = 0


def plain(forward: Any, params: Any, target: Any, batch: Any, draws: Any) -> Any:
    q = forward(params, batch["obs"], None, None)
    return q.square().mean(), freewheel.Outcome(batch["reward"].abs(), q.detach(), batch["reward"])


def diverges(*given: Any) -> Any:
    """Good five times, then not finite any more."""
    global calls
    calls += 1
    loss, outcome = plain(*given)
    return loss * (1.0 if calls <= 5 else float("nan")), outcome


def learner_leaves(*given: Any) -> Any:
    """The learner ends at its 60th call, as a success."""
    return leaves("freewheel-learner", *given)


def worker_leaves(*given: Any) -> Any:
    """The same of a gradient worker."""
    return leaves("freewheel-worker-1", *given)


def leaves(who: str, *given: Any) -> Any:
    global calls
    calls += 1
    if calls == 60 and multiprocessing.current_process().name == who:
        os._exit(0)
    return plain(*given)


def fills_the_disk(*given: Any) -> Any:
    """From the first call on the n-th checkpoint fails at its n-th call of the system, until one needs fewer calls."""
    global calls
    calls += 1
    if calls == 1:
        FullDisk()
    return plain(*given)


class FullDisk:
    CALLS = ("open", "write", "fsync", "rename", "mkdir", "readv", "lseek")

    def __init__(self) -> None:
        self.num_saves = self.left = 0
        self.was_hit = True
        self.save = saver.save
        for name in self.CALLS:
            setattr(os, name, self.failing(name, getattr(os, name)))
        saver.save = self.saving

    def saving(self, *given: Any, **named: Any) -> Any:
        if not self.was_hit:
            return self.save(*given, **named)
        self.num_saves += 1
        self.left, self.was_hit = self.num_saves, False
        try:
            return self.save(*given, **named)
        finally:
            self.left = 0
            with open("full_disk", "a") as file:
                file.write(f"{int(self.was_hit)}\n")

    def failing(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def faulty(*given: Any, **named: Any) -> Any:
            if self.left > 0:
                self.left -= 1
                if self.left == 0:
                    self.was_hit = True
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return call(*given, **named)

        return faulty
