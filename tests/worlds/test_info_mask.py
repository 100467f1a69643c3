"""Masks in info become a part of the observation, the same in every world."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from fake_envpool import FakePool
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from strict_envs import FIRST, NUM_ACTIONS, ByInfo

import freewheel
from freewheel.config import WorldConfig
from freewheel.errors import Breach, ConfigError, EnvError
from freewheel.films.clips import film_policy
from freewheel.spec import MASK
from freewheel.worlds.choose import make_looking
from freewheel.worlds.info_mask import mask_of
from freewheel.worlds.inline import InlineWorld
from freewheel.worlds.make import make_env, make_world
from freewheel.worlds.pool import PoolWorld
from freewheel.worlds.world import World

ON = WorldConfig(lanes=3, info_mask="on")
BITS = 6
KINDS = ("box", "dict", "tuple")


class Coded(gymnasium.Env[Any, Any]):
    """Its mask spells the numbers that it shows. Episodes are of 1 to 4 steps, and end in turn; a mask is missing where one terminated."""

    action_space = spaces.Discrete(BITS)

    def __init__(self, kind: str = "box", gives: str = "array") -> None:
        flat = spaces.Box(0, 100, (2,), np.float32)
        two = {"a": flat, "b": spaces.Discrete(100)}
        self.observation_space: Any = {"box": flat, "dict": spaces.Dict(two), "tuple": spaces.Tuple(two.values())}[kind]
        self.kind, self.gives, self.episode, self.count = kind, gives, -1, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episode, self.count = self.episode + 1, 0
        return self.look(), self.info(False)

    def step(self, action: Any) -> Any:
        self.count += 1
        is_over = self.count == 1 + self.episode % 4
        terminated = is_over and self.episode % 3 == 0
        return self.look(), 1.0, terminated, is_over and not terminated, self.info(terminated)

    def look(self) -> Any:
        flat = np.array([self.episode, self.count], np.float32)
        parts = {"a": flat, "b": np.int64(self.count)}
        return {"box": flat, "dict": parts, "tuple": tuple(parts.values())}[self.kind]

    def info(self, terminated: bool) -> dict[str, Any]:
        mask = spelled(self.episode, self.count)
        given = {"array": mask, "bools": mask != 0, "list": mask.tolist(), "parts": (mask[:2], mask[2:])}[self.gives]
        return {} if terminated else {"action_mask": given}


def spelled(episode: int, count: int) -> Any:
    code = 1 + (7 * episode + count) % (2**BITS - 1)
    return np.array([code >> bit & 1 for bit in range(BITS)], np.int8)


def vector(makes: list[Callable[[], Any]], mode: AutoresetMode) -> World:
    return make_world(SyncVectorEnv(makes, autoreset_mode=mode), ON, 3)


def inline(makes: list[Callable[[], Any]]) -> World:
    return InlineWorld([make_env(make, ON) for make in makes], 3, "Coded")


def pool(makes: list[Callable[[], Any]]) -> World:
    return PoolWorld([partial(make_env, make, ON, name="Coded") for make in makes], 3, "Coded", 2, min_ready=3)


WORLDS: dict[str, Callable[[list[Callable[[], Any]]], World]] = {
    "inline": inline,
    "pool": pool,
    **{mode.name: partial(vector, mode=mode) for mode in AutoresetMode},
}


def check_rows(obs: dict[str, Any], kind: str, terminated: Any) -> None:
    name = {"box": "obs.obs", "dict": "obs.a", "tuple": "obs.obs.0"}[kind]
    assert len(obs) == (2 if kind == "box" else 3)
    for (episode, count), mask, is_over in zip(obs[name], obs["obs.action_mask"], terminated, strict=True):
        expected = np.ones(BITS, np.int8) if is_over else spelled(int(episode), int(count))
        np.testing.assert_array_equal(mask, expected)


@pytest.mark.parametrize("make", WORLDS.values(), ids=WORLDS.keys())
@pytest.mark.parametrize("kind", KINDS)
def test_every_row_has_the_mask_of_its_state(make: Callable[[list[Any]], World], kind: str) -> None:
    world, ended = make([partial(Coded, kind)] * 3), 0
    try:
        for _ in range(40):
            (ready,) = world.recv()
            check_rows(ready.obs, kind, np.zeros(len(ready.lanes)))
            if ready.ended is not None:
                ended += len(ready.ended.lanes)
                assert (ready.ended.terminated != ready.ended.truncated).all()
                check_rows(ready.ended.obs, kind, ready.ended.terminated)
            world.send(0, ready.lanes, {"action": np.zeros(len(ready.lanes), np.int64)})
        assert ended > 20
    finally:
        world.close()


@pytest.mark.parametrize("gives", ["bools", "list", "parts"])
@pytest.mark.parametrize("which", ["inline", "NEXT_STEP", "SAME_STEP"])
def test_it_may_come_in_several_forms(gives: str, which: str) -> None:
    world = WORLDS[which]([partial(Coded, "box", gives)] * 3)
    for _ in range(10):
        (ready,) = world.recv()
        check_rows(ready.obs, "box", np.zeros(len(ready.lanes)))
        world.send(0, ready.lanes, {"action": np.zeros(len(ready.lanes), np.int64)})
    world.close()


def test_a_new_run_looks_at_the_first_reset() -> None:
    for kind in ("inline", "pool", "auto"):
        world, config = make_looking(Coded, WorldConfig(lanes=2, kind=kind, workers=1, threads=1), 3)
        assert config.info_mask == "on"
        assert MASK in world.groups[0].obs_space.spaces  # type: ignore[attr-defined]
        world.close()
        for settings, looks in (
            (WorldConfig(lanes=2, kind=kind, info_mask="off"), True),
            (WorldConfig(lanes=2), False),
        ):
            world, config = make_looking(Coded, settings, 3, looks)
            assert config == settings
            assert isinstance(world.groups[0].obs_space, spaces.Box)
            world.close()


def test_an_env_without_a_mask_stays_as_it_is() -> None:
    world, config = make_looking("CartPole-v1", WorldConfig(lanes=2), 3)
    plain = make_world("CartPole-v1", WorldConfig(lanes=2), 3)
    assert isinstance(world, InlineWorld)
    assert isinstance(plain, InlineWorld)
    assert config.info_mask == "auto"
    assert [type(env) for env in world._envs] == [type(env) for env in plain._envs]
    (one,), (two,) = world.recv(), plain.recv()
    assert one.obs["obs"].tobytes() == two.obs["obs"].tobytes(), "the look has changed the first episode"
    world.close()
    plain.close()


class Wrong(Coded):
    """What it gives is no mask of its actions."""

    def __init__(self, given: Any, action_space: Any = Coded.action_space) -> None:
        super().__init__()
        self.given, self.action_space = given, action_space

    def info(self, terminated: bool) -> dict[str, Any]:
        return {"action_mask": self.given}


def many(num_envs: int, seed: int) -> FakePool:
    return FakePool([Coded] * num_envs, num_envs - 1, seed)


@pytest.mark.parametrize(
    ("env", "config", "match"),
    [
        (partial(Wrong, [1, 0]), {}, r"with 2 values of dtype int64. Give 6 numbers.*world.info_mask to off"),
        (partial(Wrong, ["a"] * 6), {}, r"with 6 values of dtype <U1"),
        (
            partial(Wrong, [1], spaces.Box(-1, 1, (1,))),
            {},
            r"needs discrete actions; it has Box.*world.info_mask to off",
        ),
        (many, {"info_mask": "on", "lanes": 4}, r"gives some of its lanes at a time, so world.info_mask cannot"),
    ],
)
def test_what_can_be_no_mask_is_refused(env: Any, config: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make_looking(env, WorldConfig(**{"lanes": 1, **config}), 3)


def test_a_mask_in_the_observation_goes_before_one_in_info() -> None:
    class Both(Coded):
        def __init__(self) -> None:
            super().__init__("dict")
            self.observation_space = spaces.Dict({"a": spaces.Box(0, 1, (1,)), MASK: spaces.MultiBinary(BITS)})

        def look(self) -> Any:
            return {"a": np.zeros(1, np.float32), MASK: np.ones(BITS, np.int8)}

    world, config = make_looking(Both, WorldConfig(lanes=1), 3)
    assert config.info_mask == "auto"
    world.close()
    with pytest.raises(ConfigError, match="in its observation, which is used"):
        make_world(Both, WorldConfig(lanes=1, info_mask="on"), 3)


@pytest.mark.parametrize("which", ["inline", "pool", *(mode.name for mode in AutoresetMode)])
def test_a_mask_that_vanishes_is_told_with_its_step(which: str) -> None:
    world = WORLDS[which]([partial(ByInfo, 12, 3)] * 3)

    def play() -> None:
        for _ in range(30):
            (ready,) = world.recv()
            allowed = ready.obs["obs.action_mask"].argmax(1)
            world.send(0, ready.lanes, {"action": allowed + FIRST})

    with pytest.raises(EnvError, match=r"lane.* gave no info\['action_mask'\] at step \d.*every reset and step"):
        play()
    world.close()
    never = WORLDS[which]([partial(ByInfo, 12, 0)] * 3)
    with pytest.raises(EnvError, match=r"gave no info\['action_mask'\] at the reset"):
        never.recv()
    never.close()


SETTINGS: dict[str, Any] = {
    "world.lanes": 4,
    "net.hidden": (16,),
    "learner.compile": "off",
    "eval_episodes": 4,
    "log.tensorboard": False,
    "checkpoint.every_steps": 0,
}
OWN: dict[str, dict[str, Any]] = {
    "dqn": {
        "replay.warmup_rows": 100,
        "learner.batch_size": 16,
        "learner.ratio": 4.0,
        "world.stack": 2,
        "checkpoint.replay": True,
    },
    "ppo": {"rollout.rows": 16},
}


def make_many(num_envs: int) -> SyncVectorEnv:
    return SyncVectorEnv([ByInfo] * num_envs)


def train(folder: Path, algo: str, env: Any = ByInfo, steps: int = 800, **more: Any) -> freewheel.Run:
    settings = {**SETTINGS, **OWN[algo], "log.folder": str(folder), **more}
    return freewheel.train(env, algo=algo, steps=steps, preset="none", settings=settings, is_quiet=True)


@pytest.mark.parametrize(("algo", "world"), [("dqn", "inline"), ("dqn", "vector"), ("ppo", "inline"), ("ppo", "local")])
def test_no_forbidden_action_is_taken_in_a_run_its_evaluation_and_by_its_policy(
    algo: str, world: str, tmp_path: Path
) -> None:
    more = {"runtime": "sequential"}
    if world == "local":
        more = {"runtime": "local", "world.kind": "pool", "world.workers": 2, "world.threads": 1}
    run = train(tmp_path, algo, make_many if world == "vector" else ByInfo, **more)
    assert run.config.world.info_mask == "on"
    assert run.folder.joinpath("config.json").read_text().count('"info_mask": "on"') == 1
    policy, env = run.policy(), ByInfo()
    obs, info = env.reset(seed=7)
    for _ in range(40):
        obs, _, terminated, truncated, info = env.step(policy.act(obs, info["action_mask"]))
        if terminated or truncated:
            obs, info = env.reset()
            policy.reset()
    film, sides = film_policy(run.policy(), ByInfo, max_steps=5)
    assert film.startswith(b"GIF")
    assert sides == (320, 320)
    with pytest.raises(ConfigError, match=r"needs it: act\(obs, info\['action_mask'\]\)"):
        policy.act(obs)
    with pytest.raises(EnvError, match="without an allowed action"):
        policy.act(obs, [0] * NUM_ACTIONS)


def test_a_run_goes_on_with_the_masks_that_it_began_with(tmp_path: Path) -> None:
    class Stop(freewheel.Callback):
        def on_step(self, moment: freewheel.Moment) -> None:
            if moment.step >= 500:
                moment.stop()

    whole = train(tmp_path / "whole", "dqn", runtime="sequential")
    settings = {**SETTINGS, **OWN["dqn"], "log.folder": str(tmp_path), "runtime": "sequential"}
    more: dict[str, Any] = {"preset": "none", "settings": settings, "is_quiet": True}
    part = freewheel.train(ByInfo, algo="dqn", steps=800, callbacks=[Stop()], **more)
    assert part.result["steps"] < 800
    rest = freewheel.train(ByInfo, resume=part.folder, is_quiet=True)
    assert rest.returns == whole.returns[len(part.returns) :]
    assert rest.result["eval_return_mean"] == whole.result["eval_return_mean"]


def test_a_run_without_a_mask_is_not_given_one(tmp_path: Path) -> None:
    run = train(tmp_path, "dqn", "CartPole-v1", 200, runtime="sequential", eval_episodes=0)
    assert run.config.world.info_mask == "auto"
    with pytest.raises(ConfigError, match="was trained without a mask in info"):
        run.policy().act(np.zeros(4, np.float32), [1, 1])
    with pytest.raises(ConfigError, match=r"world.info_mask was given.*algo=sac does not use masks"):
        freewheel.train("Pendulum-v1", algo="sac", settings={"world.info_mask": "on"}, is_quiet=True)


@pytest.mark.parametrize("mask", [[-np.inf, 0, 0], [np.nan, 1, 1], [-1, 0, 1]])
def test_a_mask_in_another_sense_is_refused(mask: list[float]) -> None:
    """An additive mask, as other libraries have it, would be taken for its opposite."""
    with pytest.raises(Breach, match="Give 1 for an allowed action and 0 for a forbidden one"):
        mask_of(np.array(mask, np.float32), 3)
