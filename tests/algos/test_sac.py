"""SAC against a reference written by hand, its squashed Gaussian against torch's, and runs with all that a replay gives."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.distributions import Normal, TanhTransform, TransformedDistribution

import freewheel
from freewheel.algos.make import make_algo
from freewheel.config import assemble
from freewheel.contracts import Spaces
from freewheel.errors import ConfigError
from freewheel.learners.update import Update
from freewheel.nets.soft_actor_critic import SquashedGaussian

OBS, ACT, ROWS = 3, 2, 32
SPACE = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))


def make(**given: Any) -> Any:
    config = assemble("env", {"algo": "sac", "net.hidden": (16, 16), "learner.batch_size": ROWS, **given}, "none")
    return make_algo(config, Spaces(spaces.Box(-1, 1, (OBS,), np.float32), SPACE, 1))


def rows(seed: int = 0) -> dict[str, torch.Tensor]:
    chance = torch.Generator().manual_seed(seed)
    action = torch.tensor([0.0, 5.0]) + torch.tensor([2.0, 5.0]) * (2 * torch.rand(ROWS, ACT, generator=chance) - 1)
    return {
        "obs": torch.randn(ROWS, OBS, generator=chance),
        "action": action,
        "next_obs": torch.randn(ROWS, OBS, generator=chance),
        "reward": torch.randn(ROWS, generator=chance),
        "discount": torch.where(torch.rand(ROWS, generator=chance) < 0.2, 0.0, 0.9),
        "weight": 0.5 + torch.rand(ROWS, generator=chance),
    }


def drawn(net: Any, obs: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out = net.actor(obs)
    made = TransformedDistribution(Normal(out[:, :ACT], out[:, ACT:].exp()), TanhTransform(cache_size=1))
    action = torch.tanh(out[:, :ACT] + out[:, ACT:].exp() * noise)
    return action, made.log_prob(action).sum(1)


def reference(net: Any, batches: list[Any], draws: list[Any], lr: float, tau: float) -> Any:
    """Critics, actor, temperature, then the target, with torch's own optimisers."""
    target = copy.deepcopy(net)
    steps = [torch.optim.Adam(part.parameters(), lr) for part in (net.critics, net.actor, net.temperature)]
    for batch, draw in zip(batches, draws, strict=True):
        with torch.no_grad():
            action, log_prob = drawn(net, batch["next_obs"], draw["next"])
            lower = torch.minimum(*(critic(batch["next_obs"], action) for critic in target.critics))
            soft = lower - net.temperature["log_alpha"].exp() * log_prob
            goal = batch["reward"] + batch["discount"] * soft
        unit = (batch["action"] - torch.tensor([0.0, 5.0])) / torch.tensor([2.0, 5.0])
        loss = sum(0.5 * (batch["weight"] * (critic(batch["obs"], unit) - goal) ** 2).mean() for critic in net.critics)
        _step(steps[0], loss)
        action, log_prob = drawn(net, batch["obs"], draw["now"])
        lower = torch.minimum(*(critic(batch["obs"], action) for critic in net.critics))
        _step(steps[1], (net.temperature["log_alpha"].exp().detach() * log_prob - lower).mean())
        _, log_prob = drawn(net, batch["obs"], draw["now"])
        _step(steps[2], -(net.temperature["log_alpha"] * (log_prob.detach() - ACT)).mean())
        with torch.no_grad():
            for own, followed in zip(target.critics.parameters(), net.critics.parameters(), strict=True):
                own.lerp_(followed, tau)
    return net, target


def _step(optimizer: torch.optim.Optimizer, loss: Any) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def test_updates_equal_the_reference() -> None:
    algo = make()
    theirs = copy.deepcopy(algo.net)
    update = Update(algo, algo.config.learner)
    batches, chance = [rows(i) for i in range(5)], torch.Generator().manual_seed(7)
    draws = [algo.draws(ROWS, chance) for _ in batches]
    for batch, draw in zip(batches, draws, strict=True):
        update(batch, draw, {"lr": 1e-3})
    net, target = reference(theirs, batches, draws, 1e-3, algo.config.learner.tau)
    for name, tensor in net.named_parameters():
        assert torch.allclose(update.tensors()[f"net.{name}"], tensor, atol=2e-5), name
    for name, tensor in target.critics.named_parameters():
        assert torch.allclose(update.tensors()[f"target.critics.{name}"], tensor, atol=2e-5), name


def test_a_target_follows_the_critics_alone() -> None:
    algo = make()
    update = Update(algo, algo.config.learner)
    before = {name: tensor.clone() for name, tensor in update.tensors().items() if name.startswith("target.")}
    update(rows(), algo.draws(ROWS, torch.Generator()), {"lr": 1e-2})
    moved = {name for name, tensor in before.items() if not torch.equal(update.tensors()[name], tensor)}
    assert moved == {name for name in before if name.startswith("target.critics.")}


def test_without_learning_the_temperature_stays() -> None:
    algo = make(**{"sac.learn_alpha": False, "sac.alpha": 0.2})
    update = Update(algo, algo.config.learner)
    update(rows(), algo.draws(ROWS, torch.Generator()), {"lr": 1e-2})
    assert algo.metrics()["alpha"] == pytest.approx(0.2)


def test_accumulated_parts_give_the_same_update() -> None:
    made = []
    for parts in (1, 4):
        algo = make(**{"learner.accumulate": parts})
        update = Update(algo, algo.config.learner)
        update(rows(), algo.draws(ROWS, torch.Generator().manual_seed(1)), {"lr": 1e-3})
        made.append(update.state.weights.clone())
    assert torch.allclose(*made, atol=1e-6)


@pytest.mark.parametrize("far", [0.0, 3.0, 12.0])
def test_log_chances_are_those_of_a_squashed_normal(far: float) -> None:
    actions = SquashedGaussian(SPACE)
    noise = torch.randn(64, ACT, dtype=torch.float64)
    out = torch.cat(
        [torch.full((64, ACT), far, dtype=torch.float64), torch.full((64, ACT), -0.7, dtype=torch.float64)], 1
    )
    unit, log_prob = actions.draw(out, noise)
    drawn_at = out[:, :ACT] + out[:, ACT:].exp() * noise
    exact = Normal(out[:, :ACT], out[:, ACT:].exp()).log_prob(drawn_at) - 2 * (
        np.log(2) - drawn_at - torch.nn.functional.softplus(-2 * drawn_at)
    )
    assert torch.allclose(log_prob, exact.sum(1))
    assert bool((unit.abs() <= 1).all())


def test_actions_lie_between_the_bounds_and_come_back() -> None:
    actions = SquashedGaussian(SPACE)
    out = np.random.default_rng(0).normal(scale=4, size=(256, 2 * ACT)).astype(np.float32)
    stored, _ = actions.sample(out, np.random.default_rng(1).normal(size=(256, ACT)).astype(np.float32))
    assert stored.dtype == SPACE.dtype
    assert all(SPACE.contains(action) for action in stored)
    unit = actions.in_unit(torch.from_numpy(stored)).numpy()
    assert np.allclose(SPACE.low + (unit + 1) / 2 * (SPACE.high - SPACE.low), stored, atol=1e-4)


@pytest.mark.parametrize(
    "space", [spaces.Discrete(3), spaces.Box(-np.inf, np.inf, (2,)), spaces.Box(0, 5, (2,), np.int64)]
)
def test_other_actions_are_refused(space: Any) -> None:
    with pytest.raises(ConfigError, match="sac acts in Box spaces of floats"):
        SquashedGaussian(space)


class Stop(freewheel.Callback):
    def on_step(self, moment: freewheel.Moment) -> None:
        if moment.step >= 600:
            moment.stop()


def train(folder: Path, steps: int, callbacks: Any = (), **given: Any) -> freewheel.Run:
    small = {"net.hidden": (32, 32), "learner.batch_size": 32, "learner.ratio": 8.0, "replay.warmup_rows": 200}
    more = {"replay.prioritized": True, "sac.n_step": 3, "replay.rows": 5_000, "checkpoint.replay": True}
    settings = {"log.folder": str(folder), "log.tensorboard": False, "eval_episodes": 0, **small, **more, **given}
    return freewheel.train(
        "Pendulum-v1", algo="sac", steps=steps, settings=settings, preset="none", callbacks=callbacks, is_quiet=True
    )


@pytest.mark.parametrize("runtime", ["sequential", "local"])
def test_it_runs_with_priorities_and_n_steps(tmp_path: Path, runtime: str) -> None:
    run = train(tmp_path, 1_500, runtime=runtime)
    assert run.result["updates"] > 250
    assert -2 <= run.policy().act(np.zeros(3, np.float32))[0] <= 2


def test_it_resumes_bit_for_bit(tmp_path: Path) -> None:
    whole = train(tmp_path, 1_200, runtime="sequential")
    first = train(tmp_path, 1_200, runtime="sequential", callbacks=[Stop()])
    given = {"log.tensorboard": False, "eval_episodes": 0}
    assert first.result["steps"] < 700
    rest = freewheel.train(resume=first.folder, settings=given, is_quiet=True)
    weights = [run.policy().trained.net.state_dict() for run in (whole, rest)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_the_statistics_of_a_target_follow_those_of_the_critics() -> None:
    """They are buffers of the network, and stood still where there are several groups of parameters."""
    algo = make(**{"net.norm": "batch", "learner.tau": 1.0})
    update = Update(algo, algo.config.learner)
    for i in range(3):
        update(rows(i), algo.draws(ROWS, torch.Generator().manual_seed(i)), {"lr": 1e-3})
    found = update.tensors()
    names = [name for name in found if name.startswith("target.critics.") and "running" in name]
    assert names
    for name in names:
        assert torch.equal(found[name], found[name.replace("target.", "net.", 1)]), name
        assert not torch.equal(found[name], torch.full_like(found[name], float("var" in name)))


def test_weight_decay_leaves_the_temperature_alone() -> None:
    """Adam's first step is the learning rate, whatever the gradient: with and without decay it leads to the same place."""

    def alpha_after_one(**more: Any) -> Any:
        algo = make(**{"sac.alpha": 0.1, **more})
        Update(algo, algo.config.learner)(rows(), algo.draws(ROWS, torch.Generator().manual_seed(0)), {"lr": 1e-2})
        return algo.metrics()["alpha"]

    decayed = alpha_after_one(**{"learner.optimizer": "adamw", "learner.weight_decay": 0.5})
    assert decayed == pytest.approx(alpha_after_one(), rel=1e-5)


@pytest.mark.parametrize(("low", "high"), [(1e6, 1e6 + 1), (1e9, 1e9 + 1), (-1e-10, 1e-10), (-3.0, -3.0)])
def test_narrow_boxes_keep_their_digits(low: float, high: float) -> None:
    actions = SquashedGaussian(spaces.Box(low, high, (1,), np.float64))
    chance = np.random.default_rng(0)
    out = np.concatenate([chance.normal(size=(500, 1)), np.zeros((500, 1))], 1).astype(np.float32)
    noise = chance.normal(size=(500, 1)).astype(np.float32)
    stored, _ = actions.sample(out, noise)
    assert ((stored >= low) & (stored <= high)).all()
    unit = actions.in_unit(torch.from_numpy(stored)).numpy()
    expected = np.tanh(out[:, :1] + noise) if high > low else np.zeros_like(unit)
    assert np.abs(unit - expected).max() < 1e-5


def test_bounds_beyond_float32_are_refused() -> None:
    with pytest.raises(ConfigError, match="bounds are finite"):
        SquashedGaussian(spaces.Box(-1e39, 1e39, (1,), np.float64))


@pytest.mark.parametrize("setting", ["sac.actor_lr", "sac.target_entropy"])
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_settings_that_are_not_finite_are_refused(setting: str, value: float) -> None:
    with pytest.raises(ConfigError, match="must be"):
        freewheel.train("Pendulum-v1", algo="sac", settings={setting: value}, is_quiet=True)


def test_the_target_process_is_refused() -> None:
    given = {"runtime": "local", "local.target_process": False}
    with pytest.raises(ConfigError, match=r"local\.target_process was given, but has no effect"):
        freewheel.train("Pendulum-v1", algo="sac", settings=given, is_quiet=True)


class OneNumber(gymnasium.Env[Any, Any]):
    """Its action has no dimension."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.full(2, action, np.float32), float(action), False, True, {}


def test_an_action_may_be_a_single_number(tmp_path: Path) -> None:
    settings = {"runtime": "sequential", "replay.warmup_rows": 32, "learner.batch_size": 16, "net.hidden": (8,)}
    settings |= {"learner.ratio": 16.0, "log.folder": str(tmp_path), "eval_episodes": 0, "log.tensorboard": False}
    run = freewheel.train(OneNumber, algo="sac", steps=64, preset="none", settings=settings, is_quiet=True)
    assert run.result["updates"] > 0


def test_a_dimension_with_equal_bounds_has_one_action_and_no_entropy() -> None:
    """The critics see it as they are trained: always 0."""
    space = spaces.Box(np.array([-1.0, 0.5], np.float32), np.array([1.0, 0.5], np.float32))
    dead, live = SquashedGaussian(space), SquashedGaussian(spaces.Box(-1, 1, (1,), np.float32))
    out, noise = torch.randn(8, 4), torch.randn(8, 2)
    action, log_prob = dead.draw(out, noise)
    stored = torch.from_numpy(dead.sample(out.numpy(), noise.numpy())[0])
    torch.testing.assert_close(dead.in_unit(stored), action)
    assert (action[:, 1] == 0).all()
    alone = live.draw(out[:, [0, 2]], noise[:, :1])
    torch.testing.assert_close((action[:, :1], log_prob), alone)
    config = assemble("env", {"algo": "sac", "net.hidden": (8,)}, "none")
    algo = make_algo(config, Spaces(spaces.Box(-1, 1, (OBS,), np.float32), space, 1))
    assert algo.target_entropy == -1.0
