"""Scripts of users: with and without a guard, with an env of their own or not."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import freewheel
from freewheel.config import assemble
from freewheel.errors import ConfigError
from freewheel.machine.picklable import is_guarded, needs_main, why_not_picklable, without_main
from freewheel.run.prepare import prepare_new

ENV = """
import gymnasium, numpy as np
class Mine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 9
        return self.np_random.random(2, np.float32), {}
    def step(self, action):
        self.left -= 1
        return self.np_random.random(2, np.float32), 1.0, self.left == 0, False, {}
"""
TRAIN = """
import freewheel, json
def main():
    settings = {"replay.warmup_rows": 150, "eval_episodes": 0, "log.tensorboard": False, "log.folder": FOLDER, **MORE}
    print(json.dumps(freewheel.train(THING, steps=300, settings=settings).result))
"""
GUARD = "if __name__ == '__main__':\n    main()\n"


def script(tmp_path: Path, text: str, thing: str, **more: Any) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "mine.py"
    path.write_text(text.replace("THING", thing).replace("FOLDER", repr(str(tmp_path))).replace("MORE", repr(more)))
    return subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize(
    ("text", "thing", "runtime"),
    [
        (TRAIN + "main()", "'CartPole-v1'", "local"),
        (ENV + TRAIN + GUARD, "Mine", "local"),
        (ENV + TRAIN + "main()", "Mine", "sequential"),
    ],
    ids=["an-id-needs-no-guard", "own-env-with-guard", "own-env-without-guard"],
)
def test_a_script_runs_as_it_is(text: str, thing: str, runtime: str, tmp_path: Path) -> None:
    done = script(tmp_path, text, thing, runtime="auto")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()  # once: no child ran the script
    assert json.loads(line)["runtime"] == runtime
    assert ("__main__" in done.stderr) == (runtime == "sequential")


def test_a_call_beside_the_guard_is_named(tmp_path: Path) -> None:
    text = ENV + TRAIN + "if __name__ == '__main__':\n    print('begins')\nmain()\n"
    done = script(tmp_path, text, "Mine", runtime="local")
    assert done.returncode == 1
    assert "if __name__ == '__main__'" in done.stderr


def test_what_cannot_leave_is_told() -> None:
    assert why_not_picklable("CartPole-v1", None, None) == ""
    env = gymnasium.make("CartPole-v1")
    assert "object" in why_not_picklable(env, None, None)
    env.close()
    assert "cannot be sent" in why_not_picklable(lambda: None, None, None)
    assert "loss" in why_not_picklable("CartPole-v1", None, lambda: None)


def test_a_runtime_that_a_preset_prefers_gives_way() -> None:
    assert assemble("mine", {"algo": "ppo"}, "cyber").runtime == "local"
    made = prepare_new(lambda: None, {"algo": "ppo"}, "cyber", None, None)
    assert (made.config.runtime, made.layout.runtime) == ("sequential", "sequential")
    assert "cannot be sent" in made.notes[0]
    with pytest.raises(ConfigError, match="The local runtime starts other processes, and .*cannot be sent"):
        prepare_new(lambda: None, {"algo": "ppo", "runtime": "local"}, "cyber", None, None)


def test_a_preset_binds_nobody_and_a_setting_does(tmp_path: Path) -> None:
    settings = {"rollout.rows": 8, "world.lanes": 2, "eval_episodes": 0, "log.folder": str(tmp_path)}

    def cartpole() -> Any:
        return gymnasium.make("CartPole-v1")

    run = freewheel.train(cartpole, algo="ppo", preset="cyber", steps=32, settings=settings, is_quiet=True)
    assert run.result["runtime"] == "sequential"
    with pytest.raises(ConfigError, match="The local runtime starts other processes"):
        freewheel.train(cartpole, algo="ppo", preset="cyber", steps=32, settings={**settings, "runtime": "local"})


def test_main_is_hidden_only_where_nothing_needs_it() -> None:
    main = sys.modules["__main__"]
    with without_main("CartPole-v1", None):
        assert sys.modules["__main__"] is not main
    assert sys.modules["__main__"] is main
    mine = type("Mine", (), {"__module__": "__main__"})
    assert needs_main(mine)
    assert needs_main(mine())
    assert needs_main(partial(mine, 1))
    assert needs_main(partial(print, end=mine()))
    assert not needs_main(partial(print, 1))
    with without_main(mine):
        assert sys.modules["__main__"] is main


@pytest.mark.parametrize(
    ("text", "guarded"),
    [
        (GUARD, True),
        ("if '__main__' == __name__: pass", True),
        ("if 1: pass", False),
        ("print('__main__', __name__)", False),
        ("this is no Python", False),
    ],
)
def test_a_guard_is_seen(text: str, guarded: bool, tmp_path: Path) -> None:
    (tmp_path / "it.py").write_text(text)
    module = types.ModuleType("it")
    assert not is_guarded(module)
    module.__file__ = str(tmp_path / "it.py")
    assert is_guarded(module) == guarded
