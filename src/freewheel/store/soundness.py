"""Checks what a checkpoint says before anything is made from it: its checksums may be right, and its content wrong all the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from freewheel.errors import CheckpointError, ConfigError, FreewheelError, ReplayError, Untrusted
from freewheel.store.checkpoint import Checkpoint
from freewheel.store.folder import is_by_policy

# What nonsense in a checkpoint leads to where it is used.
NO_FIT: tuple[type[Exception], ...] = (
    LookupError,
    TypeError,
    ValueError,
    ArithmeticError,
    AttributeError,
    AssertionError,
)
NO_FIT += (RuntimeError, StopIteration, MemoryError, ReplayError, ConfigError)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("steps", "updates", "own_steps", "all_updates", "version"), ("a count", _is_count)),
    **dict.fromkeys(("config", "obs_space", "action_space", "dials", "episodes"), ("an object", _is_object)),
    "seconds": ("a number of seconds", _is_time),
    "loss": ("a name", lambda value: value is None or isinstance(value, str)),
    "policies": ("the states of policies by name", is_by_policy),
}
NEEDED = ("steps", "updates", "seconds")  # to go on with a run
# Tensors of numbers that a damaged or forged checkpoint must not bring into an update, and of counts.
LEARNED = ("net.", "target.", "optimizer.")
COUNTS = ("explore.drawn", "random.taus", "random.drawn", "world.episode", "world.num_taken", "world.seed")
NOT_NEGATIVE = ("optimizer.square", "optimizer.decay", "optimizer.scale")


def checked(checkpoint: Checkpoint, needed: tuple[str, ...] = ()) -> Checkpoint:
    """The checkpoint, if its state has what is `needed`, and everything in it is of its kind."""
    state, path = checkpoint.state, checkpoint.path
    for name in needed:
        if name not in state:
            raise CheckpointError(f"checkpoint {path}: its state has no {name!r}: damaged, or of another program.")
    _check_kinds(state, path)
    for part in state.get("policies", {}).values():
        _check_kinds(part, path)
    return checkpoint


def _check_kinds(state: Mapping[str, Any], path: Path) -> None:
    for name, value in state.items():
        what, is_right = KINDS.get(name, ("", bool))
        if what and not is_right(value):
            raise CheckpointError(
                f"checkpoint {path}: {name}={_short(value)} of its state is not {what}: damaged or forged."
            )


def check_numbers(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Refuses weights that are not finite, and counts below 0. A run saves none: an update that is not finite changes nothing."""
    for full, tensor in tensors.items():
        name = full.rpartition("/")[2]
        is_learned = name.startswith(LEARNED)
        if is_learned and tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            count = int((~torch.isfinite(tensor)).sum())
            raise CheckpointError(
                f"checkpoint {path}: {count:,} of the {tensor.numel():,} numbers in {full} are NaN or infinite. It was damaged "
                "or changed: a run saves no such numbers. Remove it, and the checkpoint before it is used."
            )
        is_count = name in COUNTS or name in NOT_NEGATIVE or (is_learned and not tensor.is_floating_point())
        if is_count and tensor.numel() and bool((tensor < 0).any()):
            raise CheckpointError(
                f"checkpoint {path}: {full} is {tensor.min().item()} and must not be below 0. Remove it."
            )


@contextmanager
def reading(checkpoint: Checkpoint, what: str) -> Iterator[None]:
    """Whatever its content leads to in the block is an error of the checkpoint, which `what` says in a few words."""
    try:
        yield
    except Untrusted:
        raise
    except NO_FIT as error:
        raise CheckpointError(f"checkpoint {checkpoint.path} {what}: {_short(error)}.") from error


def _short(value: Any) -> str:
    """It may be long, and hold escape codes."""
    if not isinstance(value, Exception):
        text = repr(value)[:80]
    else:
        text = str(value) if isinstance(value, FreewheelError) else f"{type(value).__name__}: {value}"
    return text[:400].rstrip(".").encode("unicode_escape").decode()
