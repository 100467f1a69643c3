"""`benchmarks learn`: the table, its medians and marks, and trainings that fail, hang on or were done before."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.learn import bench as learn
from benchmarks.learn import runs, table
from benchmarks.learn.bench import Learned
from benchmarks.learn.runs import Trained, Training, flag, train_all
from benchmarks.learn.table import TABLE, Row, choose
from benchmarks.settings import LearnSettings
from freewheel.errors import ConfigError

ROW = TABLE[0]


def trained(row: Row, *returns: float | None) -> Learned:
    return Learned(row, tuple(Trained(row.name, seed, "f", value) for seed, value in enumerate(returns)))


def training(seed: int) -> Training:
    return Training(ROW, seed, ROW.fingerprint(seed))


def test_the_median_of_the_seeds_is_what_counts() -> None:
    one = trained(ROW, 500.0, 100.0, 475.0)
    assert one.median == 475.0
    assert one.has_passed
    assert not trained(ROW, 500.0, 474.9, 100.0).has_passed
    assert trained(ROW, 500.0, 450.0).has_passed  # the median of two is their mean
    acrobot = next(row for row in TABLE if row.env == "Acrobot-v1")
    assert trained(acrobot, -80.0, -99.9, -300.0).has_passed
    assert not trained(acrobot, -80.0, -100.1, -300.0).has_passed


def test_a_row_with_a_failed_seed_has_not_passed() -> None:
    one = trained(ROW, 500.0, None, 500.0)
    assert (one.median, one.has_passed) == (500.0, False)
    assert (trained(ROW, None).median, trained(ROW, None).has_passed) == (None, False)
    assert not trained(ROW).has_passed


def test_the_record_has_what_the_design_asks_for() -> None:
    record = trained(ROW, 500.0, 490.0, 480.0).record()
    assert record["case"] == "learn/CartPole-v1/dqn"
    assert (record["ours"], record["unit"], record["peers"]) == (490.0, "return", {"published": 500.0})
    assert (record["goal"], record["passed"], record["ratio"]) == (475.0, True, None)
    assert record["seeds"] == {"0": 500.0, "1": 490.0, "2": 480.0}


def test_the_table_is_the_one_that_was_asked_for() -> None:
    assert {row.name: (row.algo, row.steps, row.published, row.goal) for row in TABLE} == {
        "CartPole-v1/dqn": ("dqn", 50_000, 500.0, 475.0),
        "CartPole-v1/qrdqn": ("qrdqn", 50_000, 500.0, 475.0),
        "CartPole-v1/iqn": ("iqn", 100_000, 195.0, 475.0),
        "CartPole-v1/iqn_linear": ("iqn", 100_000, 195.0, 475.0),
        "CartPole-v1/iqn_per_n3": ("iqn", 100_000, 195.0, 475.0),
        "CartPole-v1/rainbow": ("rainbow", 80_000, 195.0, 475.0),
        "CartPole-v1/dqn_all": ("dqn", 100_000, 450.0, 475.0),
        "CartPole-v1/dqn_all_linear": ("dqn", 100_000, 450.0, 475.0),
        "CartPole-v1/dqn_lag_0": ("dqn", 50_000, 195.0, 450.0),
        "CartPole-v1/dqn_lag_48": ("dqn", 50_000, 195.0, 450.0),
        "CartPole-v1/dqn_noisy": ("dqn", 50_000, 195.0, 475.0),
        "CartPole-v1/dqn_noisy_linear": ("dqn", 50_000, 195.0, 475.0),
        "Acrobot-v1/dqn": ("dqn", 100_000, -76.6, -100.0),
        "MountainCar-v0/dqn": ("dqn", 120_000, -100.8, -125.0),
        "LunarLander-v3/dqn": ("dqn", 100_000, 154.0, 150.0),
        "CartPole-v1/ppo": ("ppo", 100_000, 500.0, 475.0),
        "CartPole-v1/appo": ("appo", 130_000, 450.0, 450.0),
        "Acrobot-v1/ppo": ("ppo", 1_000_000, -73.5, -100.0),
        "LunarLander-v3/ppo": ("ppo", 1_000_000, 242.1, 200.0),
        "Pendulum-v1/ppo": ("ppo", 300_000, -172.2, -250.0),
        "Pendulum-v1/sac": ("sac", 20_000, -157.0, -170.0),
        "MountainCar-v0/ppo": ("ppo", 500_000, -200.0, -200.0),
    }


def test_a_row_that_must_not_be_learned_fails_when_it_is() -> None:
    (row,) = choose(("MountainCar-v0/ppo",))
    assert trained(row, -200.0, -200.0, -200.0).has_passed
    assert not trained(row, -120.0, -130.0, -200.0).has_passed
    assert trained(row, -200.0, -200.0, -200.0).record()["most"] == -199.0


def test_appo_is_trained_by_free_running_roles_whatever_was_asked_for() -> None:
    (row,) = choose(("appo",))
    assert row.in_runtime("sequential").given(0)["runtime"] == "local"


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_every_row_has_settings_that_work(row: Row) -> None:
    assert row.fingerprint(0) == row.fingerprint(0)
    assert row.fingerprint(0) != row.fingerprint(1)
    assert row.fingerprint(0) != dataclasses.replace(row, steps=row.steps + 1).fingerprint(0)


def test_rows_are_trained_in_the_runtime_that_was_asked_for() -> None:
    for runtime in ("local", "sequential"):
        row = ROW.in_runtime(runtime)
        assert row.given(0)["runtime"] == runtime
        assert row.name == ROW.name
    assert ROW.in_runtime("local").fingerprint(0) != ROW.in_runtime("sequential").fingerprint(0)
    assert ROW.in_runtime("local").compiled().given(0)["runtime"] == "local"


def test_rows_are_chosen_by_name_env_or_algorithm() -> None:
    assert choose(None) == list(TABLE)
    assert [row.name for row in choose(("LunarLander-v3/dqn", "rainbow"))] == [
        "CartPole-v1/rainbow",
        "LunarLander-v3/dqn",
    ]
    assert [row.label for row in choose(("CartPole-v1",))] == [
        "dqn",
        "qrdqn",
        "iqn",
        "iqn_linear",
        "iqn_per_n3",
        "rainbow",
        "dqn_all",
        "dqn_all_linear",
        "dqn_lag_0",
        "dqn_lag_48",
        "dqn_noisy",
        "dqn_noisy_linear",
        "ppo",
        "appo",
    ]
    with pytest.raises(ConfigError, match=r"unknown row 'CartPole-v1/dqm'\. Did you mean 'CartPole-v1/dqn"):
        choose(("CartPole-v1/dqm",))
    with pytest.raises(ConfigError, match="--only names no row"):
        choose(())


def test_settings_become_flags() -> None:
    assert flag("replay.prioritized", True) == ["--replay.prioritized"]
    assert flag("q.double", False) == ["--q.no-double"]
    assert flag("steps", 50_000) == ["--steps", "50000"]


def fake(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Trainings that run `script` with the row's name and the seed as its arguments."""

    def command(training: Training, runs: Path) -> list[str]:
        return [sys.executable, "-c", script, training.row.name, str(training.seed)]

    monkeypatch.setattr(runs, "command", command)
    monkeypatch.setattr(runs, "POLL_S", 0.01)


GOOD = """
import json, sys
print("text before it")
print(json.dumps({"eval_return_mean": 480.0 + int(sys.argv[2]), "return_mean": 470.0}))
"""
ONE_FAILS = """
import json, sys
if sys.argv[1].endswith("/qrdqn") and sys.argv[2] == "1":
    print("line one\\nline two", file=sys.stderr)
    sys.exit(3)
""" + GOOD.replace("import json, sys", "")


def test_a_run_over_two_rows(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fake(monkeypatch, GOOD)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert main(["learn", "--only", "CartPole-v1/dqn,CartPole-v1/qrdqn", "--json"]) == 0
    shown = capsys.readouterr()
    *above, last = shown.out.splitlines()
    line = json.loads(last)
    assert line["bench"] == "learn"
    assert [(case["case"], case["ours"], case["passed"]) for case in line["cases"]] == [
        ("learn/CartPole-v1/dqn", 481.0, True),
        ("learn/CartPole-v1/qrdqn", 481.0, True),
    ]
    assert sum("pass" in text and "481.0" in text for text in above) == 2
    assert "CartPole-v1/qrdqn seed 2: 482.0 after" in shown.err


def test_one_that_fails_is_told_of_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake(monkeypatch, ONE_FAILS)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert main(["learn", "--only", "dqn,qrdqn", "--seeds", "0,1", "--json"]) == 1
    shown = capsys.readouterr()
    assert "CartPole-v1/qrdqn seed 1 ended with exit code 3; its last lines were:\n  line one\n  line two" in shown.err
    cases = {case["case"]: case for case in json.loads(shown.out.splitlines()[-1])["cases"]}
    assert cases["learn/CartPole-v1/qrdqn"]["seeds"] == {"0": 480.0, "1": None}
    assert cases["learn/CartPole-v1/qrdqn"]["passed"] is False
    assert "line two" in cases["learn/CartPole-v1/qrdqn"]["problems"]["1"]
    assert cases["learn/CartPole-v1/dqn"]["passed"] is True


@pytest.mark.parametrize("said", ["", "no json", "[]", '{"eval_return_mean": null, "return_mean": 1}'])
def test_one_that_gives_no_return_has_failed(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    fake(monkeypatch, f"print({said!r})")
    (row,) = learn.run(LearnSettings(only=("CartPole-v1/dqn",), seeds=(0,)))
    assert row.trained[0].problem is not None
    assert "without an eval_return_mean" in row.trained[0].problem


def test_one_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, "import time; time.sleep(60)")
    monkeypatch.setattr(runs, "TRAIN_TIMEOUT_S", 0.1)
    (row,) = learn.run(LearnSettings(only=("CartPole-v1/dqn",), seeds=(0,)))
    assert "did not end within 0 s" in str(row.trained[0].problem)


def test_no_more_than_the_jobs_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, GOOD)
    looks: list[list[str]] = []
    done: list[Trained] = []
    train_all([training(seed) for seed in range(5)], 2, looks.append, done.append)
    assert max(len(names) for names in looks) == 2
    assert sorted(one.seed for one in done) == list(range(5))


def test_a_preset_that_changes_meanwhile_spoils_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, GOOD)
    done: list[Trained] = []
    old = Training(ROW, 1, "other settings")
    train_all([training(0), old, training(2)], 1, lambda names: None, done.append)
    assert [(one.seed, one.eval_return_mean) for one in done] == [(0, 480.0), (1, None), (2, 482.0)]
    assert "CartPole-v1/dqn seed 1 was not run: its preset changed" in str(done[1].problem)

    def broken(row: Row, seed: int) -> str:
        raise ConfigError("there is no such setting")

    monkeypatch.setattr(Row, "fingerprint", broken)
    assert old.is_outdated()


def test_an_interruption_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake(monkeypatch, "import time; time.sleep(60)")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def interrupt(names: list[str]) -> None:
        assert len(os.listdir(tmp_path)) == 2
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_all([training(seed) for seed in range(3)], 2, interrupt, lambda one: None)
    assert os.listdir(tmp_path) == []


def test_what_is_finished_is_not_run_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = LearnSettings(only=("CartPole-v1/dqn", "CartPole-v1/qrdqn"), seeds=(0, 1), out=tmp_path / "learn.json")
    fake(monkeypatch, ONE_FAILS)
    assert [row.has_passed for row in learn.run(settings)] == [True, False]
    assert os.listdir(tmp_path) == ["learn.json"]
    ran: list[str] = []
    inner = runs.Running

    def running(training: Training) -> runs.Running:
        ran.append(training.name)
        return inner(training)

    monkeypatch.setattr(runs, "Running", running)
    fake(monkeypatch, GOOD)
    assert [row.has_passed for row in learn.run(settings)] == [True, True]
    assert ran == ["CartPole-v1/qrdqn seed 1"]  # the one that failed is tried again
    assert "3 of 4 are in" in capsys.readouterr().err
    longer = tuple(dataclasses.replace(row, steps=row.steps + 1) for row in TABLE[:2])
    monkeypatch.setattr(table, "TABLE", longer)
    learn.run(settings)
    assert len(ran) == 5  # other settings are another training


@pytest.mark.parametrize("text", ["", "[]", '{"trainings": 3}', '{"trainings": [{"row": "x"}]}'])
def test_a_foreign_file_is_refused_and_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"notes.json is not a file that this command wrote"):
        learn.run(LearnSettings(out=path))
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (LearnSettings(seeds=()), "--seeds"),
        (LearnSettings(seeds=(-1,)), "--seeds -1"),
        (LearnSettings(jobs=0), "--jobs 0"),
        (LearnSettings(out=Path("/nowhere/at/all.json")), "there is no folder /nowhere/at"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: LearnSettings, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        learn.run(settings)


def test_a_real_training(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = choose(("dqn_all",))
    short: dict[str, Any] = {**row.switches, "eval_episodes": 2, "q.noisy": False}
    row = dataclasses.replace(row, steps=1_200, switches=short, goal=1.0)
    monkeypatch.setattr(table, "TABLE", (row,))
    (learned,) = learn.run(LearnSettings(seeds=(3,)))
    assert learned.trained[0].problem is None
    assert learned.has_passed
    assert learned.trained[0].seconds > 0
