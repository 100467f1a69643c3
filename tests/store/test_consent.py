"""A12: nothing that a run folder names is imported or called, unless this user made it, trusts it or names it again."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from forged import ACTIONS, FORMS, PACKAGE, SIGNATURES, SPELLINGS, forge

import freewheel
from freewheel.cli.main import main
from freewheel.errors import FreewheelError, Untrusted

SETTINGS: dict[str, Any] = {
    "runtime": "sequential",
    "world.lanes": 1,
    "replay.warmup_rows": 64,
    "learner.batch_size": 16,
    "net.hidden": (8,),
    "eval_episodes": 0,
    "log.tensorboard": False,
    "log.csv": False,
}


def train(folder: Path, env: Any = "CartPole-v1", **more: Any) -> freewheel.Run:
    settings = {**SETTINGS, "log.folder": str(folder), **more.pop("settings", {})}
    return freewheel.train(env, steps=100, preset="none", settings=settings, is_quiet=True, **more)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("runs")).folder


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that forged folders make, in a current folder that has the package they name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    found = tmp_path / "it ran"
    (tmp_path / "evil_pkg").mkdir()
    for name in ("__init__", "sub"):
        (tmp_path / "evil_pkg" / f"{name}.py").write_text(PACKAGE.format(marker=str(found)))
    return found


def forget_package() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "evil_pkg"]:
        del sys.modules[name]


def use(action: str, folder: Path, trusts: bool = False) -> None:
    """Uses a run as its name says; raises what a command shows."""
    if action == "load":
        freewheel.load(folder, trust=trusts)
    elif action == "checkpoint":
        freewheel.load(next((folder / "checkpoints").iterdir()), trust=trusts)
    elif action == "resume":
        freewheel.train(resume=folder, steps=110, is_quiet=True, trust=trusts)
    else:
        command = __import__(f"freewheel.cli.{action}", fromlist=["main"])
        more = ["--episodes", "1", *(["--trust"] if trusts else []), "--quiet"]
        command.main([str(folder), *more, *(["--max-steps", "2"] if action == "play" else [])])


@pytest.mark.parametrize("action", ACTIONS)
def test_a12_a_forged_folder_runs_nothing(tmp_path: Path, run: Path, marker: Path, action: str) -> None:
    forget_package()
    for number, (form, spelling, signature) in enumerate(product(FORMS, SPELLINGS, SIGNATURES)):
        folder = forge(run, tmp_path / f"forged-{number}", form.settings, spelling, signature)
        if form.name == "log" and action != "resume":
            continue
        with pytest.raises(Untrusted) as told:
            use(action, folder)
        assert re.fullmatch(
            r"(run|checkpoint) /.* names code, .*not imported, because .*If you trust it: .*trust.*", str(told.value)
        )
        assert any(f"{name}=" in str(told.value) for name in form.settings), form
        assert not marker.exists(), form
        assert "evil_pkg" not in sys.modules, form


@pytest.mark.parametrize("action", ACTIONS)
def test_a12_the_same_folder_runs_it_once_it_is_trusted(tmp_path: Path, run: Path, marker: Path, action: str) -> None:
    """So the test above can fail."""
    for form in FORMS:
        forget_package()
        folder = forge(run, tmp_path / form.name, form.settings)
        with suppress(FreewheelError, RuntimeError):  # what runs there is mostly no env, network or algorithm
            use(action, folder, trusts=True)
        assert marker.exists() == (action in form.runs_in), form
        marker.unlink(missing_ok=True)


def test_a12_the_corpus_has_fifty_folders() -> None:
    assert len(FORMS) * len(SPELLINGS) * len(SIGNATURES) >= 50


OWN_ENV = """
import gymnasium


def make(render_mode=None):
    return gymnasium.make("CartPole-v1", render_mode=render_mode)


class Log:
    def __init__(self, folder, config):
        self.name = "mine"

    def open(self): ...
    def write(self, records): ...
    def close(self): ...


def Body(obs_space):
    from torch import nn

    return nn.Sequential(nn.Linear(4, 8), nn.ReLU())
"""
OWN = {"net.body": "own_pkg:Body", "log.sinks": ("own_pkg:Log",)}


@pytest.fixture(scope="module")
def own_module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("code")
    (folder / "own_pkg.py").write_text(OWN_ENV)
    return folder


@pytest.fixture
def own_run(own_module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of this user that names an env, a network and a log."""
    monkeypatch.syspath_prepend(own_module)
    settings = {name: value for name, value in SETTINGS.items() if name != "net.hidden"}
    return freewheel.train(
        "own_pkg:make", steps=100, settings={**settings, **OWN, "log.folder": str(tmp_path / "runs")}, is_quiet=True
    ).folder


def move_to_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another config"))


def test_a12_own_runs_need_no_flag_wherever_they_are_moved(own_run: Path, tmp_path: Path) -> None:
    moved = own_run.rename(tmp_path / "moved")
    for action in ACTIONS:
        use(action, moved)
    one = next((moved / "checkpoints").iterdir()).rename(tmp_path / "best")
    freewheel.load(one)


def test_a12_another_user_has_to_trust_it(own_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    move_to_another_user(tmp_path, monkeypatch)
    for action in ACTIONS:
        with pytest.raises(Untrusted, match="its signature is not yours"):
            use(action, own_run)
    for action in ACTIONS:
        use(action, own_run, trusts=True)
    use("eval", own_run)  # the user's own training went on in it, and signed the newest checkpoint


def test_a12_names_that_are_given_again_need_no_trust(
    own_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Path
) -> None:
    import own_pkg  # type: ignore[import-not-found]

    only_env = train(tmp_path / "runs", "own_pkg:make").folder
    move_to_another_user(tmp_path, monkeypatch)
    assert main(["eval", str(only_env), "--env", "CartPole-v1", "--episodes", "1", "--quiet"]) == 0
    assert main(["eval", str(own_run), "--env", "own_pkg:make", "--episodes", "1", "--quiet"]) == 2  # its body
    again = {"env": own_pkg.make, "body": own_pkg.Body, "settings": {"log.sinks": ("own_pkg:Log",)}}
    for left_out in again:
        with pytest.raises(Untrusted):
            freewheel.train(
                resume=own_run, steps=120, is_quiet=True, **{k: v for k, v in again.items() if k != left_out}
            )  # type: ignore[arg-type]
    freewheel.train(resume=own_run, steps=120, is_quiet=True, **again)  # type: ignore[arg-type]
    # What was not trusted is not signed either: the names are still somebody else's.
    assert len(list((own_run / "checkpoints").iterdir())) == 2
    with pytest.raises(Untrusted, match="it has no signature"):
        use("eval", own_run)


def test_a12_a_folder_that_names_no_code_needs_no_trust(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    move_to_another_user(tmp_path, monkeypatch)
    folder = forge(run, tmp_path / "plain", {"q.double": False}, signature="none")
    for action in ACTIONS:
        use(action, folder)


def test_a12_without_a_key_runs_go_on_and_say_what_they_will_need(
    own_module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(own_module)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    train(tmp_path / "plain")
    assert "sign" not in capsys.readouterr().err
    mine = train(tmp_path / "named", "own_pkg:make")
    said = capsys.readouterr().err
    assert "Not signing the run: " in said
    assert "will need --trust" in said
    assert mine.policy().act([0.0] * 4) in (0, 1)
    with pytest.raises(Untrusted, match="it has no signature"):
        freewheel.load(mine.folder)
    for action in ACTIONS:
        use(action, mine.folder, trusts=True)


def test_trust_has_no_effect_on_a_new_run(tmp_path: Path) -> None:
    with pytest.raises(freewheel.ConfigError, match="no effect without resume"):
        train(tmp_path, trust=True)
    assert main(["train", "CartPole-v1", "--trust", "--runtime", "sequential", "--quiet"]) == 2
