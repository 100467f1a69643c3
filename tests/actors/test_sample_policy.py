"""Drawing actions: numpy and torch agree, chance belongs to lanes, masks hold."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from one_process import Parts

from freewheel.actors.sample_policy import BLOCK, LaneNoise
from freewheel.config import assemble
from freewheel.errors import EnvError
from freewheel.evaluate import evaluate
from freewheel.memory.lanes import as_tensors
from freewheel.nets.actor_critic import fast_forward
from freewheel.store.load import Policy

SMALL: dict[str, Any] = {"algo": "ppo", "world.lanes": 4, "rollout.rows": 8, "net.hidden": (16, 8)}


class Masked(gymnasium.Env[Any, Any]):
    """Which actions are allowed changes at each step; one that is not allowed is an error. Episodes have 5 steps."""

    def __init__(self, action_space: Any, never_from: int = 1000, lonely: bool = False) -> None:
        self.action_space = action_space
        self.counts = [action_space.n] if isinstance(action_space, spaces.Discrete) else action_space.nvec.tolist()
        size = int(sum(self.counts))
        see = spaces.Box(-5, 5, (3,), np.float32)
        others = {"see": see} if lonely else {"see": see, "more": spaces.Discrete(3)}
        self.observation_space = spaces.Dict({**others, "action_mask": spaces.MultiBinary(size)})
        self.never_from = never_from

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = 0
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        first = 0
        for choice, count in zip(np.atleast_1d(action), self.counts, strict=True):
            assert self.mask[first + choice], "a forbidden action was taken"
            first += count
        self.at += 1
        return self._see(), 1.0, self.at == 5, False, {}

    def _see(self) -> Any:
        parts = [(self.np_random.random(count) < 0.3).astype(np.int8) for count in self.counts]
        for part in parts:
            part[self.np_random.integers(len(part))] = 1
        if self.at == self.never_from:
            parts[-1][:] = 0
        self.mask = np.concatenate(parts)
        seen = {"see": self.np_random.normal(size=3).astype(np.float32), "more": np.int64(1), "action_mask": self.mask}
        return {name: seen[name] for name in self.observation_space}


def built(env: Any, **more: Any) -> Parts:
    return Parts(assemble("Masked", {**SMALL, **more}, "none"), env)


@pytest.mark.parametrize(
    ("env", "more"),
    [
        ("CartPole-v1", {}),
        ("CartPole-v1", {"net.activation": "relu", "net.shared": True, "world.stack": 3}),
        ("CartPole-v1", {"ppo.normalize_obs": True, "net.hidden": ()}),
        ("Pendulum-v1", {"ppo.log_std": -1.0}),
        (partial(Masked, spaces.Discrete(5), lonely=True), {}),
    ],
    ids=["separate", "shared-stack", "normal", "box", "mask"],
)
def test_the_core_gives_what_torch_gives_also_after_the_weights_changed(env: Any, more: dict[str, Any]) -> None:
    with built(env, **more) as parts:
        policy, weights = parts.policy, parts.weights
        fast = fast_forward(policy.net)
        assert fast is not None
        for _ in range(2):
            obs = parts.receive()
            with torch.inference_mode():
                expected = policy.net(as_tensors(obs)).numpy()
            np.testing.assert_allclose(fast(obs), expected, rtol=1e-4, atol=1e-5)
            parts.answer()
            weights.add_(torch.rand_like(weights) * 0.3)


@pytest.mark.parametrize(
    ("env", "more"),
    [
        ("CartPole-v1", {"net.norm": "layer"}),
        ("CartPole-v1", {"net.activation": "gelu"}),
        ("CartPole-v1", {"net.rescale": True}),
        ("FrozenLake-v1", {}),
        (partial(Masked, spaces.Discrete(5)), {}),
    ],
    ids=["norm", "activation", "rescale", "discrete-obs", "two-parts"],
)
def test_what_the_core_does_not_know_is_left_to_torch(env: Any, more: dict[str, Any]) -> None:
    with built(env, **more) as parts:
        assert fast_forward(parts.policy.net) is None
        parts.receive()
        parts.answer()


@pytest.mark.parametrize("lonely", [True, False])
@pytest.mark.parametrize("space", [spaces.Discrete(5), spaces.MultiDiscrete([3, 4])], ids=["discrete", "multi"])
def test_forbidden_actions_are_never_taken_nor_learned_from(space: Any, lonely: bool) -> None:
    with built(partial(Masked, space, lonely=lonely)) as parts:
        parts.learn(2)
        assert np.isfinite(parts.learner.metrics()["loss"])
        if parts.actor.waiting:
            parts.answer()
        seen = parts.receive()
        mask, best = seen["obs.action_mask"], parts.policy.greedy(seen)["action"].reshape(4, -1)
        first = 0
        for i, count in enumerate([5] if isinstance(space, spaces.Discrete) else [3, 4]):
            assert mask[np.arange(4), first + best[:, i]].all()
            first += count


def test_a_mask_without_an_allowed_action_names_lane_and_step() -> None:
    with built(partial(Masked, spaces.Discrete(5), never_from=3)) as parts:
        for _ in range(3):
            parts.receive()
            parts.answer()
        parts.receive()
        with pytest.raises(EnvError, match=r"lane 0.*without an allowed action, at step 3"):
            parts.answer()
    with (
        built(partial(Masked, spaces.MultiDiscrete([2, 3]), never_from=0)) as parts,
        pytest.raises(EnvError, match=r"places 2 to 4, at step 0"),
    ):
        parts.actor.turn()


@pytest.mark.parametrize("stack", [1, 2])
def test_nothing_is_allowed_is_refused_by_the_newest_mask(stack: int) -> None:
    with built(partial(Masked, spaces.MultiDiscrete([2, 3]), lonely=True), **{"world.stack": stack}) as parts:
        seen = parts.receive()
        assert parts.policy.refuse(seen) is None
        mask = seen["obs.action_mask"]
        mask.reshape(4, -1)[2, :-5] = 0  # an older one counts for nothing
        assert parts.policy.refuse(seen) is None
        mask.reshape(4, -1)[2, -3:] = 0
        refused = parts.policy.refuse(seen)
        assert refused is not None
        row, what = refused
        assert row == 2
        assert "an action_mask without an allowed action among its places 2 to 4" in what


def test_nothing_is_allowed_is_no_choice_for_the_greedy_policy_either() -> None:
    env = partial(Masked, spaces.MultiDiscrete([2, 3]), never_from=2)
    with built(env) as parts:
        trained = parts.runtime.trained()
        with pytest.raises(EnvError, match=r"observation 0 of 4 has an action_mask without .* places 2 to 4"):
            evaluate(trained, parts.runtime.config, env, 4)
        policy, seen = Policy(trained[0]), env().reset(seed=1)[0]
        policy.act(seen)
        seen["action_mask"][2:] = 0
        with pytest.raises(EnvError, match=r"observation 0 has an action_mask without .* places 2 to 4"):
            policy.act(seen)


def test_rows_keep_the_drawn_action_its_log_chance_and_the_value() -> None:
    with built("Pendulum-v1") as parts:
        policy, seen = parts.policy, parts.receive()
        choice = policy.choose(seen, np.arange(4), np.ones(4, np.bool_), 0)
        assert choice.columns.keys() == {"action", *policy.extra}
        with torch.inference_mode():
            out = policy.net(as_tensors(seen))
            log_prob, _ = policy.actions.log_prob(out[:, :-1], torch.from_numpy(choice.columns["action"]))
        np.testing.assert_allclose(choice.columns["log_prob"], log_prob, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(choice.columns["value"], out[:, -1], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(policy.bootstrap(seen), out[:, -1], rtol=1e-4, atol=1e-5)
        assert np.abs(choice.actions["action"]).max() <= 2.0


@pytest.mark.parametrize("is_normal", [True, False])
def test_a_lane_draws_the_same_in_whatever_company(is_normal: bool) -> None:
    together = LaneNoise(3, 3, 2, is_normal=is_normal)
    alone = LaneNoise(3, 3, 2, is_normal=is_normal)
    second = LaneNoise(3, 1, 2, is_normal=is_normal, first_lane=2)
    every = np.stack([together.draw(np.arange(3)) for _ in range(BLOCK + 5)])
    for lane in (2, 0):
        mine = np.stack([alone.draw(np.array([lane]))[0] for _ in range(BLOCK + 5)])
        np.testing.assert_array_equal(mine, every[:, lane])
    np.testing.assert_array_equal(np.stack([second.draw(np.array([0]))[0] for _ in range(BLOCK + 5)]), every[:, 2])
    assert (np.abs(every[1:] - every[:-1]) > 0).all()
    assert is_normal or ((every >= 0).all() and (every < 1).all())


def test_noise_goes_on_where_it_was() -> None:
    noise, other = (LaneNoise(5, 2, 1, is_normal=False) for _ in range(2))
    for _ in range(BLOCK + 3):
        noise.draw(np.array([1, 0]))
    noise.draw(np.array([1]))
    other.go_to(noise.drawn)
    for lanes in (np.array([0, 1]), np.array([0]), np.array([1, 0])):
        np.testing.assert_array_equal(noise.draw(lanes), other.draw(lanes))
    assert noise.drawn.tolist() == other.drawn.tolist() == [BLOCK + 6, BLOCK + 6]
