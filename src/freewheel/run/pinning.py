"""Roles on cores of their own."""

from __future__ import annotations

import os


def pin(number: int) -> None:
    """Binds this process to one of the cores that it may use, in turn."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[number % len(cores)]})
