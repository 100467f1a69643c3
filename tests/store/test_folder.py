"""A run's folder: made once, found by name, held by one process, removed whole."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from freewheel.errors import CheckpointError, ConfigError
from freewheel.store.folder import list_runs, new_run, open_run, remove_run, spare_run

HOLD = """
import sys
from pathlib import Path
from freewheel.store.folder import open_run
with open_run(sys.argv[1]).lock():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_new_run_holds_what_it_was_given(tmp_path: Path) -> None:
    config = {"learner": {"lr": 1e-3}, "list": [1, None]}
    run = new_run(tmp_path / "my" / "runs", "CartPole-v1", "dqn", 7, config)
    assert run.name.startswith("CartPole-v1-dqn-7-20")
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o700
    assert run.config() == config
    assert run.checkpoints.is_dir()
    assert open_run(run.name, tmp_path / "my" / "runs") == run
    assert open_run(run.path) == run
    assert os.listdir(run.path.parent) == [run.name]


def test_any_env_name_makes_a_plain_folder(tmp_path: Path) -> None:
    plain = {
        "ALE/Pong-v5": "ALE-Pong-v5",
        "my.module:make": "my.module-make",
        "../../etc": "etc",
        "…": "env",
        "a\nb\x1b[2J": "a-b-2J",
        "x" * 300: "x" * 80,
    }
    for env, name in plain.items():
        run = new_run(tmp_path, env, "dqn", 0, {})
        assert run.name.startswith(f"{name}-dqn-0-")
        assert run.path.parent == tmp_path
        assert open_run(run.name, tmp_path).env == env


def test_runs_that_start_at_once_get_folders_of_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda seed: new_run(tmp_path, "CartPole-v1", "dqn", 0, {"n": seed}), range(40)))
    assert len({run.path for run in runs}) == 40
    assert [run.config()["n"] for run in runs] == list(range(40))
    assert len(list_runs(tmp_path)) == len(os.listdir(tmp_path)) == 40


def test_a_root_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"no run folder can be made in .*/file: .*Choose another place"):
        new_run(tmp_path / "file", "CartPole-v1", "dqn", 0, {})


def test_a_missing_run_is_told_with_near_names(tmp_path: Path) -> None:
    run = new_run(tmp_path, "CartPole-v1", "dqn", 0, {})
    with pytest.raises(ConfigError, match=f"Did you mean {run.name}\\?"):
        open_run(run.name.replace("Cart", "Kart"), tmp_path)
    with pytest.raises(ConfigError, match=r"no run 'nothing'.*lists the 0 there"):
        open_run("nothing", tmp_path / "none")


def test_a_folder_that_is_no_run_or_is_damaged_is_told(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with pytest.raises(ConfigError, match=r"is not a run: it has no run\.json"):
        open_run("other", tmp_path)
    whole = new_run(tmp_path, "CartPole-v1", "dqn", 0, {})
    (tmp_path / "other" / "run.json").write_text('{"env": 1}')
    with pytest.raises(CheckpointError, match=r"run\.json is damaged: env, algo, seed, started_s"):
        open_run("other", tmp_path)
    (tmp_path / "other" / "run.json").unlink()
    os.mkfifo(tmp_path / "other" / "run.json")
    with pytest.raises(CheckpointError, match=r"run\.json is not a regular file"):
        open_run("other", tmp_path)
    (whole.path / "config.json").write_text("[")
    with pytest.raises(CheckpointError, match=r"config\.json is not JSON"):
        whole.config()
    assert [(run.name, bool(run.problem)) for run in list_runs(tmp_path)] in (
        [(whole.name, False), ("other", True)],
        [("other", True), (whole.name, False)],
    )


def test_a_run_that_may_not_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run(tmp_path, "CartPole-v1", "dqn", 0, {})
    monkeypatch.setattr(os, "access", lambda *_: False)  # the tests may run as root, who may read all
    with pytest.raises(CheckpointError, match="permission denied"):
        open_run(run.name, tmp_path)


def test_status_and_result(tmp_path: Path) -> None:
    run = new_run(tmp_path, "CartPole-v1", "dqn", 0, {})
    assert (run.status(), run.result()) == ({"status": "new"}, None)
    with run.lock():
        run.write_status("running", steps=10)
        assert (run.status()["status"], run.status()["steps"]) == ("running", 10)
    assert run.status()["status"] == "died"
    run.write_status("finished", steps=20)
    run.write_result({"steps": 20, "return_mean": 1.5})
    assert run.status()["status"] == "finished"
    assert run.result() == {"steps": 20, "return_mean": 1.5}
    assert run.num_bytes() > 100
    assert not [name for name in os.listdir(run.path) if name.startswith(".")]


def test_one_process_holds_a_run_until_it_dies(tmp_path: Path) -> None:
    run = new_run(tmp_path, "CartPole-v1", "dqn", 0, {})
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        assert run.is_in_use()
        with pytest.raises(ConfigError, match=f"in use by process {child.pid}"), run.lock():
            pass
        with pytest.raises(ConfigError, match="in use"):
            remove_run(run)
        child.kill()
        child.wait()
    assert not run.is_in_use()
    leftover = run.path / f".tmp-{child.pid}-0123abcd"
    leftover.write_text("half a status")
    with run.lock():
        assert run.is_in_use()
        assert not leftover.exists()
    remove_run(run)
    assert os.listdir(tmp_path) == []
    with pytest.raises(ConfigError, match="cannot be locked"), run.lock():
        pass


def test_a_run_removed_while_somebody_waits_for_it_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run(tmp_path, "CartPole-v1", "dqn", 0, {})
    path = run.path

    def remove_first(fd: int) -> bool:
        path.rename(tmp_path / "away")
        return True

    monkeypatch.setattr("freewheel.store.folder._try_lock", remove_first)
    with pytest.raises(ConfigError, match="was removed meanwhile"), run.lock():
        pass


def test_links_are_no_runs(tmp_path: Path) -> None:
    run = new_run(tmp_path / "elsewhere", "CartPole-v1", "dqn", 0, {})
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "link").symlink_to(run.path)
    assert list_runs(tmp_path / "runs") == []
    assert open_run("link", tmp_path / "runs").path == run.path


@pytest.mark.parametrize("kind", ["fifo", "folder", "socket", "symlink"])
def test_a01_what_stands_in_the_place_of_a_lock_is_named_and_nobody_waits_for_it(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    run = new_run(tmp_path, "CartPole-v1", "dqn", 0, {})
    lock = run.path / "lock"
    if kind == "fifo":
        os.mkfifo(lock)
    elif kind == "folder":
        lock.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(os.path.relpath(lock))
    else:
        lock.symlink_to(run.path / "run.json")
    assert not run.is_in_use()
    assert run.status() == {"status": "new"}
    with pytest.raises(CheckpointError, match="cannot be locked"), run.lock():
        pass


WRITTEN = ("checkpoints", "tb", "metrics.csv", "episodes.csv", "profile", "checkpoints/red", "profile/learner.txt")


@pytest.mark.parametrize("name", WRITTEN)
def test_a01_a_link_is_not_written_through(tmp_path: Path, name: str) -> None:
    run = new_run(tmp_path / "runs", "CartPole-v1", "dqn", 0, {})
    run.refuse_links()
    (run.path / "profile").mkdir()
    link = run.path / name
    if link.is_dir():
        link.rmdir()
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=f"{name} is a link to .*elsewhere, and a run writes only into its own"):
        run.refuse_links()
    link.unlink()
    run.refuse_links()


def test_a01_policies_cannot_have_names_that_lead_elsewhere(tmp_path: Path) -> None:
    for name in ("../..", "/etc", "a/b", "", "step-000000001"):
        run = new_run(tmp_path, "CartPole-v1", "dqn", 0, {"policies": {name: {}}})
        with pytest.raises(CheckpointError, match="policies must have settings by name"):
            run.config()


def test_a_new_run_is_where_it_was_made_whatever_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = new_run(Path("runs"), "CartPole-v1", "dqn", 0, {})
    monkeypatch.chdir("/")
    assert run.path.is_dir()
    assert open_run(run.path).name == run.name


def test_a_spare_folder_that_cannot_be_filled_is_not_left(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with pytest.raises(CheckpointError, match="cannot be made"):
        spare_run(run, str(tmp_path / "spare"))  # the run has no files
    assert os.listdir(tmp_path / "spare") == []
