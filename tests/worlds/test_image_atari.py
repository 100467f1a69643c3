"""Atari: found by its id, prepared the same way one by one and in ale-py's native vector form."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import VectorEnv
from sole import recv, send

from freewheel.config import WorldConfig, assemble
from freewheel.errors import ConfigError
from freewheel.worlds import find
from freewheel.worlds.choose import choose_world
from freewheel.worlds.make import make_env, make_world

pytest.importorskip("ale_py")

SURE = json.dumps({"repeat_action_probability": 0.0})
GREY = WorldConfig(lanes=1, image_size=84, grey=True, skip=4, kind="inline", kwargs=SURE)


@pytest.mark.parametrize("name", ["ALE/Pong-v5", "ale_py:ALE/Pong-v5", "PongNoFrameskip-v4", "Pong-v4"])
def test_games_are_found_by_their_ids(name: str) -> None:
    env = make_env(name, replace(GREY, kwargs="{}"))
    obs, _ = env.reset(seed=0)
    assert (obs.shape, obs.dtype) == ((84, 84), np.uint8)
    before = env.unwrapped.ale.getEpisodeFrameNumber()
    env.step(0)
    assert env.unwrapped.ale.getEpisodeFrameNumber() - before == 4, "the env's own frame skip is off"
    assert env.metadata["render_fps"] == 15
    env.close()


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for known in [known for known in gymnasium.registry if known.startswith("ALE/")]:
        monkeypatch.delitem(gymnasium.registry, known)
    is_there = importlib.util.find_spec
    monkeypatch.setattr(find.importlib.util, "find_spec", lambda name: None if name == "ale_py" else is_there(name))
    with pytest.raises(ConfigError, match=r"ALE/Pong-v5 needs ale-py.*pip install 'freewheel\[atari\]'"):
        make_world("ALE/Pong-v5", WorldConfig(), 0)


@pytest.mark.parametrize("game", ["Pong", "Breakout"])
@pytest.mark.parametrize(("grey", "fire"), [(True, True), (False, False)])
def test_both_forms_show_the_same(game: str, grey: bool, fire: bool) -> None:
    """Up to the rounding of the sizes; a game's last picture, which ale-py leaves as it was, is not compared."""
    config = replace(GREY, grey=grey, fire_reset=fire)
    one = make_env(f"ALE/{game}-v5", config)
    many = make_world(f"ALE/{game}-v5", replace(config, kind="vector"), 3)
    assert one.observation_space == many.obs_space
    assert one.action_space == many.action_space
    random = np.random.default_rng(0)
    obs, _ = one.reset(seed=1)
    ready = recv(many)
    rewards = 0
    for _ in range(150):
        assert np.abs(obs.astype(int) - ready.obs["obs"][0]).max() <= 1
        action = int(random.integers(4))
        send(many, ready.lanes, np.array([action]))
        ready = recv(many)
        obs, reward, terminated, truncated, _ = one.step(action)
        assert (terminated, truncated) == (ready.ended is not None, False)
        if ready.ended is not None:
            break
        assert reward == ready.reward[0]
        rewards += reward != 0
    assert rewards
    one.close()
    many.close()


@pytest.mark.parametrize("kind", ["inline", "vector"])
def test_sticky_actions_are_an_option_of_the_env(kind: str) -> None:
    def frames(config: WorldConfig, seed: int) -> list[bytes]:
        world = make_world("ALE/Pong-v5", replace(config, kind=kind), seed)
        found = []
        for i in range(40):
            ready = recv(world)
            found.append(ready.obs["obs"].tobytes())
            send(world, ready.lanes, np.array([2 + i // 2 % 2]))
        world.close()
        return found

    sticky = replace(GREY, kwargs="{}")  # v5 has 0.25
    assert frames(GREY, 1) == frames(GREY, 2)
    assert frames(sticky, 1) == frames(sticky, 1)
    assert frames(sticky, 1) != frames(sticky, 2)


def test_rewards_are_not_clipped_by_the_vector_form() -> None:
    world = make_world("ALE/SpaceInvaders-v5", replace(GREY, kind="vector", lanes=2), 0)
    largest = 0.0
    for _ in range(120):
        ready = recv(world)
        largest = max(largest, float(ready.reward.max()))
        send(world, ready.lanes, np.full(len(ready.lanes), 1))
    world.close()
    assert largest > 1


@pytest.mark.parametrize("kind", ["inline", "vector"])
def test_the_limit_counts_steps(kind: str) -> None:
    world = make_world("ALE/Pong-v5", replace(GREY, kind=kind, max_episode_steps=5), 0)
    for step in range(6):
        ready = recv(world)
        assert (ready.ended is not None) == (step == 5)
        send(world, ready.lanes, np.zeros(len(ready.lanes), np.int64))
    assert ready.ended is not None
    assert ready.ended.truncated.tolist() == [True]
    assert ready.first.all()
    world.close()


def test_other_vector_envs_do_not_inherit_its_autoreset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VectorEnv, "metadata", {})
    make_world("ALE/Pong-v5", replace(GREY, kind="vector"), 0).close()
    assert VectorEnv.metadata == {}


def test_settings_that_cannot_be() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"kwargs": '{"frameskip": 2}'}, "frameskip in world.kwargs and world.skip set the same thing"),
        ({"kwargs": '{"obs_type": "ram"}'}, "obs_type in world.kwargs"),
        ({"kind": "vector", "image_size": 0}, "Set world.image_size"),
        ({"kind": "vector", "kwargs": '{"stack_num": 4}'}, "stack_num in world.kwargs"),
    ]
    for changes, message in cases:
        with pytest.raises(ConfigError, match=message):
            make_world("ALE/Pong-v5", replace(GREY, **changes), 0)


def test_auto_may_take_the_vector_form() -> None:
    """It shows what one env shows, so only speed decides."""
    preset = assemble("ALE/Pong-v5", {}).world
    one, many = (make_world("ALE/Pong-v5", replace(preset, lanes=2, kind=kind), 0) for kind in ("inline", "vector"))
    assert (one.obs_space, one.action_space) == (many.obs_space, many.action_space)
    one.close()
    many.close()
    assert choose_world("ALE/Pong-v5", replace(preset, lanes=2)).chosen.kind in ("inline", "pool", "vector")


def test_the_vector_form_has_the_threads_that_auto_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    real = gymnasium.make_vec

    def make_vec(*args: Any, **kwargs: Any) -> Any:
        made.append(kwargs["num_threads"])
        return real(*args, **kwargs)

    monkeypatch.setattr(gymnasium, "make_vec", make_vec)
    for threads in (0, 2):
        make_world("ALE/Pong-v5", WorldConfig(kind="vector", lanes=2, image_size=84, threads=threads), 0).close()
    assert made == [1, 2]
