"""F14: a checkpoint of a run in which any bit has changed is named, and the one before it is used."""

from __future__ import annotations

import os
import random
from pathlib import Path

import fault_fixtures
from fault_runs import TIMES, Nursery

from freewheel.store.checkpoint import load_newest

starter, nursery = fault_fixtures.starter, fault_fixtures.nursery

FLIPS = 1_000 * TIMES
SEED = 20261414


def test_f14_flipped_bits_in_the_checkpoint_of_a_run(nursery: Nursery, tmp_path: Path) -> None:
    small = {"steps": 300, "checkpoint.every_steps": 100, "checkpoint.replay": True, "replay.rows": 400}
    run = nursery.start(tmp_path, "fault_envs:Plain", {**small, "local.actors": 1})
    assert run.wait() == 0, run.err
    whole = run.checkpoint()
    assert whole is not None
    newest, before = sorted(whole.path.parent.iterdir(), reverse=True)[:2]
    files = sorted(newest.iterdir())
    assert len(files) == 4, "the replay is not there"
    chance = random.Random(SEED)
    for flip in range(FLIPS):
        path = files[flip % len(files)]
        with open(path, "r+b") as file:
            at, bit = chance.randrange(path.stat().st_size), chance.randrange(8)
            old = os.pread(file.fileno(), 1, at)
            os.pwrite(file.fileno(), bytes([old[0] ^ 1 << bit]), at)
            found = load_newest(newest.parent)
            os.pwrite(file.fileno(), old, at)
        where = f"seed {SEED}, flip {flip}: bit {bit} of byte {at} of {path.name}"
        assert found.path == before, where
        assert len(found.warnings) == 1, where
        assert str(newest) in found.warnings[0], where
    assert load_newest(newest.parent).path == newest
    with open(newest / "state.json", "r+b") as file:
        file.write(b" ")
    words = ["train", "--resume", run.name(), "--steps", str(whole.step + 100), "--quiet", "--json"]
    again = nursery.call(tmp_path, "freewheel.cli.main:main", words)
    assert again.wait() == 0, again.err
    assert f"runs/{run.name()}/checkpoints/{newest.name}: state.json is damaged" in again.err
    assert f"Resumed at step {int(before.name[5:]):,}" in again.err
