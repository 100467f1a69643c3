"""Algorithms and logs from outside, by module:name: the complete example of docs/algorithms.md is one file that nobody here knows."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

import freewheel
from freewheel.cli.main import main
from freewheel.errors import ConfigError
from freewheel.store.checkpoint import load_newest

DOCS = Path(__file__).parents[2] / "docs"
LOG = """
import json

class Lines:
    name = "lines"

    def __init__(self, folder, config):
        self.path, self.lr = folder / "lines.txt", config["learner"]["lr"]

    def open(self):
        self.file = open(self.path, "a")

    def write(self, records):
        self.file.write(f"{self.lr} {len(records)}\\n")

    def close(self):
        self.file.close()

def none(folder, config):
    return object()
"""
TINY = ["--runtime", "sequential", "--steps", "300", "--replay.warmup-rows", "128", "--eval-episodes", "2"]


@pytest.fixture(autouse=True)
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    text = (DOCS / "algorithms.md").read_text()
    (source,) = re.findall(r"```python\n(# soft_dqn\.py\n.*?)```", text, re.DOTALL)
    (tmp_path / "soft_dqn.py").write_text(source)
    (tmp_path / "line_log.py").write_text(LOG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    for name in ("soft_dqn", "line_log"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_it_is_trained_and_evaluated(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["CartPole-v1", "--algo", "soft_dqn:SoftDQN", "--soft.temperature", "0.5", *TINY, "--json", "--quiet"]
    assert main(["train", *words]) == 0
    run = json.loads(capsys.readouterr().out.splitlines()[-1])["run"]
    assert json.loads((Path(run) / "config.json").read_text())["soft"] == {"temperature": 0.5}
    assert main(["eval", run, "--episodes", "2", "--json"]) == 0
    assert main(["doctor", "CartPole-v1", "--algo", "soft_dqn:SoftDQN", "--runtime", "sequential", "--json"]) == 0


@pytest.mark.parametrize("command", ["train", "doctor"])
def test_its_settings_are_in_the_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "CartPole-v1", "--algo", "soft_dqn:SoftDQN", "--help"])
    shown = capsys.readouterr().out
    assert "--soft.temperature" in shown
    assert "--ppo.clip" not in shown


def test_its_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"soft\.temperature=-1\.0 must be between"):
        freewheel.train("CartPole-v1", algo="soft_dqn:SoftDQN", settings={"soft.temperature": -1.0}, is_quiet=True)


def test_a_log_from_outside() -> None:
    settings = {"runtime": "sequential", "eval_episodes": 0, "log.sinks": ("line_log:Lines",), "learner.lr": 0.002}
    run = freewheel.train("CartPole-v1", steps=300, settings=settings, preset="none", is_quiet=True)
    assert (run.folder / "lines.txt").read_text().startswith("0.002 ")


@pytest.mark.parametrize(
    ("name", "match"), [("csv", "module:name"), ("line_log:none", "no open"), ("line_log:Line", "Did you mean Lines")]
)
def test_a_log_that_is_none(name: str, match: str, tmp_path: Path) -> None:
    settings = {"runtime": "sequential", "log.sinks": (name,), "eval_episodes": 0}
    with pytest.raises(ConfigError, match=match):
        freewheel.train("CartPole-v1", steps=300, settings=settings, preset="none", is_quiet=True)
    if name != "line_log:none":  # what it gives is known only when there is a folder to give it
        assert not list((tmp_path / "runs").glob("*"))


EXITS = """
import sys
from freewheel.algos.dqn import Algorithm

class Exits(Algorithm):
    name = "exits"
    calls = 0

    def hyper(self, share_done):
        Exits.calls += 1
        if Exits.calls > 5:
            sys.exit()
        return super().hyper(share_done)

class Unplanned(Algorithm):
    name = "unplanned"

    def __init__(self, *given, **named):
        sys.exit()
"""


@pytest.mark.parametrize(("name", "is_saved"), [("Exits", True), ("Unplanned", False)])
def test_sys_exit_of_an_outside_algorithm_is_an_error(
    name: str, is_saved: bool, outside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (outside / "exits.py").write_text(EXITS)
    sys.modules.pop("exits", None)
    assert main(["train", "CartPole-v1", "--algo", f"exits:{name}", *TINY, "--quiet", "--log.folder", "runs"]) == 1
    err = capsys.readouterr().err
    assert "RoleLost: your code called sys.exit(None), which ended the run" in err
    assert "exits.py" in err, "the line is not shown"
    saved = [load_newest(run / "checkpoints").state["updates"] > 0 for run in Path("runs").glob("*")]
    assert saved == ([True] if is_saved else [])


def test_sys_exit_of_an_import_is_an_error(outside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (outside / "exits_at_once.py").write_text("import sys\nsys.exit()\n")
    assert main(["train", "CartPole-v1", "--algo", "exits_at_once:Any", *TINY, "--quiet"]) == 1
    assert "importing exits_at_once raised SystemExit" in capsys.readouterr().err
