"""A replay's lessons, and the example that updates are compiled by: in everything that code depends on like the later batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from freewheel.algos.make import make_algo
from freewheel.config import assemble
from freewheel.contracts import Spaces
from freewheel.learners.update import Update
from freewheel.memory.lanes import Lanes
from freewheel.memory.nested import leaves
from freewheel.memory.replay import Replay, ReplayMemory
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
def test_a_memory_gives_an_example_of_what_the_update_gets(algo: Any, together: int) -> None:
    given = {"algo": algo, "q.noisy": True, "world.stack": 2, "world.lanes": 1, "net.hidden": (8,)}
    given |= {"replay.rows": 40, "replay.warmup_rows": 32, "learner.batch_size": 8, "learner.updates_per_call": 4}
    config = assemble("x", given | {"learner.compile": "on" if together > 1 else "off"}, "none")
    made = make_algo(config, Spaces(VECTOR, spaces.Discrete(3, start=1), 1))
    memory = made.memory(filled_lanes(VECTOR), lambda stream: 0)
    update = Update(made, config.learner, unrolled=together)
    assert memory.unrolled == together
    before = memory.generator.get_state()
    batch, draws = memory.example()
    torch.testing.assert_close(memory.generator.get_state(), before)
    update(batch, draws, {"lr": 1e-3})  # its actions are actions

    calls = [one for drawn in memory.lesson(0.0, 0).batches() for one in zip(drawn.given, drawn.draws, strict=True)]
    assert len(calls) == 4 // together
    for given_batch, given_draws in calls:
        assert list(given_batch) == list(batch)
        assert list(given_draws) == list(draws)
        assert described(given_batch) == described(batch)
        assert described(given_draws) == described(draws)
    memory.close()


@pytest.mark.parametrize("hurried_after", [1, 2, None])
def test_a_lesson_of_a_stopped_run_ends_after_its_draw_and_counts_what_it_made(hurried_after: int | None) -> None:
    memory = ReplayMemory(
        Replay(filled_lanes(VECTOR), 8),
        lambda rows, generator: {},
        updates_per_call=3,
        unrolled=1,
        seed=0,
        beta=(0.4, 1.0),
    )
    drawn: list[Any] = []
    memory.is_hurried = lambda: len(drawn) == hurried_after
    lesson = memory.lesson(0.0, 0)
    for one in lesson.batches():
        drawn.append(one)
    assert len(drawn) == lesson.num_versions == (hurried_after or 3)
    assert memory.num_samples == 8 * len(drawn)
    memory.close()
