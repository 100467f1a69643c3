"""`freewheel runs`: lists what is there, removes only what was named, never what is in use."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from freewheel.cli import runs as command
from freewheel.errors import ConfigError
from freewheel.store.folder import RunFolder, new_run


def make(root: Path, env: str = "CartPole-v1", seed: int = 0) -> RunFolder:
    return new_run(root, env, "dqn", seed, {})


def finish(run: RunFolder) -> None:
    run.write_status("finished", steps=50_000, return_mean=400.0)
    run.write_result({"steps": 50_000, "return_mean": 412.5, "eval_return_mean": 500.0})


def test_the_table_shows_each_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done, died, fresh = make(tmp_path), make(tmp_path, "ALE/Pong-v5", 3), make(tmp_path, "[red]\x1b[2J")
    finish(done)
    died.write_status("running", steps=1_234)
    (tmp_path / "notes").mkdir()
    command.main(["--root", str(tmp_path)])
    out = capsys.readouterr().out
    header, *lines = out.splitlines()
    assert header.split() == ["run", "env", "algo", "seed", "steps", "return", "eval", "age", "status", "size"]
    assert len(lines) == 3
    assert lines[0].split()[:7] == [done.name, "CartPole-v1", "dqn", "0", "50,000", "412.5", "500.0"]
    assert lines[0].split()[9] == "finished"
    assert lines[1].split()[:7] == [died.name, "ALE/Pong-v5", "dqn", "3", "1,234", "-", "-"]
    assert " died " in lines[1]
    assert lines[2].split()[:3] == [fresh.name, "[red]?[2J", "dqn"]
    assert "\x1b" not in out


def test_json_is_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make(tmp_path)
    finish(run)
    command.main(["--root", str(tmp_path), "--json"])
    (line,) = capsys.readouterr().out.splitlines()
    (entry,) = json.loads(line)["runs"]
    assert entry["name"] == run.name
    assert (entry["steps"], entry["return_mean"], entry["eval_return_mean"]) == (50_000, 412.5, 500.0)
    assert entry["status"] == "finished"
    assert 0 <= entry["age_s"] < 100
    assert entry["bytes"] > 100


def test_no_runs_and_damaged_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command.main(["--root", str(tmp_path / "none")])
    assert "There are no runs in" in capsys.readouterr().out
    command.main(["--root", str(tmp_path / "none"), "--json"])
    assert json.loads(capsys.readouterr().out) == {"runs": []}
    bad, worse = make(tmp_path), make(tmp_path, seed=1)
    (bad.path / "status.json").write_text("[")
    (worse.path / "run.json").write_text("")
    command.main(["--root", str(tmp_path)])
    shown = capsys.readouterr()
    assert shown.out.count("damaged") == 2
    assert f"run {worse.path}: run.json is not JSON" in shown.err
    command.main(["remove", worse.name, "--root", str(tmp_path), "--yes"])
    assert os.listdir(tmp_path) == [bad.name]


def test_remove_takes_the_named_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two, three = (make(tmp_path, seed=seed) for seed in range(3))
    command.main(["remove", one.name, two.name, one.name, "--root", str(tmp_path), "--yes"])
    assert capsys.readouterr().out.splitlines() == [f"removed {one.name}", f"removed {two.name}"]
    assert os.listdir(tmp_path) == [three.name]


def test_remove_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(tmp_path)
    words = ["remove", run.name, "--root", str(tmp_path)]
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    with pytest.raises(ConfigError, match="Add --yes"):
        command.main(words)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda prompt: "")
    with pytest.raises(ConfigError, match="nothing was removed"):
        command.main(words)
    assert run.path.exists()
    monkeypatch.setattr("builtins.input", lambda prompt: "Y")
    command.main(words)
    assert not run.path.exists()


def test_a_run_in_use_stays_and_so_do_the_others(tmp_path: Path) -> None:
    idle, busy = make(tmp_path), make(tmp_path, seed=1)
    with busy.lock():
        with pytest.raises(ConfigError, match=f"in use: {busy.name}"):
            command.main(["remove", idle.name, busy.name, "--root", str(tmp_path), "--yes"])
        assert len(os.listdir(tmp_path)) == 2
        command.main(["clean", "--keep", "0", "--root", str(tmp_path), "--yes"])
        assert os.listdir(tmp_path) == [busy.name]


def test_nothing_outside_the_runs_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "runs"
    inside, outside = make(root), make(tmp_path / "elsewhere")
    outside.path.rename(tmp_path / "outside")
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "notes").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in (
        "..",
        ".",
        "",
        "../outside",
        "outside",
        "/etc",
        "notes/../../outside",
        "link",
        "notes",
        ".tmp-1-00000000",
    ):
        with pytest.raises(ConfigError):
            command.main(["remove", inside.name, name, "--root", str(root), "--yes"])
        assert inside.path.exists(), name
        assert (tmp_path / "outside" / "run.json").exists(), name
        assert (root / "notes").exists(), name


def test_a_name_in_another_folder_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="there is no run"):
        command.main(["remove", run.name, "--root", str(tmp_path / "runs"), "--yes"])
    assert run.path.exists()


def test_a_near_name_is_told(tmp_path: Path) -> None:
    run = make(tmp_path)
    with pytest.raises(ConfigError, match=f"Did you mean {run.name}"):
        command.main(["remove", run.name[:-1], "--root", str(tmp_path), "--yes"])


def test_clean_keeps_the_newest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = [make(tmp_path, seed=seed) for seed in range(5)]
    command.main(["clean", "--keep", "2", "--root", str(tmp_path), "--yes"])
    assert sorted(os.listdir(tmp_path)) == sorted(run.name for run in made[3:])
    capsys.readouterr()
    command.main(["clean", "--keep", "2", "--root", str(tmp_path), "--yes"])
    assert capsys.readouterr().out == "There is nothing to remove.\n"
    with pytest.raises(ConfigError, match="at least 0"):
        command.main(["clean", "--keep", "-1", "--root", str(tmp_path)])


@pytest.mark.parametrize("words", [["--help"], ["remove", "--help"], ["clean", "--help"]])
def test_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(words)
    assert ended.value.code == 0
    assert "Where the runs are" in capsys.readouterr().out
