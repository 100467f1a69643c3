"""The example that a helper compiles by: in everything that code depends on, like the batches that come later."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from freewheel.algos.make import make_algo
from freewheel.config import Config, LearnerConfig, QConfig, ReplayConfig, WorldConfig
from freewheel.learners.loop import Learner
from freewheel.learners.nested import leaves
from freewheel.learners.step import Step
from freewheel.memory.lanes import Lanes
from freewheel.memory.replay import Replay
from freewheel.nets.build import build_net
from freewheel.spec import RowSpec

VECTOR = spaces.Box(-1, 1, (4,), np.float32)
IMAGE = spaces.Box(0, 255, (6, 5), np.uint8)
SPACES = {
    "vector": VECTOR,
    "one": spaces.Box(-1, 1, (1,), np.float64),
    "image": IMAGE,
    "nested": spaces.Dict({"seen": IMAGE, "flags": spaces.MultiBinary(3), "place": VECTOR}),
}


def described(tensors: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(t.shape, t.stride(), t.dtype, t.device) for t in leaves(tensors)]


def filled_lanes(obs: spaces.Space[Any], rows: int = 40) -> Lanes:
    spec = RowSpec.of(obs, spaces.Discrete(3, start=1))
    lanes = Lanes(spec, 1, rows)
    fields = {f.name: np.zeros((rows, *f.shape), f.dtype) for f in spec.fields}
    fields["action"] += 1
    flags = np.zeros(rows, bool)
    lanes.writer().append(np.zeros(rows, np.int64), fields, np.zeros(rows, np.float32), flags, flags)
    return lanes


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("stack", [1, 4])
@pytest.mark.parametrize("space", SPACES)
def test_an_example_has_the_layout_of_every_batch(space: str, stack: int, n_step: int) -> None:
    replay = Replay(filled_lanes(SPACES[space]), 8, stack=stack, n_step=n_step)
    example, batch = replay.example(), replay.sample()
    assert list(example) == list(batch._layout.groups)
    real = {name: batch[name] for name in example}
    assert [list(v) if isinstance(v, dict) else None for v in example.values()] == [
        list(v) if isinstance(v, dict) else None for v in real.values()
    ]
    assert described(example) == described(real)
    replay.close()


@pytest.mark.parametrize(("algo", "together"), [("dqn", 1), ("dqn", 4), ("iqn", 4)])
def test_a_learner_gives_an_example_of_what_its_step_gets(
    algo: Any, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = QConfig(noisy=True)
    net = build_net(VECTOR, spaces.Discrete(3, start=1), Config("x").net, q, algo, 2)
    config = Config(
        "x",
        algo=algo,
        q=q,
        world=WorldConfig(stack=2),
        replay=ReplayConfig(rows=40, warmup_rows=32),
        learner=LearnerConfig(batch_size=8, updates_per_call=4),
    )
    step = Step(net, make_algo(algo, q, net), config.learner, unrolled=together)
    learner = Learner(step, Replay(filled_lanes(VECTOR), 8 * together, stack=2), config, seed=0)
    before = learner.generator.get_state()
    batch, draws = learner.example()
    torch.testing.assert_close(learner.generator.get_state(), before)
    step.update(batch, draws, 1e-3)  # its actions are actions

    seen = []
    update = step.update
    monkeypatch.setattr(step, "update", lambda *given: seen.append(given) or update(*given))
    learner.call(40)
    assert len(seen) == 4 // together
    for given_batch, given_draws, *_ in seen:
        assert list(given_batch) == list(batch)
        assert list(given_draws) == list(draws)
        assert described(given_batch) == described(batch)
        assert described(given_draws) == described(draws)
    learner.replay.close()
