"""`freewheel doctor`: what it prints, and the exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from freewheel.cli import doctor
from freewheel.cli.main import main
from freewheel.config import Config, assemble, find_algo
from freewheel.doctor.facts import Fact
from freewheel.errors import ConfigError
from freewheel.run.layout import Layout, choose

SICK = Fact("env", "stepping it", "E-v0 [red] \x1b[2Jraised", None, "problem", "Mend it.", "Traceback: line 5")
WELL = Fact("software", "devices", "the CPU", [])


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Fact]:
    """What the examination in another process finds; it is tested on its own."""
    facts = [WELL]
    monkeypatch.setattr(doctor, "try_apart", lambda config: list(facts))
    monkeypatch.setattr(doctor, "num_cores", lambda: 2)
    return facts


def test_a_machine_alone(tried: list[Fact], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for name in ("cores", "memory", "/dev/shm", "open files", "Python", "torch", "C++ compiler", "threads", "devices"):
        assert name in out
    assert "freewheel train would work: 0 problems" in out
    assert "layout" in out


def test_a_problem_is_exit_code_1(tried: list[Fact], capsys: pytest.CaptureFixture[str]) -> None:
    tried.append(SICK)
    assert main(["doctor", "E-v0"]) == 1
    shown = capsys.readouterr()
    assert shown.err == "Traceback: line 5\n\n"
    assert "E-v0 [red] ?[2Jraised" in shown.out
    assert "Mend it." in shown.out
    assert "freewheel train E-v0 would fail: 1 problem, " in shown.out


def test_json_has_everything(tried: list[Fact], capsys: pytest.CaptureFixture[str]) -> None:
    tried.append(SICK)
    assert main(["doctor", "CartPole-v1", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["env"], found["works"], found["problems"]) == ("CartPole-v1", False, 1)
    assert found["layout"]["runtime"] == "local"
    facts = {(fact["group"], fact["name"]): fact for fact in found["facts"]}
    assert facts[("env", "stepping it")]["cure"] == "Mend it."
    assert facts[("env", "preset")]["value"] == "CartPole-v1"
    assert [fact["group"] for fact in found["facts"]] == sorted(
        (fact["group"] for fact in found["facts"]), key=["machine", "software", "env"].index
    )


def test_settings_are_those_of_train(tried: list[Fact], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Config] = []
    monkeypatch.setattr(doctor, "try_apart", lambda config: seen.append(config) or [WELL])
    main(["doctor", "CartPole-v1", "--lanes", "4", "--replay.rows=5000", "--runtime", "sequential"])
    main(["doctor", "CartPole-v1", "--preset", "none"])
    assert (seen[0].env, seen[0].world.lanes, seen[0].replay.rows) == ("CartPole-v1", 4, 5000)
    assert seen[0].learner.lr != seen[1].learner.lr
    assert seen[1] == find_algo("dqn").Settings("CartPole-v1")


@pytest.mark.parametrize(
    "words",
    [["CartPole-v1", "--replay.rows", "1"], ["CartPole-v1", "--preset", "nothing"], ["--q.num_atoms", "5"]],
)
def test_a_wrong_call_is_exit_code_2(words: list[str], tried: list[Fact], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *words]) == 2
    assert "ConfigError" in capsys.readouterr().err


def test_an_env_that_is_not_there_is_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(config: Config) -> list[Fact]:
        raise ConfigError(f"there is no env {config.env!r}.")

    monkeypatch.setattr(doctor, "try_apart", refuse)
    assert main(["doctor", "CartPole-v9"]) == 2
    assert capsys.readouterr() == ("", "ConfigError: there is no env 'CartPole-v9'.\n")


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_lines_fit_the_terminal(
    columns: int, tried: list[Fact], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    tried.append(Fact("env", "world", "word " * 60, None, "warning", "cure " * 60))
    main(["doctor", "E-v0"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= columns


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (Layout("local", 3, (3, 3, 2), 0, {"actor": 1, "learner": 2}, "Because."), "3, with 2 or 3 lanes each"),
        (
            Layout("local", 3, (3, 3, 2), 0, {"actor": 1, "learner": 2}, "Because."),
            "workers: 1, or one per core if that measures faster",
        ),
        (Layout("local", 3, (3, 3, 2), 2, {"actor": 1, "learner": 2}, "Because."), "workers: 2; threads: 2"),
        (Layout("sequential", 1, (8,), 1, {"actor": 1, "learner": 1}, "Because."), "1, with 8 lanes"),
    ],
)
def test_the_layout_is_shown_with_its_reason(layout: Layout, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    doctor.show(Config(""), [WELL], layout)
    out = capsys.readouterr().out
    assert text in out
    assert "Because." in out


POOL = {"kind": "pool", "lanes": 8, "workers": 4, "threads": 2, "reason": "it waits."}


def test_the_layout_is_that_of_the_chosen_world(tried: list[Fact], capsys: pytest.CaptureFixture[str]) -> None:
    tried.append(Fact("env", "world", "pool: it waits.", POOL))
    assert main(["doctor", "E-v0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["world"] == POOL
    assert "one actor serves the workers of its pool" in found["layout"]["reason"]
    main(["doctor", "E-v0"])
    assert "pool, 4 workers with 2 threads each" in capsys.readouterr().out


def test_a_pool_has_one_actor_however_many_cores_there_are(
    tried: list[Fact], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "num_cores", lambda: 8)
    for world, actors in ((None, 7), (POOL, 1)):
        tried[1:] = [Fact("env", "world", "", world)]
        main(["doctor", "E-v0", "--json"])
        assert json.loads(capsys.readouterr().out)["layout"]["actors"] == actors


def rows(config: Config, *facts: Fact) -> dict[str, str]:
    return doctor._layout_rows(config, facts, choose(config, 2))


def test_workers_are_told_as_they_are_measured() -> None:
    from freewheel.machine.worker_count import LEAST_S

    assert f"over {1e3 * LEAST_S:.0f} ms" in rows(Config(""))["learner"]
    assert rows(assemble("", {"learner.compile": "on"}))["learner"] == "workers: 1; threads: 1"
    assert f"over {1e3 * LEAST_S:.0f} ms" in rows(assemble("", {"algo": "ppo", "runtime": "local"}))["learner"]


@pytest.mark.parametrize(("threads", "text"), [(None, "measures the fastest number at its start"), (2, "threads: 2")])
def test_threads_of_images(threads: int | None, text: str) -> None:
    assert rows(Config("E-v0"), Fact("env", "update", "", {"threads": threads}))["learner"].endswith(text)


def test_a_real_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "CartPole-v1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    facts = {fact["name"]: fact["value"] for fact in found["facts"]}
    assert facts["step"]["steps"] > 10
    assert facts["replay"]["rows"] == 100_000
    assert list(tmp_path.iterdir()) == []


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--help"])
    assert ended.value.code == 0
    assert "exit code" in capsys.readouterr().out
