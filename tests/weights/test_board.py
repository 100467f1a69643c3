"""The board: a version is never seen with another version's bytes."""

from __future__ import annotations

import mmap
import multiprocessing as mp
import threading
from multiprocessing.connection import Connection

import pytest
import torch

from freewheel.errors import ConfigError, ReplayError
from freewheel.memory.counter import Counters
from freewheel.weights.board import Board

PARAMETERS = 4096
HEADER_FLOATS = SLOT_HEADER_FLOATS = 16  # as board.hpp lays them out: 8 words each


def test_publish_and_fetch() -> None:
    board = Board(40)
    mine = torch.full((10,), 7.0)
    assert board.version == 0
    assert board.fetch(mine) is None
    assert mine.tolist() == [7.0] * 10
    assert board.publish(torch.arange(10.0)) == 1
    assert board.fetch(mine, newer_than=0) == 1
    assert mine.tolist() == list(range(10))
    assert board.fetch(mine, newer_than=1) is None
    for version in range(2, 9):
        assert board.publish(torch.full((10,), float(version))) == version
    assert board.fetch(mine, newer_than=1) == 8
    assert mine.tolist() == [8.0] * 10


@pytest.mark.parametrize("first", [2**32 - 5, 2**64 - 5])
def test_f20_versions_past_their_limits(first: int) -> None:
    board = Board(4, first_version=first)
    mine = torch.zeros(1)
    for i in range(1, 12):
        assert board.publish(torch.tensor([float(i)])) == (first + i) % 2**64
        assert board.fetch(mine, newer_than=(first + i - 1) % 2**64) == (first + i) % 2**64
        assert mine.item() == i


def test_a_wait_for_the_next_version() -> None:
    board = Board(4)
    assert not board.wait(newer_than=0, timeout_s=0.05)
    timer = threading.Timer(0.1, board.publish, (torch.ones(1),))
    timer.start()
    assert board.wait(newer_than=0, timeout_s=30)
    timer.join()


def test_bad_calls_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_bytes=0"):
        Board(0)
    board = Board(40)
    for wrong in (torch.zeros(9), torch.zeros(20)[::2], torch.zeros(10, dtype=torch.float64)):
        with pytest.raises(ReplayError, match="the board carries 40 bytes"):
            board.publish(wrong)
        with pytest.raises(ReplayError, match="the board carries 40 bytes"):
            board.fetch(wrong)
    assert board.version == 0


def publish_numbers(board: Board, stop: Counters, ready: Connection) -> None:
    flat = torch.empty(PARAMETERS)
    version = board.version
    while not stop.value(0):
        version += 1
        flat.fill_(float(version % 2**24))
        assert board.publish(flat) == version
        if version == 100:
            ready.send("busy")


def test_f10_weights_are_never_torn_between_processes() -> None:
    board, stop = Board(PARAMETERS * 4), Counters(1)
    ours, theirs = mp.Pipe()
    child = mp.get_context("forkserver").Process(target=publish_numbers, args=(board, stop, theirs), daemon=True)
    child.start()
    assert ours.poll(60)
    ours.recv()
    mine = torch.empty(PARAMETERS)
    fetched = missed = last = 0
    try:
        while fetched < 20_000:
            version = board.fetch(mine)
            if version is None:
                missed += 1
                continue
            low, high = mine.aminmax()
            assert low == high == version % 2**24
            assert version >= last
            last = version
            fetched += 1
        # The same reading without the check: copies of the raw slots must show mixtures.
        raw = torch.frombuffer(mmap.mmap(board.segment.core.fd, board.segment.num_bytes), dtype=torch.float32)
        slot = raw[HEADER_FLOATS + SLOT_HEADER_FLOATS :][:PARAMETERS]
        torn = 0
        for _ in range(200_000):
            mine.copy_(slot)
            low, high = mine.aminmax()
            torn += int(low != high)
            if torn > 3:
                break
    finally:
        stop.add(0)
        child.join(30)
        ours.close()
        theirs.close()
    assert torn > 3, "an unchecked reader saw nothing torn: the test cannot see"
    assert child.exitcode == 0
