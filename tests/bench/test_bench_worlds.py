"""`bench worlds` as small as it goes: every case is there. Nothing here asserts a speed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from freewheel.bench import worlds
from freewheel.bench.settings import WorldsSettings
from freewheel.errors import ConfigError


def run(capsys: pytest.CaptureFixture[str], **given: Any) -> dict[str, Any]:
    worlds.run(WorldsSettings(**{"rounds": 1, "seconds": 0.02, "json": True, **given}))
    line: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return line


def test_all_cases_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    line = run(capsys, envs=("cartpole", "heavy"), lanes=(4,))
    assert line["bench"] == "worlds"
    names = [f"{kind}/cartpole/4" for kind in ("inline", "pool", "vector", "auto")] + ["pool/heavy/4", "auto/heavy/4"]
    assert [case["case"] for case in line["cases"]] == names
    for case in line["cases"]:
        assert case["ours"] > 0
        assert case["unit"] == "rows/s"
        assert (case["peers"], case["ratio"]) == ({}, None)


@pytest.mark.parametrize("given", [{"envs": ("cartpol",)}, {"lanes": (0,)}, {"rounds": 0}])
def test_wrong_flags_are_refused(capsys: pytest.CaptureFixture[str], given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        run(capsys, **given)
