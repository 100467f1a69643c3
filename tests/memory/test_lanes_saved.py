"""Lanes on disk: what was saved is drawn again, row for row and priority for priority."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from freewheel.errors import CheckpointError
from freewheel.memory.lanes import Lanes, Writer
from freewheel.memory.replay import Replay
from freewheel.spec import RowSpec

SPEC = RowSpec.of(spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4))


def write(writer: Writer, lane: int, first: int, count: int, ends: tuple[int, ...] = ()) -> None:
    for i in range(first, first + count):
        fields = {"obs": np.full((1, 3), i, np.float32), "action": np.array([i % 4])}
        is_end = np.array([i in ends])
        writer.append(np.array([lane]), fields, np.array([i], np.float32), is_end, np.array([False]), version=i)


def drawn(replay: Replay) -> list[Any]:
    batch = replay.sample()
    return [
        batch.array(name).tolist() for name in ("obs", "next_obs", "reward", "discount", "weight", "row", "version")
    ]


@pytest.mark.parametrize("count", [5, 30, 90], ids=["begun", "nearly-full", "wrapped"])
@pytest.mark.parametrize("prioritized", [False, True])
def test_what_was_saved_is_drawn_again(tmp_path: Path, count: int, prioritized: bool) -> None:
    def opened(lanes: Lanes) -> Replay:
        return Replay(lanes, 8, n_step=2, prioritized=prioritized, seed=1)

    lanes = Lanes(SPEC, 2, 32)
    writer, replay = lanes.writer(), opened(lanes)
    rng = np.random.default_rng(0)
    for lane in (0, 1):
        write(writer, lane, 0, count, ends=(3, 40))
    for _ in range(5):
        replay.update_priorities(replay.sample(), rng.exponential(5, size=8).astype(np.float32))
    for lane in (0, 1):
        write(writer, lane, count, 3)  # not yet seen by the tree
    lanes.save(tmp_path / "rows")
    others = Lanes(SPEC, 2, 32)
    others.restore(tmp_path / "rows")
    again = opened(others)
    again.set_state(replay.state())
    for _ in range(6):
        assert drawn(replay) == drawn(again)
    assert others.rows_written() == lanes.rows_written() == 2 * (count + 3)


def test_a_lane_that_goes_on_is_one_episode_and_another_begins_anew(tmp_path: Path) -> None:
    lanes = Lanes(SPEC, 3, 32)
    writer = lanes.writer()
    for lane in range(3):
        write(writer, lane, 0, 4, ends=(3,) if lane == 2 else ())
    lanes.save(tmp_path / "rows")
    others = Lanes(SPEC, 3, 32)
    others.restore(tmp_path / "rows")
    writer = others.writer(go_on=[0, 2])
    for lane in range(3):
        write(writer, lane, 4, 2)
    steps = {(lane, row): steps for lane, row, steps in bridged(others)}
    assert steps[0, 3] == 1  # from the last saved row to the first after it
    assert (1, 3) not in steps  # cut there
    assert (2, 3) not in steps  # it had ended
    assert steps[2, 4] == 1


def bridged(lanes: Lanes) -> set[tuple[int, int, int]]:
    replay = Replay(lanes, 8, seed=0)
    found: set[tuple[int, int, int]] = set()
    for _ in range(100):
        batch = replay.sample()
        found |= set(zip(*(batch.array(name).tolist() for name in ("lane", "row", "steps")), strict=True))
    return found


def test_a_file_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    lanes = Lanes(SPEC, 2, 32)
    write(lanes.writer(), 0, 0, 20)
    lanes.save(tmp_path / "rows")
    whole = (tmp_path / "rows").read_bytes()
    for name, data in {"cut": whole[:-1], "long": whole + b"x", "empty": b""}.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(CheckpointError, match=name):
            Lanes(SPEC, 2, 32).restore(tmp_path / name)
