"""A whole PPO update on a recorded rollout equals one that is written down plainly."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from ppo_reference import Noisy, Tape, train

from freewheel.config import Config, assemble
from freewheel.learners import package
from freewheel.run.on_policy_parts import PolicyParts, build_on_policy

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


def built(space: spaces.Space[Any], **more: Any) -> tuple[PolicyParts, Config]:
    config = assemble("Noisy", {**SMALL, **more}, "none")
    return build_on_policy(config, partial(Noisy, space)), config


def collected(parts: PolicyParts) -> Tape:
    """Turns until a rollout is complete and its last outcome was received."""
    tape = Tape(parts.world)
    parts.actor.world = tape
    act = parts.actor.sampler.act

    def remembered(obs: Any, lanes: Any) -> Any:
        acted = act(obs, lanes)
        tape.stored(lanes, acted.stored)
        return acted

    parts.actor.sampler.act = remembered  # type: ignore[method-assign]
    collect(parts)
    return tape


def collect(parts: PolicyParts) -> None:
    while True:
        parts.rollout.available += parts.actor.receive(0)[0]
        if parts.learner.is_due():
            return
        parts.actor.answer(parts.learner.version)


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
    parts, config = built(SPACES[kind], **more)
    try:
        tape = collected(parts)
        assert sum(step.truncated for steps in tape.lanes.values() for step in steps) > 0
        assert sum(step.terminated for steps in tape.lanes.values() for step in steps) > 0
        learner = parts.learner
        before = torch.nn.utils.parameters_to_vector(learner.step.net.parameters()).clone()
        generator = torch.Generator()
        generator.set_state(learner.generator.get_state())
        reference, batch = train(learner.step.net, SPACES[kind], tape, config, generator)
        prepared: dict[str, Any] = {}
        learner.prepared = lambda rows, make=learner.prepared: prepared.update(made := make(rows)) or made  # type: ignore[method-assign,func-returns-value,misc]
        assert learner.call(48, parts.actor.tail())
        for name in ("obs", "action", "log_prob", "advantage"):
            torch.testing.assert_close(prepared[name], batch[name], rtol=1e-4, atol=1e-5)
        assert learner.updates == 12
        after = torch.nn.utils.parameters_to_vector(learner.step.net.parameters())
        assert (after - before).abs().max() > 5e-3
        assert_same(learner.step.net, reference, 2e-4)
    finally:
        parts.close()


def test_the_env_gets_actions_within_its_bounds_and_the_row_keeps_the_drawn_one() -> None:
    parts, _ = built(SPACES["box"])
    sent: list[Any] = []
    send = parts.world.send
    parts.world.send = lambda lanes, actions: (sent.append(actions.copy()), send(lanes, actions))[1]  # type: ignore[method-assign,func-returns-value]
    try:
        tape = collected(parts)
        stored = np.stack([step.action for steps in tape.lanes.values() for step in steps])
        assert np.abs(np.concatenate(sent)).max() <= 0.5
        assert np.abs(stored).max() > 0.5
    finally:
        parts.close()


def test_the_epochs_end_when_the_policy_has_moved_far_enough() -> None:
    parts, _ = built(SPACES["discrete"], **{"ppo.target_kl": 1e-6, "learner.lr": 1e-2})
    try:
        collected(parts)
        assert parts.learner.call(48, parts.actor.tail())
        assert parts.learner.epochs_done == 1
        figures = parts.learner.figures()
        assert figures["approx_kl"] > 1e-6
        assert 0 <= figures["clip_fraction"] <= 1
    finally:
        parts.close()


def test_rate_and_clip_fall_to_the_end() -> None:
    parts, config = built(
        SPACES["discrete"], **{"ppo.clip_schedule": "linear", "learner.lr_schedule": "linear", "steps": 96}
    )
    try:
        collected(parts)
        assert parts.learner.call(72, parts.actor.tail())  # 24 steps were done before this rollout
        assert parts.learner.clip == pytest.approx(config.ppo.clip * 0.75)
        assert parts.learner.lr == pytest.approx(config.learner.lr * 0.75)
    finally:
        parts.close()


def test_the_graph_that_is_compiled_agrees_with_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is traced: what the compiler makes of a graph is tested with the packages."""
    monkeypatch.setattr(package, "compiled", lambda function, args: (package.trace(function, args), Path("none")))
    more = {"ppo.minibatches": 2, "world.lanes": 2, "net.hidden": (8,), "net.shared": True, "ppo.normalize_obs": True}
    results = []
    for compile_ in ("off", "on"):
        parts, _ = built(SPACES["multi"], **more, **{"learner.compile": compile_})
        try:
            assert parts.learner.step.is_compiled == (compile_ == "on")
            for round_ in range(2):
                collect(parts)
                assert parts.learner.call(32 * (round_ + 1), parts.actor.tail())
                parts.actor.answer(parts.learner.version)
            results.append((parts.learner.step.state.weights.clone(), parts.learner.figures()))
        finally:
            parts.close()
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-3, atol=1e-4)
    assert results[0][1].keys() == results[1][1].keys()
