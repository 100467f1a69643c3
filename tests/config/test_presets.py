"""Presets: of families of envs, of hardware, and several at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from freewheel.config import assemble, find_algo
from freewheel.config.algos import names
from freewheel.config.assemble import read_preset
from freewheel.config.settings import ImageConfig, wanted
from freewheel.errors import ConfigError
from freewheel.run.layout import choose

ATARI = ["ALE/Pong-v5", "ale_py:ALE/MsPacman-v5", "BreakoutNoFrameskip-v4"]
MARIO = ["SuperMarioBros-1-1-v0", "SuperMarioBros-v3", "freewheel.worlds.mario:make"]


@pytest.mark.parametrize("env", ATARI)
def test_every_atari_game_has_the_settings_of_deepmind(env: str) -> None:
    config = assemble(env, {})
    world = config.world
    assert (world.image_size, world.grey, world.skip, world.stack) == (84, True, 4, 4)
    assert (world.noop_max, world.fire_reset, world.reward_clip) == (30, True, 1.0)
    assert config.learner.batch_size / config.learner.ratio == 4, "steps per update"
    assert config.learner.target_every_updates * 4 == 10_000
    assert config.explore.over_steps * world.skip == 1_000_000
    assert (config.net.channels, config.net.hidden) == ((32, 64, 64), (512,))


@pytest.mark.parametrize("env", MARIO)
def test_mario_has_the_large_network(env: str) -> None:
    config = assemble(env, {})
    assert (config.world.stack, config.world.image_size, config.world.skip) == (8, 128, 6)
    assert (config.net.norm, config.net.conv_bias, config.net.init) == ("batch_conv", False, "he")
    assert config.learner.batch_size // config.learner.accumulate == 512
    assert (config.replay.alpha, config.replay.beta, config.replay.rows) == (0.7, 0.5, 50_000)
    assert config.learner.ratio <= 20


@pytest.mark.parametrize("algo", ["c51", "rainbow"])
@pytest.mark.parametrize(
    ("env", "least", "most"),
    [
        ("CartPole-v1", 0, 99),
        ("Acrobot-v1", -99, 0),
        ("MountainCar-v0", -87, 0),
        ("LunarLander-v3", -365, 166),
        (ATARI[0], -10, 10),
        (MARIO[0], -40, 1_320),
    ],
)
def test_supports_hold_the_discounted_returns(algo: str, env: str, least: float, most: float) -> None:
    q = assemble(env, {"algo": algo}).q  # type: ignore[attr-defined]
    assert q.v_min <= least <= most <= q.v_max
    assert q.v_max - q.v_min <= 1.5 * (most - least)


@pytest.mark.parametrize(
    "env", ["PongLike-v0", "my:ALE/Pong-v5x", "mine:SuperMarioBros", "CartPole-v1", "freewheel/Catch-v0"]
)
def test_other_envs_are_not_of_a_family(env: str) -> None:
    assert assemble(env, {}).world.image_size == 0


@pytest.mark.parametrize("env", [ATARI[0], MARIO[0], "CartPole-v1", "freewheel/Catch-v0"])
@pytest.mark.parametrize("hardware", ["small", "medium", "large"])
@pytest.mark.parametrize("algo", names())
def test_hardware_goes_with_every_env_and_algorithm(env: str, hardware: str, algo: str) -> None:
    own, both = assemble(env, {"algo": algo}), assemble(env, {"algo": algo}, f"auto,{hardware}")
    assert both.world.lanes == read_preset(env, algo, hardware)["world.lanes"]
    assert getattr(both, "q", None) == getattr(own, "q", None)
    assert both.net == own.net
    assert both.learner.batch_size == own.learner.batch_size


@pytest.mark.parametrize("algo", ["ppo", "appo"])
@pytest.mark.parametrize("cores", [1, 2, 8])
def test_slow_envs_of_network_defence_are_not_stepped_in_turn(algo: str, cores: int) -> None:
    assert choose(assemble("x", {"algo": algo}, "cyber"), cores).runtime == "local"
    in_turn = assemble("x", {"algo": algo, "runtime": "sequential"}, "cyber")
    assert choose(in_turn, cores).runtime == "sequential"


def test_larger_hardware_keeps_more() -> None:
    rows = [assemble("x", {}, name).replay.rows for name in ("small", "medium", "large")]
    assert rows == sorted(rows)


def test_later_presets_go_before_earlier_ones_and_what_is_given_before_all(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text("[all.world]\nlanes = 5\n[all.replay]\nrows = 70_000\n")
    config = assemble("ALE/Pong-v5", {"replay.rows": 80_000}, f"auto, small,{mine}")
    assert (config.world.lanes, config.replay.rows, config.world.stack, config.checkpoint.keep) == (5, 80_000, 4, 2)
    assert assemble("ALE/Pong-v5", {}, "none,small").world.stack == 1
    assert assemble("x", {}, "none") == find_algo("dqn").Settings(env="x")


def test_names_are_found_however_they_are_written() -> None:
    assert assemble("x", {}, "atari").world == assemble("x", {}, "Atari").world
    with pytest.raises(ConfigError, match=r"preset 'smal' is neither.*Did you mean small"):
        assemble("x", {}, "auto,smal")
    with pytest.raises(ConfigError, match=r"preset '' is neither"):
        assemble("x", {}, "auto,")


def test_only_what_differs_is_wanted() -> None:
    assert wanted(ImageConfig()) == {}
    assert wanted(assemble("x", {"world.skip": 3, "world.lanes": 2}).world) == {"skip": 3}
