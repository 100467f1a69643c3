"""`bench update`: every way makes the same update, and the cases compare what they say. Nothing here asserts a speed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from freewheel.bench import update
from freewheel.bench.child import PeerFailed
from freewheel.bench.peers import update_data, update_plain
from freewheel.bench.settings import UpdateSettings
from freewheel.bench.update import Way, check_same, make_cases, our_call
from freewheel.cli.main import main
from freewheel.errors import ConfigError, FreewheelError

TINY: dict[str, Any] = {"ours": ("eager",), "batches": (16,), "rounds": 2, "seconds": 0.002, "json": True}


def cases_of(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["bench"] == "update"
    return {case["case"]: case for case in line["cases"]}


def test_a_run_without_jax(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_compiled_is_held_against_eager_and_against_the_best_of_jax() -> None:
    figures = {"ours eager": 1000.0, "ours compiled": 250.0, "eager": 1250.0, "eager_fused": 900.0}
    figures |= {"jax_jit": 600.0, "jax_scan32": 300.0}
    ways = {("update/128", who): Way(lambda: 1.0, 0.5, 30.0) for who in figures}
    measured = {("update/128", who): [us] for who, us in figures.items()}
    cases = {case.name: case.record() for case in make_cases(128, ("eager", "compiled"), ways, measured)}
    assert {name: case["ratio"] for name, case in cases.items()} == {
        "update/eager/128": 1.25,
        "update/eager_vs_jax/128": 0.3,
        "update/compiled/128": 5.0,
        "update/compiled_vs_jax/128": 1.2,
    }
    assert cases["update/compiled/128"]["goal"] == 4.0
    assert cases["update/compiled_vs_jax/128"]["goal"] == 1.0
    assert cases["update/compiled/128"]["compile_s"] == 30.0
    assert cases["update/compiled/128"]["updates_per_call"] == 8


class FakeJax:
    """Answers as the worker does, with the loss that plain torch comes to."""

    greeting = {"version": "0.0"}  # noqa: RUF012

    def __init__(self, *words: object) -> None:
        call = update_plain.make_call("eager", 16)
        self.losses = [float(call()) for _ in range(update_data.NUM_BATCHES)]

    def __enter__(self) -> FakeJax:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def ask(self, message: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        if message["op"] == "open":
            return {"loss": self.losses[-1], "first_s": 1.5}
        assert message["seconds"] == 0.002
        return {"us": 100.0 if message["way"] == "jax_jit" else 50.0}


def test_jax_is_measured_in_the_same_rounds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update, "Child", FakeJax)
    monkeypatch.setattr(update, "find_python", lambda: Path("python"))
    update.run(UpdateSettings(against=("eager", "jax_jit", "jax_scan32"), **TINY))
    cases = cases_of(capsys)
    assert cases["update/eager_vs_jax/16"]["peers"] == {"jax_jit": 100.0, "jax_scan32": 50.0}
    assert cases["update/eager/16"]["peers"] == {}


def test_jax_that_does_not_start_is_left_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*words: object) -> None:
        raise PeerFailed("jax (pid 1) ended with exit code 1")

    monkeypatch.setattr(update, "Child", fail)
    monkeypatch.setattr(update, "find_python", lambda: Path("python"))
    update.run(UpdateSettings(against=("eager", "jax_jit"), **TINY))
    shown = capsys.readouterr()
    assert "jax is left out. 'make peers' installs it." in shown.err
    assert [case["case"] for case in json.loads(shown.out.splitlines()[-1])["cases"]] == ["update/eager/16"]


def test_without_peers_jax_runs_only_when_nobody_named_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update, "find_python", lambda: None)
    assert update.python_for(["jax_jit"], is_asked=False) is None
    assert "run 'make peers'" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="jax_jit: peers are not installed"):
        update.python_for(["jax_jit"], is_asked=True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--against", "jax_jitt"], "Did you mean 'jax_jit'"),
        (["--ours", "none"], "--ours none leaves nothing to measure"),
        (["--batches", "0"], "--batches 0 must be"),
        (["--rounds", "0"], "--rounds 0"),
    ],
)
def test_settings_that_cannot_work_end_with_2(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the command sets it: have it put back
    assert main(["bench", "update", *words]) == 2
    assert says in capsys.readouterr().err
