"""F01: an actor that is killed is replaced alone; what it had committed stays, and the ledger balances to the row."""

from __future__ import annotations

import random
import re
import signal
from pathlib import Path
from typing import Any

import fault_fixtures
from fault_runs import TIMES, Nursery

starter, nursery = fault_fixtures.starter, fault_fixtures.nursery

KILLS = 20
WORKING = 12  # of them, the last ones: of actors that are past their start, however slow this machine is
LANES = 4
TURN = 2  # rows of a lane in one turn at most: the last of an episode and the first of the next
SEED = 20260101
SETTINGS = {
    "local.restarts": 1000,
    "replay.rows": 4_000_000,  # nothing is overwritten, so that every row can be looked at
    "local.free": True,
    "world.kwargs": '{"pause_s": 0.0002}',
}
POINTS = ("reserve", "write", "commit", "spawn")
LIVES = 2 * len(POINTS)  # that end at a point, of each of the two actors


def test_f01_actors_killed_at_random_moments(nursery: Nursery, tmp_path: Path) -> None:
    for part in range(TIMES):
        check(nursery, tmp_path / str(part), SEED + part)


def test_f01_actors_killed_at_named_points(nursery: Nursery, tmp_path: Path) -> None:
    """Before a row, in the middle of one, before it is counted, and before the actor's first instruction."""
    for part in range(TIMES):
        check_points(nursery, tmp_path / str(part), SEED + part)


def check_points(nursery: Nursery, folder: Path, seed: int) -> None:
    chance, kills, where = random.Random(seed), 2 * LIVES, f"seed {seed}: "
    entries = [
        f"actor-{index} {point} {1 if point == 'spawn' else chance.randint(1, 60)}"
        for index in range(2)
        for point in chance.sample(POINTS * 2, LIVES)
    ]
    plan = {
        "env": "fault_envs:Numbered",
        "settings": SETTINGS,
        "environment": {"FREEWHEEL_FAULT_POINTS": ", ".join(entries)},
        "acts": [["wait_for_deaths", {"count": kills}]],
    }
    run = nursery.drive(folder, plan)
    code = run.wait(110)
    facts = run.facts
    assert code == 0, where + run.err
    assert facts["trouble"] == [], where + run.err
    assert facts["lives"] == {"learner": 0, "actor-0": LIVES, "actor-1": LIVES, "compiler": -1, "target": -1}, where
    assert len(re.findall(r"died by SIGKILL at step [\d,]+; restart ", run.err)) == facts["deaths"] == kills, where
    assert_balanced(facts, folder, where, kills)
    # Each life but those that ended at once opened its two lanes anew.
    assert facts["epochs"] == [1 + LIVES - LIVES // len(POINTS)] * LANES, where


def check(nursery: Nursery, folder: Path, seed: int) -> None:
    kill = {"role": "actor", "number": signal.SIGKILL, "gap_s": (0.0, 0.25)}
    plan = {
        "env": "fault_envs:Numbered",
        "seed": seed,
        "settings": SETTINGS,
        "acts": [
            ["hit", {**kill, "count": KILLS - WORKING}],
            ["hit", {**kill, "count": WORKING, "works": True}],
        ],
    }
    run = nursery.drive(folder, plan)
    code, where = run.wait(110), f"seed {seed}: "
    facts = run.facts
    assert code == 0, where + run.err
    assert facts["trouble"] == [], where + run.err
    assert len(facts["hits"]) == facts["deaths"] == KILLS, where
    assert facts["lives"]["learner"] == 0, where + "the learner was restarted too"
    assert sum(life for name, life in facts["lives"].items() if name.startswith("actor")) == KILLS, where
    assert len(re.findall(r"died by SIGKILL at step [\d,]+; restart ", run.err)) == KILLS, where
    assert all(hit["old_is_gone"] for hit in facts["hits"]), where
    assert_balanced(facts, folder, where, KILLS)
    # Each life that worked opened its lanes anew.
    assert sum(facts["epochs"]) >= LANES // 2 * WORKING, where


def assert_balanced(facts: dict[str, Any], folder: Path, where: str, kills: int) -> None:
    """The counts of the ledger, the heads of the lanes, the rows in them and the envs' own counts tell the same."""
    lanes_of_one = LANES // 2
    most = kills * lanes_of_one * TURN
    lost = facts["begun"] - facts["committed"]
    assert 0 <= lost <= most, where
    assert facts["counted"] <= facts["committed"], where
    assert facts["begun"] - facts["counted"] <= most, where
    given = {path.name: int.from_bytes(path.read_bytes(), "little") for path in (folder / "given").iterdir()}
    rows = facts["rows"]
    assert sum(map(len, rows.values())) == facts["committed"], where
    lost_by_envs = 0
    for who, count in given.items():
        written = rows.get(who, [])
        assert len({lane for lane, _ in written}) <= 1, where + "an env wrote two lanes"
        assert [n for _, n in written] == list(range(1, len(written) + 1)), where + "a row is missing or twice"
        assert 0 <= count - len(written) <= TURN, where + f"env {who} lost {count - len(written)} rows"
        lost_by_envs += count - len(written)
    assert sum(given.values()) == facts["committed"] + lost_by_envs, where
    assert lost_by_envs <= most, where
    assert lost <= lost_by_envs, where
