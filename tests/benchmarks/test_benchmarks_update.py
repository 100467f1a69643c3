"""`benchmarks update`: JAX in the rounds of the installed bench. Nothing here asserts a speed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import installed, update
from benchmarks.settings import UpdateSettings
from freewheel.bench import update_plain
from freewheel.bench.child import PeerFailed
from freewheel.bench.harness import Case
from freewheel.bench.worker import update_data
from freewheel.errors import ConfigError

TINY: dict[str, Any] = {"ours": ("eager",), "batches": (16,), "rounds": 2, "seconds": 0.002, "json": True}


def cases_of(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["bench"] == "update"
    return {case["case"]: case for case in line["cases"]}


def test_compiled_is_compared_with_the_best_of_jax() -> None:
    figures = {("update/128", way): [us] for way, us in {"jax_jit": 600.0, "jax_scan32": 300.0}.items()}
    (case,) = update.against_jax(Case("update/compiled/128", "us", [250.0]), 128, figures)
    assert (case.name, case.ratio, case.goal) == ("update/compiled_vs_jax/128", 1.2, 1.0)
    assert update.against_jax(Case("update/compiled/512", "us", [250.0]), 512, figures) == []


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
    monkeypatch.setattr(installed, "find_python", lambda: Path("python"))
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
    monkeypatch.setattr(installed, "find_python", lambda: Path("python"))
    update.run(UpdateSettings(against=("eager", "jax_jit"), **TINY))
    shown = capsys.readouterr()
    assert "jax is left out. 'make peers' installs it." in shown.err
    assert [case["case"] for case in json.loads(shown.out.splitlines()[-1])["cases"]] == ["update/eager/16"]


def test_without_peers_jax_runs_only_when_nobody_named_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "find_python", lambda: None)
    assert update.python_for(["jax_jit"], is_asked=False) is None
    assert "run 'make peers'" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="jax_jit: peers are not installed"):
        update.python_for(["jax_jit"], is_asked=True)
