"""The soak sees every process of a run, and its verdict sees what grows."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import soak
from soak import Sample, Soak, Walk, counts_of, slope_mb_per_hour

import freewheel


def test_it_looks_at_every_process_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without faults, a few seconds long."""
    monkeypatch.setattr(soak, "SAMPLE_S", 0.1)
    monkeypatch.setattr(soak, "FAULT_S", 1e6)
    watcher = Soak(minutes=0.03, seed=0)
    settings = {**soak.SETTINGS, "log.folder": str(tmp_path), "seed": 0}
    run = freewheel.train(Walk, steps=10**9, settings=settings, preset="none", callbacks=[watcher], is_quiet=True)
    watcher.finish()
    roles = {name for sample in watcher.samples for name, _ in sample.counts}
    assert roles == {"supervisor", "learner", "actor-0", "actor-1"}
    assert {name for sample in watcher.samples for name, _ in sample.memory_mb} == roles
    fds, threads = watcher.samples[-1].counts["supervisor", 0]
    assert fds > 3
    assert threads >= threading.active_count()
    assert watcher.samples[-1].segments > 0
    assert soak.verdict(watcher, run.folder) == []


def grown(mb_per_hour: float, fds_per_minute: float = 0.0) -> list[Sample]:
    """Half an hour of one role, of which a new life begins after ten minutes."""
    found = []
    for at in range(0, 1800, 10):
        life, age = divmod(at, 600) if at < 1200 else (1, at - 600)
        who = ("learner", life)
        counts = (10 + int(at / 60 * fds_per_minute), 4)
        found.append(Sample(float(at), at, {who: 100 + age / 3600 * mb_per_hour + 50 * (age == 0)}, {who: counts}, 1))
    return found


@pytest.mark.parametrize("slope", [0.0, 5.0])
def test_a_slope_is_of_lives_without_their_first_minute(slope: float) -> None:
    assert slope_mb_per_hour(grown(slope), "learner") == pytest.approx(slope, abs=1e-6)
    assert slope_mb_per_hour(grown(slope), "actor-0") is None


def test_descriptors_that_grow_are_seen() -> None:
    early, late = soak.thirds(counts_of(grown(0.0, fds_per_minute=0.5), "learner", 0))
    assert late > early
    early, late = soak.thirds(counts_of(grown(0.0), "learner", 1))
    assert (early, late) == (4, 4)
