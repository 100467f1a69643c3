"""The trial of worlds: it always ends, whatever the env does, and what it says is what measuring here would say."""

from __future__ import annotations

import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sick_envs import Crashes, Exits, Hangs, NoScreen, Raises, Vanishes, Waits, Well, vector

from freewheel.config import WorldConfig
from freewheel.machine.trial import Choice
from freewheel.worlds import choose as choose_module
from freewheel.worlds.choose import choose_apart

LANES = WorldConfig(lanes=4)
SLOW_S = 1.0  # less than a timeout of 0.5 s with its grace, and two of them are more


def choose(env: Any, config: WorldConfig = LANES, step_timeout_s: float = 20.0) -> Choice[WorldConfig]:
    return choose_apart(env, config, 1, step_timeout_s)


@pytest.mark.parametrize(("env", "kind"), [(Well, "inline"), (Waits, "pool"), ("CartPole-v1", "vector")])
def test_what_was_measured_apart_is_taken(env: Any, kind: str) -> None:
    found = choose(env, WorldConfig(lanes=64))
    assert found.chosen.kind == kind
    assert found.chosen.lanes == 64
    assert "a step takes" in found.reason or "per step" in found.reason
    assert (found.chosen.workers > 1) == (kind == "pool")


def test_settings_without_a_choice_start_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_module, "throwaway", None)
    inline = WorldConfig(lanes=2, kind="inline")
    assert choose(Well, inline) == Choice(inline)
    assert choose(vector) == Choice(LANES)


def test_f08_an_env_that_hangs_while_it_is_measured_is_given_up() -> None:
    began_s = time.monotonic()
    found = choose(Hangs, step_timeout_s=0.5)
    assert time.monotonic() - began_s < 30
    assert found.chosen.kind == "inline"
    assert found.reason == "Stepping the envs one by one: the step could not be measured (no answer within 0.5 s)."


def test_one_that_hangs_and_is_to_be_in_a_pool_gets_one() -> None:
    found = choose(Hangs, WorldConfig(lanes=4, kind="pool"), step_timeout_s=0.5)
    assert (found.chosen.kind, found.chosen.threads) == ("pool", 1)
    assert found.chosen.workers > 0


class Slow(Well):
    def __init__(self) -> None:
        super().__init__()
        time.sleep(SLOW_S)

    def reset(self, **given: Any) -> Any:
        time.sleep(SLOW_S)
        return super().reset(**given)

    def step(self, action: Any) -> Any:
        time.sleep(SLOW_S)
        return super().step(action)


def test_whatever_was_done_is_a_sign_of_life() -> None:
    """Together it takes longer than one thing may."""
    found = choose(Slow, step_timeout_s=0.5)
    assert "a step takes 1 s" in found.reason


@pytest.mark.parametrize(
    ("env", "why"),
    [
        (Crashes, "its process died by SIGSEGV"),
        (Vanishes, "its process ended with exit code"),
        (Exits, "SystemExit|exit code"),
        (Raises, "Error: "),
        (NoScreen, "Error: "),
    ],
)
def test_one_that_ends_its_process_or_raises_is_left_to_the_run(env: Any, why: str) -> None:
    found = choose(env)
    assert found.chosen.kind == "inline"
    assert any(part in found.reason for part in why.split("|"))


def helped(file: str) -> Any:
    """Starts a program of its own, and hangs."""
    Path(file).write_text(str(subprocess.Popen(["sleep", "1000"]).pid))
    return Hangs()


def test_what_the_env_started_ends_with_the_trial(tmp_path: Path) -> None:
    choose(partial(helped, str(tmp_path / "pid")), step_timeout_s=0.5)
    helper = Path("/proc", (tmp_path / "pid").read_text())
    deadline_s = time.monotonic() + 5
    while is_running(helper) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not is_running(helper)


def is_running(process: Path) -> bool:
    """Not only waiting to be reaped."""
    try:
        return (process / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
