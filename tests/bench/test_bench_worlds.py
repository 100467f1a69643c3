"""`bench worlds` as small as it goes: every case is there, and peers run beside ours. Nothing here asserts a speed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from freewheel.bench import worlds
from freewheel.bench.settings import WorldsSettings
from freewheel.bench.worlds_plan import Plan, plans_of
from freewheel.errors import ConfigError


def run(capsys: pytest.CaptureFixture[str], **given: Any) -> dict[str, Any]:
    worlds.run(WorldsSettings(**{"rounds": 1, "seconds": 0.02, "json": True, **given}))
    line: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return line


def test_all_cases_are_there_without_peers(capsys: pytest.CaptureFixture[str]) -> None:
    line = run(capsys, against=("none",), envs=("cartpole", "heavy"), lanes=(4,))
    assert line["bench"] == "worlds"
    names = [f"{kind}/cartpole/4" for kind in ("inline", "pool", "vector", "auto")] + ["pool/heavy/4", "auto/heavy/4"]
    assert [case["case"] for case in line["cases"]] == names
    for case in line["cases"]:
        assert case["ours"] > 0
        assert case["unit"] == "rows/s"
        assert (case["peers"], case["ratio"]) == ({}, None)


def test_peers_run_beside_ours(capsys: pytest.CaptureFixture[str]) -> None:
    line = run(capsys, against=("gymnasium",), envs=("cartpole",), lanes=(2,))
    peers = {case["case"]: set(case["peers"]) for case in line["cases"]}
    assert peers == {
        "inline/cartpole/2": {"gym-sync"},
        "pool/cartpole/2": {"gym-async"},
        "vector/cartpole/2": {"gym-vector"},
        "auto/cartpole/2": {"gym-sync", "gym-async"},
    }
    assert all(case["ratio"] > 0 for case in line["cases"])
    assert line["machine"]["versions"]["gym-sync"]


def test_who_is_held_against_whom() -> None:
    peers = ["gym-sync", "gym-async", "gym-vector", "sb3-dummy", "sb3-subproc", "envpool"]
    pool, auto = plans_of("sleep", 128, peers)
    assert (pool.peers, pool.beside, pool.goal) == (("gym-async",), ("sb3-subproc",), 2.0)
    assert auto == Plan("auto", "sleep", 128, ("gym-async", "sb3-subproc"))
    assert [plan.goal for plan in plans_of("cartpole", 128, peers)] == [1.3, 4.0, 0.95, 1.0]


@pytest.mark.parametrize("given", [{"envs": ("cartpol",)}, {"against": ("gym",)}, {"lanes": (0,)}, {"rounds": 0}])
def test_wrong_flags_are_refused(capsys: pytest.CaptureFixture[str], given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        run(capsys, **given)
