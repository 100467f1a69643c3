"""A policy on its own: loaded from a folder, acting on what an env gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from torch import Tensor, nn

import freewheel
from freewheel.errors import CheckpointError, ConfigError
from freewheel.spec import describe, read_space

TINY: dict[str, Any] = {
    "runtime": "sequential",
    "replay.warmup_rows": 64,
    "learner.batch_size": 16,
    "eval_episodes": 0,
    "log.tensorboard": False,
    "log.csv": False,
}


def train(tmp_path: Path, env: Any = "CartPole-v1", **more: Any) -> freewheel.Run:
    settings = {**TINY, "log.folder": str(tmp_path), **more.pop("settings", {})}
    return freewheel.train(env, steps=200, preset="none", settings=settings, is_quiet=True, **more)


@pytest.mark.parametrize("algo", ["dqn", "qrdqn", "iqn", "c51", "rainbow"])
def test_it_acts_on_one_observation_and_on_many(tmp_path: Path, algo: str) -> None:
    policy = freewheel.load(train(tmp_path, algo=algo).folder)
    many = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    actions = policy.act(many)
    assert actions.shape == (20,)
    assert [policy.act(obs) for obs in many] == actions.tolist()
    assert policy.action_space.contains(policy.act(many[0]))
    assert policy.act(many[0].tolist()) == actions[0]
    with pytest.raises(ConfigError, match=r"\(5,\)"):
        policy.act(np.zeros(5, np.float32))


class Bag(gymnasium.Env[Any, Any]):
    """A nested observation, actions that begin at 2."""

    observation_space = spaces.Dict(place=spaces.Discrete(5), looks=spaces.Box(-1, 1, (2, 3), np.float32))
    action_space = spaces.Discrete(3, start=2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._seen(), float(action), self.np_random.random() < 0.2, False, {}

    def _seen(self) -> Any:
        looks = self.np_random.uniform(-1, 1, (2, 3)).astype(np.float32)
        return {"place": np.int64(self.np_random.integers(5)), "looks": looks}


@pytest.mark.parametrize("stack", [1, 3])
def test_nested_observations_stacks_and_actions_that_begin_later(tmp_path: Path, stack: int) -> None:
    policy = freewheel.load(train(tmp_path, Bag, settings={"world.stack": stack}).folder)
    env = Bag()
    for _ in range(3):
        policy.reset()
        obs, _ = env.reset(seed=1)
        for _ in range(4):
            action = policy.act(obs)
            assert action in (2, 3, 4)
            obs, *_ = env.step(action)


class Body(nn.Module):
    def __init__(self, obs_space: spaces.Box) -> None:
        super().__init__()
        self.layer = nn.Linear(obs_space.shape[0], 8)

    def forward(self, obs: Tensor) -> Tensor:
        return self.layer(obs).relu()


def test_a_network_that_was_handed_over_must_be_handed_over_again(tmp_path: Path) -> None:
    run = train(tmp_path, body=Body)
    assert run.config.net.body == "given:Body"
    with pytest.raises(ConfigError, match=r"body=\.\.\."):
        freewheel.load(run.folder)
    with pytest.raises(ConfigError, match=r"body=\.\.\."):
        freewheel.train(resume=run.folder, steps=300)
    assert freewheel.load(run.folder, body=Body).act(np.zeros(4, np.float32)) in (0, 1)
    assert run.policy().act(np.zeros(4, np.float32)) in (0, 1)


def test_another_network_is_refused(tmp_path: Path) -> None:
    class Wider(Body):
        def __init__(self, obs_space: spaces.Box) -> None:
            super().__init__(obs_space)
            self.layer = nn.Linear(obs_space.shape[0], 9)

    with pytest.raises(CheckpointError, match="other settings"):
        freewheel.load(train(tmp_path, body=Body).folder, body=Wider)


def test_a_loss_of_ones_own_must_be_given_again(tmp_path: Path) -> None:
    def mine(forward: Any, params: Any, target: Any, batch: Any, draws: Any) -> Any:
        q = forward(params, batch["obs"], None, None)
        return q.square().mean(), freewheel.Outcome(batch["reward"].abs(), q.detach(), batch["reward"])

    run = train(tmp_path, loss=mine)
    with pytest.raises(ConfigError, match="mine"):
        freewheel.train(resume=run.folder, steps=300)
    freewheel.train(resume=run.folder, steps=300, loss=mine, is_quiet=True)


def test_an_env_object_is_used_and_left_open(tmp_path: Path) -> None:
    env = gymnasium.make("CartPole-v1")
    run = train(tmp_path, env, settings={"eval_episodes": 2})
    assert run.config.world.lanes == 1
    assert run.result["eval_return_mean"] >= 8
    env.reset()
    env.close()


def test_a_vector_env_keeps_its_lanes(tmp_path: Path) -> None:
    env = gymnasium.make_vec("CartPole-v1", 3)
    run = train(tmp_path, env)
    assert run.config.world.lanes == 3
    assert run.result["updates"] > 0
    env.close()


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, (2, 3), np.float32),
        spaces.Box(np.array([-np.inf, 0], np.float32), np.array([np.inf, 2], np.float32)),
        spaces.Box(0, 255, (4, 4, 3), np.uint8),
        spaces.Discrete(4, start=-2),
        spaces.Discrete(4, dtype=np.int32),
        spaces.MultiDiscrete([2, 2], start=[1, 0]),
        spaces.MultiDiscrete([2, 3], dtype=np.int32),
        spaces.MultiBinary(5),
        spaces.Box(-(2**63), 2**63 - 1, (2,), np.int64),
        spaces.Box(0, 2**64 - 1, (2,), np.uint64),
        spaces.Dict({1: spaces.Discrete(2), 0: spaces.Discrete(3)}),
        spaces.Dict([("b", spaces.Discrete(2)), ("a", spaces.Discrete(3))]),
        spaces.Dict(
            a=spaces.Discrete(2), b=spaces.Tuple([spaces.Box(0, 1, (1,), np.float64), spaces.MultiBinary((2, 2))])
        ),
    ],
    ids=lambda space: type(space).__name__,
)
def test_spaces_come_back_as_they_were(space: Any) -> None:
    import json

    again = read_space(json.loads(json.dumps(describe(space))))
    assert again == space
    if isinstance(space, spaces.Dict):
        assert list(again.spaces) == list(space.spaces), "a network sees them in this order"
    if isinstance(space, spaces.Box):
        assert (again.low.tobytes(), again.high.tobytes()) == (space.low.tobytes(), space.high.tobytes())


def test_import_loads_no_torch_and_has_few_names() -> None:
    import subprocess
    import sys

    code = "import sys, freewheel; assert 'torch' not in sys.modules; from freewheel.train import Run; assert callable(freewheel.train)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert len(freewheel.__all__) <= 15
    for name in freewheel.__all__:
        assert getattr(freewheel, name)
