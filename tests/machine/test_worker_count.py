"""More than one process for a gradient: only where it is clearly faster."""

from __future__ import annotations

import pytest

from freewheel.machine import trial, worker_count


@pytest.mark.parametrize(
    ("shared_s", "count", "reason"),
    [
        (0.017, 2, "Computing each gradient in 2 processes (20 ms in one process, 17 ms in 2 processes)."),
        (0.018, 1, "Computing each gradient in one process (20 ms in one process, 18 ms in 2 processes)."),
    ],
)
def test_more_workers_have_to_be_clearly_faster(
    shared_s: float, count: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "measure", lambda calls, num: dict(zip(calls, ([0.03, 0.02], [shared_s]), strict=True)))
    found = worker_count.choose(2, lambda: None, lambda: None, 0.02)
    assert (found.chosen, found.reason) == (count, reason)


@pytest.mark.parametrize(("update_s", "calls"), [(0.05, 2), (0.0, 10), (1.0, 1)])
def test_a_round_is_short(update_s: float, calls: int) -> None:
    made: list[int] = []
    worker_count.choose(2, lambda: made.append(1), lambda: None, update_s)
    assert len(made) == 1 + calls * trial.ROUNDS
