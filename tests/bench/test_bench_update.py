"""`bench update`: every way makes the same update, and the cases compare what they say. Nothing here asserts a speed."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from freewheel.bench import update, update_plain
from freewheel.bench.settings import UpdateSettings
from freewheel.bench.update import Way, check_same, make_cases, our_call
from freewheel.bench.worker import update_data
from freewheel.cli.main import main
from freewheel.errors import FreewheelError

TINY: dict[str, Any] = {"ours": ("eager",), "batches": (16,), "rounds": 2, "seconds": 0.002, "json": True}


def cases_of(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["bench"] == "update"
    return {case["case"]: case for case in line["cases"]}


def test_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    cores, variable = os.sched_getaffinity(0), os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    update.run(UpdateSettings(against=("eager", "eager_fused"), **TINY))
    cases = cases_of(capsys)
    assert list(cases) == ["update/eager/16"]
    case = cases["update/eager/16"]
    assert case["unit"] == "us"
    assert case["baseline"] == "eager"
    assert case["ratio"] == pytest.approx(case["baselines"]["eager"] / case["ours"], rel=1e-2)
    assert set(case["first_call_s"]) == {"ours eager", "eager", "eager_fused"}
    assert os.sched_getaffinity(0) == cores
    assert os.environ.get("TORCHINDUCTOR_CACHE_DIR") == variable


@pytest.mark.parametrize(
    ("algo", "names"),
    [
        ("ppo", ["update/ppo/eager/256"]),
        ("freewheel.algos.qrdqn:Algorithm", ["update/freewheel.algos.qrdqn:Algorithm/eager/16"]),
    ],
)
def test_an_algorithm_by_name_or_from_outside(algo: str, names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    update.run(UpdateSettings(algo=algo, **TINY))
    cases = cases_of(capsys)
    assert list(cases) == names
    (case,) = cases.values()
    assert case["unit"] == "us"
    assert case["ours"] > 0
    assert (case["algo"], case["updates_per_call"]) == (algo, 1)


def test_ours_and_plain_torch_make_the_same_updates_past_the_first_copy_of_the_target() -> None:
    ours, num_updates = our_call(is_compiled=False, rows=16)
    assert num_updates == 1
    calls = [ours, *(update_plain.make_call(way, 16) for way in ("eager", "eager_fused"))]
    for _ in range(update_data.TARGET_EVERY + 40):
        losses = [float(call()) for call in calls]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-3)


def test_calls_of_several_updates_end_where_the_target_is_copied() -> None:
    for updates in (1, update.MOST_UNROLLED, update_data.NUM_BATCHES):
        assert update_data.TARGET_EVERY % updates == 0
        assert update_data.NUM_BATCHES % updates == 0


def test_a_way_that_does_other_work_is_refused() -> None:
    ways = {("update/128", who): Way(lambda: 1.0, loss, 0.0) for who, loss in (("eager", 0.5), ("jax_jit", 0.5002))}
    check_same(ways)
    ways["update/512", "eager"] = Way(lambda: 1.0, 9.0, 0.0)  # another batch has another loss
    check_same(ways)
    for loss in (0.6, float("nan")):
        ways["update/128", "ours eager"] = Way(lambda: 1.0, loss, 0.0)
        with pytest.raises(FreewheelError, match=rf"update/128: after 32 updates .*eager 0.5.*ours eager {loss:.6f}"):
            check_same(ways)


def test_each_form_is_compared_with_plain_torch() -> None:
    figures = {"ours eager": 1000.0, "ours compiled": 250.0, "eager": 1250.0, "eager_fused": 900.0}
    ways = {("update/128", who): Way(lambda: 1.0, 0.5, 30.0) for who in figures}
    measured = {("update/128", who): [us] for who, us in figures.items()}
    cases = {case.name: case.record() for case in make_cases(128, ("eager", "compiled"), ways, measured)}
    assert {name: case["ratio"] for name, case in cases.items()} == {
        "update/eager/128": 1.25,
        "update/compiled/128": 5.0,
    }
    assert cases["update/compiled/128"]["goal"] == 4.0
    assert cases["update/compiled/128"]["compile_s"] == 30.0
    assert cases["update/compiled/128"]["updates_per_call"] == 8


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--against", "eagr"], "Did you mean 'eager'"),
        (["--ours", "none"], "--ours none leaves nothing to measure"),
        (["--batches", "0"], "--batches 0 must be"),
        (["--rounds", "0"], "--rounds 0"),
        (["--algo", "qrdqn", "--against", "eager"], "--against makes the update of dqn"),
        (["--algo", "qrdq"], "Did you mean qrdqn"),
    ],
)
def test_settings_that_cannot_work_end_with_2(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the command sets it: have it put back
    assert main(["bench", "update", *words]) == 2
    assert says in capsys.readouterr().err
