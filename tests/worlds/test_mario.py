"""Super Mario Bros.: an ordinary env of pictures, with the newest NumPy and without the old gym."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import numpy as np
import pytest
from sole import recv, send

from freewheel.config import WorldConfig
from freewheel.errors import ConfigError
from freewheel.worlds import mario
from freewheel.worlds.make import make_env, make_world

MARIO = WorldConfig(lanes=1, image_size=128, grey=True, skip=6, kind="inline")
is_installed = importlib.util.find_spec("gym_super_mario_bros") is not None
needs_mario = pytest.mark.skipif(not is_installed, reason="gym-super-mario-bros is not installed")


def play(env: Any, actions: list[int]) -> tuple[list[bytes], float, list[bool], dict[str, Any]]:
    env.reset(seed=4)
    frames, total, info, ends = [], 0.0, {}, [False, False]
    for action in actions:
        obs, reward, *ends, info = env.step(action)
        frames.append(obs.tobytes())
        total += reward
        if any(ends):
            break
    return frames, total, ends, info


@needs_mario
@pytest.mark.parametrize("name", ["freewheel.worlds.mario:make", "SuperMarioBros-1-1-v0", "SuperMarioBros-v3"])
def test_the_same_actions_give_the_same_pictures(name: str) -> None:
    env = make_env(name, MARIO, "rgb_array")
    assert env.action_space.n == 12
    assert env.observation_space.shape == (128, 128)
    assert env.unwrapped.get_action_meanings()[0] == "NOOP"
    actions = np.random.default_rng(0).integers(12, size=12).tolist()
    assert play(env, actions)[:2] == play(env, actions)[:2]
    drawn = np.asarray(env.render())
    assert (drawn.shape, drawn.dtype) == ((240, 256, 3), np.uint8)
    env.close()
    env.close()
    assert "gym" not in sys.modules


@needs_mario
def test_running_right_is_rewarded_until_the_first_goomba() -> None:
    env = make_env("SuperMarioBros-1-1-v0", MARIO)
    run = list(mario.BUTTONS).index("RIGHT B")
    _, total, ends, info = play(env, [run] * 60)
    assert ends == [True, False]
    assert 200 < total < 300
    assert 255 < info["x_pos"] < 400, "a position beyond one byte"
    env.close()


@needs_mario
def test_a_limit_cuts_it() -> None:
    env = make_env("SuperMarioBros-1-1-v0", WorldConfig(image_size=128, skip=6, max_episode_steps=3))
    assert play(env, [0] * 9)[2] == [False, True]
    env.close()


@needs_mario
def test_it_is_a_world() -> None:
    world = make_world("SuperMarioBros-1-1-v0", WorldConfig(lanes=2, image_size=64, skip=4, max_episode_steps=4), 0)
    ends = 0
    for _ in range(9):
        ready = recv(world)
        assert ready.obs["obs"].shape == (2, 64, 64, 3)
        ends += 0 if ready.ended is None else len(ready.ended.lanes)
        send(world, ready.lanes, np.ones(2, np.int64))
    assert ends == 4
    world.close()


def test_ids_that_are_none() -> None:
    for name in ("SuperMarioBros-9-1-v0", "SuperMarioBros-1-1-v7", "SuperMarioBros2-v0"):
        with pytest.raises(ConfigError, match=r"such as SuperMarioBros-1-1-v0"):
            make_world(name, MARIO, 0)
    with pytest.raises(ConfigError, match="worlds 1 to 8"):
        make_world("freewheel.worlds.mario:make", WorldConfig(kwargs='{"world": 9}'), 0)
    with pytest.raises(ConfigError, match="look='blurred' is not one of vanilla"):
        make_world("freewheel.worlds.mario:make", WorldConfig(kwargs='{"look": "blurred"}'), 0)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("nes_py", "nes_py.nes_env"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(mario, "_game", mario._game.__wrapped__)
    with pytest.raises(ConfigError, match=r"pip install 'freewheel\[mario\]'"):
        make_world("SuperMarioBros-1-1-v0", MARIO, 0)
    assert "gym" not in sys.modules
