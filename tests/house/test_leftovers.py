"""The fixture that guards every other test must see what it is there to see (F17)."""

from __future__ import annotations

import os
import subprocess
import threading

import numpy as np
import pytest
from gymnasium import spaces

import conftest
from freewheel.errors import ReplayError
from freewheel.memory.lanes import Lanes
from freewheel.memory.replay import Replay
from freewheel.spec import RowSpec


def test_f17_nothing_is_reported_when_nothing_is_left() -> None:
    assert conftest.left_behind(conftest.state()) == ""


def test_f17_a_process_is_seen() -> None:
    before = conftest.state()
    child = subprocess.Popen(["sleep", "60"])
    try:
        assert "processes" in conftest.left_behind(before)
    finally:
        child.kill()
        child.wait()


def test_f17_a_thread_is_seen() -> None:
    before = conftest.state()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, args=(60,), name="forgotten")
    thread.start()
    try:
        assert "forgotten" in conftest.left_behind(before)
    finally:
        stop.set()
        thread.join()


def test_f17_a_thread_of_the_core_is_seen() -> None:
    lanes = Lanes(RowSpec.of(spaces.Discrete(2), spaces.Discrete(2)), 1, 8)
    before = conftest.state()
    replay = Replay(lanes, 1, prefetch=1)
    with pytest.raises(ReplayError, match="holds 0 rows"):
        replay.sample()
    assert "fw-prefetch" in conftest.left_behind(before)
    replay.close()
    assert conftest.left_behind(before) == ""


def test_f17_a_descriptor_is_seen() -> None:
    before = conftest.state()
    fd = os.open("/dev/null", os.O_RDONLY)
    try:
        assert "/dev/null" in conftest.left_behind(before)
    finally:
        os.close(fd)


@pytest.mark.parametrize("keep", [True, False])
def test_f17_a_segment_is_seen_until_it_is_dropped(keep: bool) -> None:
    before = conftest.state()
    lanes = Lanes(RowSpec.of(spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)), 1, 8)
    if not keep:
        del lanes
    assert ("segments" in conftest.left_behind(before)) == keep
