"""Memory that runs out: the batch goes through in more parts, with the gradient of the whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_update import ROWS, make, rows

from freewheel.config import LearnerConfig
from freewheel.errors import ConfigError
from freewheel.learners import out_of_memory as memory
from freewheel.learners.update import Update
from freewheel.memory.nested import num_rows

CPU = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."


def with_room_for(update: Update, most: int, error: Exception) -> list[int]:
    """Lets passes over more rows fail; gives the list of those that were asked for."""
    asked: list[int] = []
    whole = update.by_modules

    def gradient(batch: Any, *rest: Any) -> Any:
        asked.append(num_rows(batch))
        if num_rows(batch) > most:
            raise error
        return whole(batch, *rest)

    update.by_modules = gradient  # type: ignore[method-assign]
    return asked


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError(CPU), MemoryError("bad allocation")]
)
def test_an_update_is_worked_off_in_more_parts(error: Exception) -> None:
    plain, short = make(), make()
    asked = with_room_for(short, ROWS // 4, error)
    for i in range(3):
        one, other = plain(rows(i), {}, {"lr": 1e-3}), short(rows(i), {}, {"lr": 1e-3})
        torch.testing.assert_close(one.loss, other.loss)
        torch.testing.assert_close(one.outcome.priorities, other.outcome.priorities)
    torch.testing.assert_close(plain.state.weights, short.state.weights)
    assert asked == [16, 8, *[4] * 12]  # tried twice, and never again
    assert short.num_parts == 4
    assert [note for note in short.notes if "4 parts" in note and "--learner.accumulate 4" in note]


def test_parts_that_were_asked_for_are_doubled() -> None:
    update = make(LearnerConfig(accumulate=2))
    with_room_for(update, ROWS // 4, MemoryError())
    update(rows(0), {}, {"lr": 1e-3})
    assert update.num_parts == 4


def test_one_row_that_does_not_fit_ends_it_with_the_cure() -> None:
    update = make()
    asked = with_room_for(update, 0, RuntimeError(CPU))
    with pytest.raises(ConfigError, match=r"not enough memory even for one row of a batch of 16 .* fewer replay.rows"):
        update(rows(0), {}, {"lr": 1e-3})
    assert asked == [16, 8, 4, 2, 1]
    assert int(update.state.updates) == 0


def test_other_errors_are_nobody_elses() -> None:
    update = make()
    with_room_for(update, 0, RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        update(rows(0), {}, {"lr": 1e-3})


def test_a_compiled_update_that_fails_is_made_eagerly() -> None:
    plain, update = make(), make()

    def fails(*args: Any) -> Any:
        raise RuntimeError("run_func_ API call failed")

    update._use([fails, lambda *args: [torch.zeros(ROWS, 2)]])
    update.has_lookahead = False
    one, other = plain(rows(0), {}, {"lr": 1e-3}), update(rows(0), {}, {"lr": 1e-3})
    torch.testing.assert_close(one.loss, other.loss)
    assert not update.is_compiled
    assert update.notes == [
        "warning: the compiled update failed (run_func_ API call failed): updates are eager from now on."
    ]


def test_the_real_allocator_is_understood() -> None:
    with pytest.raises(RuntimeError) as shortage:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert memory.is_shortage(shortage.value)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_a_step_in_pieces_is_that_of_the_whole(optimizer: Any) -> None:
    config = LearnerConfig(optimizer=optimizer, clip_norm=0.1)
    whole, pieces = make(config), make(config)
    whole._piece, pieces._piece = 0, 64  # of 434 numbers: the last piece is smaller
    for i in range(3):
        torch.testing.assert_close(whole(rows(i), {}, {"lr": 1e-2}).norm, pieces(rows(i), {}, {"lr": 1e-2}).norm)
    for name, tensor in pieces.tensors().items():
        torch.testing.assert_close(tensor, whole.tensors()[name])
    assert pieces.flat.num_params % 64
