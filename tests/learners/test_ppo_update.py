"""A whole PPO update on a recorded rollout equals one that is written down plainly."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from one_process import Parts
from ppo_reference import Noisy, Tape, train

from freewheel.config import assemble
from freewheel.learners import package

SPACES: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(3, start=2),
    "multi": spaces.MultiDiscrete([2, 4, 3]),
    "box": spaces.Box(-0.5, 0.5, (2,), np.float32),
}
SMALL: dict[str, Any] = {
    "algo": "ppo",
    "world.lanes": 3,
    "rollout.rows": 16,
    "net.hidden": (16, 8),
    "ppo.epochs": 3,
    "ppo.minibatches": 4,
    "learner.lr": 3e-3,
}


def built(space: spaces.Space[Any], **more: Any) -> Parts:
    return Parts(assemble("Noisy", {**SMALL, **more}, "none"), partial(Noisy, space))


def collected(parts: Parts) -> Tape:
    """Turns until a rollout is complete and its last outcome was received."""
    tape = Tape(parts.actor.world)
    parts.actor.world = tape  # type: ignore[assignment]
    choose = parts.policy.choose

    def remembered(obs: Any, lanes: Any, first: Any, step: int) -> Any:
        choice = choose(obs, lanes, first, step)
        tape.stored(lanes, choice.columns["action"])
        return choice

    parts.policy.choose = remembered
    parts.collect()
    return tape


def assert_same(net: torch.nn.Module, reference: torch.nn.Module, tolerance: float) -> None:
    others = dict(reference.named_parameters())
    for name, tensor in net.named_parameters():
        torch.testing.assert_close(tensor.detach(), others[name].detach(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "more",
    [{}, {"ppo.value_clip": 0.1, "ppo.entropy_weight": 0.0, "net.shared": True, "world.reward_scale": 0.5}],
    ids=["", "more"],
)
@pytest.mark.parametrize("kind", SPACES)
def test_it_equals_the_plain_one(kind: str, more: dict[str, Any]) -> None:
    with built(SPACES[kind], **more) as parts:
        tape = collected(parts)
        assert sum(step.truncated for steps in tape.lanes.values() for step in steps) > 0
        assert sum(step.terminated for steps in tape.lanes.values() for step in steps) > 0
        learner, net = parts.learner, parts.learner.update.passes.net
        before = parts.weights.clone()
        generator = torch.Generator()
        generator.set_state(parts.memory.generator.get_state())
        reference, batch = train(net, SPACES[kind], tape, learner.config, generator)
        prepared: dict[str, Any] = {}
        prepare = learner.algo.prepare
        learner.algo.prepare = lambda *given: prepared.update(made := prepare(*given)) or made  # type: ignore[method-assign,func-returns-value]
        assert learner.turn()
        for name in ("obs", "action", "log_prob", "advantage"):
            torch.testing.assert_close(prepared[name], batch[name], rtol=1e-4, atol=1e-5)
        assert learner.updates == 12
        assert (parts.weights - before).abs().max() > 5e-3
        assert_same(net, reference, 2e-4)


def test_the_env_gets_actions_within_its_bounds_and_the_row_keeps_the_drawn_one() -> None:
    sent: list[Any] = []
    with built(SPACES["box"]) as parts:
        send = parts.actor.world.send

        def look(group: int, lanes: Any, actions: Any) -> None:
            sent.append(actions["action"].copy())
            send(group, lanes, actions)

        parts.actor.world.send = look  # type: ignore[method-assign]
        tape = collected(parts)
        stored = np.stack([step.action for steps in tape.lanes.values() for step in steps])
        assert np.abs(np.concatenate(sent)).max() <= 0.5
        assert np.abs(stored).max() > 0.5


def test_the_epochs_end_when_the_policy_has_moved_far_enough() -> None:
    with built(SPACES["discrete"], **{"ppo.target_kl": 1e-6, "learner.lr": 1e-2}) as parts:
        parts.collect()
        assert parts.learner.turn()
        assert parts.memory.num_epochs == 1
        metrics = parts.learner.metrics()
        assert metrics["approx_kl"] > 1e-6
        assert 0 <= metrics["clip_fraction"] <= 1


def test_rate_and_clip_fall_to_the_end() -> None:
    more = {"ppo.clip_schedule": "linear", "learner.lr_schedule": "linear", "steps": 96}
    with built(SPACES["discrete"], **more) as parts:
        parts.collect()
        parts.group.counts.add_steps(24)  # were done before this rollout
        assert parts.learner.turn()
        config = parts.learner.config
        assert parts.learner.hyper["clip"] == pytest.approx(config.ppo.clip * 0.75)  # type: ignore[attr-defined]
        assert parts.learner.lr == pytest.approx(config.learner.lr * 0.75)


def test_the_graph_that_is_compiled_agrees_with_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is traced: what the compiler makes of a graph is tested with the packages."""
    monkeypatch.setattr(package, "compiled", lambda function, args: (package.trace(function, args), Path("none")))
    more = {"ppo.minibatches": 2, "world.lanes": 2, "net.hidden": (8,), "net.shared": True, "ppo.normalize_obs": True}
    results = []
    for compile_ in ("off", "on"):
        with built(SPACES["multi"], **more, **{"learner.compile": compile_}) as parts:
            assert parts.learner.update.is_compiled == (compile_ == "on")
            assert parts.learner.update.unrolled == (2 if compile_ == "on" else 1)
            parts.learn(2)
            assert parts.learner.update.is_compiled == (compile_ == "on")  # it did not go back to eager
            results.append((parts.weights.clone(), parts.learner.metrics()))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-3, atol=1e-4)
    assert results[0][1].keys() == results[1][1].keys()
