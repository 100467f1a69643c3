"""Pictures are made ready once: frames skipped, the last two joined, grey, of one size; what gives no pictures is refused."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from sole import recv, send

from freewheel.config import WorldConfig
from freewheel.errors import ConfigError, EnvError
from freewheel.worlds.choose import choose_world
from freewheel.worlds.image import Lines, Picture
from freewheel.worlds.inline import InlineWorld
from freewheel.worlds.make import make_env, make_world

Array = np.ndarray[Any, Any]


class Flicker(gymnasium.Env[Any, Any]):
    """Frame n is n everywhere, and has a light at place n; the same memory holds every frame. Rewards are the frame's number."""

    observation_space = spaces.Box(0, 255, (8, 12, 3), np.uint8)
    action_space = spaces.Discrete(3)

    def __init__(self, length: int = 1000, named: bool = True) -> None:
        self.length = length
        self.pressed: list[int] = []
        self.closed = 0
        self._drawn = np.zeros((8, 12, 3), np.uint8)
        if named:
            self.get_action_meanings = lambda: ["NOOP", "FIRE", "UP"]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.count, self.pressed = 0, []
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.count += 1
        self.pressed.append(int(action))
        return self._draw(), float(self.count), self.count == self.length, False, {}

    def close(self) -> None:
        self.closed += 1

    def _draw(self) -> Array:
        self._drawn[:] = self.count
        self._drawn[0, self.count % 12] = 255
        return self._drawn


def prepared(env: Any, **config: Any) -> Any:
    return make_env(env, WorldConfig(lanes=1, **config))


def picture(shape: tuple[int, ...], size: int = 0, grey: bool = False) -> Picture:
    return Picture(spaces.Box(0, 255, shape, np.uint8), size, grey, "Env", {"grey": True})


def test_nothing_is_done_unless_it_is_asked_for() -> None:
    env = Flicker()
    assert prepared(env) is env


def test_a_step_is_so_many_frames_and_shows_the_last_two() -> None:
    env = prepared(Flicker(), skip=4)
    first, _ = env.reset(seed=0)
    assert first.max() == 255
    obs, reward, *_ = env.step(2)
    assert env.unwrapped.pressed == [2] * 4
    assert reward == 1 + 2 + 3 + 4
    assert np.flatnonzero(obs[0, :, 0] == 255).tolist() == [3, 4]  # the lights of both frames
    assert (obs[1:] == 4).all()
    again, reward, *_ = env.step(1)
    assert reward == 5 + 6 + 7 + 8
    assert (obs[1:] == 4).all(), "what was given stays as it was"
    assert (again[1:] == 8).all()


def test_an_end_within_a_step_ends_it() -> None:
    env = prepared(Flicker(length=6), skip=4)
    env.reset(seed=0)
    assert env.step(0)[2:4] == (False, False)
    obs, reward, terminated, truncated, _ = env.step(0)
    assert (reward, terminated, truncated) == (5 + 6, True, False)
    assert (obs[1:] == 6).all()


def test_the_limit_counts_steps_not_frames() -> None:
    world = make_world(Flicker, WorldConfig(lanes=1, skip=4, max_episode_steps=3, kind="inline"), 0)
    ends = []
    for _ in range(4):
        ready = recv(world)
        ends.append(None if ready.ended is None else ready.ended.truncated.tolist())
        send(world, ready.lanes, np.zeros(1, np.int64))
    assert ends == [None, None, None, [True]]
    world.close()


@pytest.mark.parametrize(("fire", "begins"), [(False, []), (True, [1])])
def test_idle_frames_begin_an_episode_as_its_seed_says(fire: bool, begins: list[int]) -> None:
    env = prepared(Flicker(), noop_max=9, fire_reset=fire)
    counts = []
    for seed in range(60):
        env.reset(seed=seed)
        once = list(env.unwrapped.pressed)
        assert once[: len(begins)] == begins
        assert set(once[len(begins) :]) <= {0}
        env.reset(seed=seed)
        assert env.unwrapped.pressed == once
        counts.append(len(once))
    assert (min(counts), max(counts)) == (1 if fire else 0, 8)


def test_a_game_that_ends_while_it_is_idle_begins_again() -> None:
    env = prepared(Flicker(length=1), fire_reset=True)
    obs, _ = env.reset(seed=0)
    assert (obs[1:] == 0).all()


@pytest.mark.parametrize(("source", "target"), [((210, 160), 84), ((240, 256), 128), ((64, 64), 64), ((30, 50), 84)])
@pytest.mark.parametrize("colours", [(), (3,)])
def test_sizes_are_changed_by_area(source: tuple[int, int], target: int, colours: tuple[int, ...]) -> None:
    drawn = np.random.default_rng(1).integers(0, 256, (*source, *colours), np.uint8)
    ours = picture(drawn.shape, target)(drawn)
    assert ours.shape == (target, target, *colours)
    assert ours.dtype == np.uint8
    assert ours.flags.c_contiguous
    assert np.abs(ours - _by_area(drawn.astype(np.float64), target)).max() <= 0.51


def _by_area(drawn: Array, target: int) -> Array:
    """As many copies of each pixel as make it come out even, then plain means."""
    for axis in (0, 1):
        source = drawn.shape[axis]
        drawn = drawn.repeat(target, axis)
        shape = [*drawn.shape[:axis], target, source, *drawn.shape[axis + 1 :]]
        drawn = drawn.reshape(shape).mean(axis + 1)
    return drawn


def test_every_pixel_counts_once() -> None:
    for source, target in [(210, 84), (160, 84), (256, 128), (50, 84), (7, 3)]:
        flat = np.full((source, 1), 200.0)
        np.testing.assert_allclose(Lines(source, target)(flat), 200.0, rtol=1e-6)
        whole = Lines(source, target)(np.eye(source)).sum(0)
        np.testing.assert_allclose(whole, target / source, rtol=1e-5)


def test_grey_is_as_bright_as_the_colour_looks() -> None:
    drawn = np.zeros((4, 4, 3), np.uint8)
    drawn[0], drawn[1], drawn[2], drawn[3] = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)
    grey = picture(drawn.shape, grey=True)(drawn)
    assert grey.shape == (4, 4)
    assert grey[:, 0].tolist() == [76, 150, 29, 255]
    assert picture((4, 4, 1), grey=True)(drawn[:, :, :1]).shape == (4, 4)
    assert picture((4, 4), grey=True)(drawn[:, :, 0]).tolist() == drawn[:, :, 0].tolist()


def test_what_gives_no_pictures_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"CartPole-v1 gives Box.* world.image_size=84 and world.grey=True need images"
    ):
        make_world("CartPole-v1", WorldConfig(image_size=84, grey=True), 0)
    with pytest.raises(ConfigError, match=r"world.skip=4 needs images"):
        make_world("CartPole-v1", WorldConfig(skip=4), 0)
    with pytest.raises(ConfigError, match=r"makes its own vector env, so world.skip cannot be used"):
        make_world(lambda num_envs: None, WorldConfig(skip=4), 0)
    with pytest.raises(ConfigError, match=r"is made in its own vector form, so world.grey cannot be used"):
        make_world("CartPole-v1", WorldConfig(grey=True, kind="vector"), 0)
    with pytest.raises(ConfigError, match=r"Flicker does not name one"):
        prepared(Flicker(named=False), noop_max=3)
    with pytest.raises(ConfigError, match=r"Flicker has no get_action_meanings"):
        prepared(Flicker(named=False), fire_reset=True)


def test_an_env_that_is_refused_is_closed() -> None:
    made: list[Flicker] = []

    def make() -> Flicker:
        made.append(Flicker(named=False))
        return made[-1]

    with pytest.raises(ConfigError, match="world.noop_max=3"):
        make_world(make, WorldConfig(noop_max=3), 0)
    assert [env.closed for env in made] == [1]


@pytest.mark.parametrize("name", ["freewheel/Catch-v0", "freewheel/Drift-v0"])
@pytest.mark.parametrize("kind", ["inline", "pool"])
def test_the_small_games_are_worlds(name: str, kind: str) -> None:
    world = make_world(name, WorldConfig(lanes=3, kind=kind, workers=2, threads=1, min_ready=3), 5)
    ends = 0
    for _ in range(40):
        ready = recv(world)
        assert ready.obs["obs"].shape == (3, 84, 84)
        ends += 0 if ready.ended is None else len(ready.ended.lanes)
        send(world, ready.lanes, np.ones(3, np.int64))
    assert ends >= 3 * 2
    world.close()


@pytest.mark.parametrize("cells", [12, 6])
def test_catch_can_be_won_by_looking(cells: int) -> None:
    env = make_env("freewheel/Catch-v0", WorldConfig(kwargs=f'{{"cells": {cells}}}'))
    bottom, returns = 84 - 84 // cells, []
    for seed in range(40):
        obs, _ = env.reset(seed=seed)
        over, total = False, 0.0
        while not over:
            paddle = int((obs[-1] == 255).argmax())
            above = (obs[:bottom] == 255).any(axis=0)
            ball = int(above.argmax()) if above.any() else paddle
            obs, reward, over, _, _ = env.step(1 + int(np.sign(ball - paddle)))
            total += float(reward)
        returns.append(total)
    assert returns == [1.0] * 40


@pytest.mark.parametrize("cells", [0, 1, 5])
def test_catch_refuses_cells_that_do_not_fill_the_picture(cells: int) -> None:
    with pytest.raises(EnvError, match=f"cells={cells} must be a divisor of 84"):
        make_env("freewheel/Catch-v0", WorldConfig(kwargs=f'{{"cells": {cells}}}'))


def test_drift_is_told_by_the_order_of_two_frames_and_by_nothing_else() -> None:
    env = make_env("freewheel/Drift-v0", WorldConfig())
    seen: dict[int, set[bytes]] = {-1: set(), 1: set()}
    pairs: dict[int, set[frozenset[bytes]]] = {-1: set(), 1: set()}
    for seed in range(60):
        before, _ = env.reset(seed=seed)
        older = before
        direction = env.unwrapped._direction
        rewards = []
        for step in range(16):
            seen[direction].add(before.tobytes())
            guess = 0
            if step:
                guess = int((after_place(before) - after_place(older)) % 84 == 7)
            older = before
            before, reward, terminated, truncated, _ = env.step(guess)
            pairs[direction].add(frozenset((older.tobytes(), before.tobytes())))
            rewards.append(reward)
        assert rewards == [0.0] + [1.0] * 15
        assert (terminated, truncated) == (False, True)
    assert seen[-1] == seen[1]
    assert pairs[-1] == pairs[1]


def after_place(frame: Array) -> int:
    return int((frame == 255).any(axis=0).argmax())


def test_inline_worlds_of_pictures_go_on_after_a_resume() -> None:
    def make() -> InlineWorld:
        world = make_world("freewheel/Catch-v0", WorldConfig(lanes=2, kind="inline", image_size=42, skip=2), 7)
        assert isinstance(world, InlineWorld)
        return world

    one, other = make(), make()
    for _ in range(8):
        send(one, recv(one).lanes, np.array([0, 2]))
    assert other.set_state(one.state()) == [0, 1]
    mine, theirs = recv(one), recv(other)
    assert mine.obs["obs"].shape == (2, 42, 42)
    assert (mine.obs["obs"] == theirs.obs["obs"]).all()
    one.close()
    other.close()


def test_auto_measures_prepared_pictures() -> None:
    assert choose_world("freewheel/Catch-v0", WorldConfig(lanes=2, image_size=42)).chosen.kind in ("inline", "pool")
