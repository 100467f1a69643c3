"""Which device each role computes on: the learner's share comes first, actors go where the load is least by then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from freewheel.errors import ConfigError

# Passes of the network for a row that is trained on: the target's, its own, and the gradient's, which costs two.
# For a row that it collects an actor makes one.
PASSES = 4.0


@dataclass(frozen=True)
class Placing:
    """A device for each training worker, the learner's own first, and for each actor."""

    workers: tuple[str, ...]
    actors: tuple[str, ...]


def place(
    learner: str, workers: int, act: str, lanes_per_actor: Sequence[int], ratio: float, cuda: Sequence[str]
) -> Placing:
    """`learner` and `act` are devices, where "cuda" names none of `cuda` in particular; `ratio` is rows drawn per row collected."""
    team = place_workers(learner, workers, cuda)
    if act != "cuda":
        return Placing(team, (act,) * len(lanes_per_actor))
    taken = {device: PASSES * ratio * team.count(device) / len(team) for device in cuda}
    lanes = sum(lanes_per_actor)
    return Placing(team, balanced([count / lanes for count in lanes_per_actor], taken))


def place_workers(learner: str, workers: int, cuda: Sequence[str]) -> tuple[str, ...]:
    """A CUDA device each, from the learner's own on; on the CPU they share it."""
    kind = learner.partition(":")[0]
    if kind == "cuda":
        own = cuda[0] if learner == "cuda" else learner
        if workers > len(cuda):
            raise ConfigError(
                f"learner.workers={workers} on learner.device={learner} need a CUDA device each, and this machine has "
                f"{len(cuda)} ({', '.join(cuda)}). Lower learner.workers, or set learner.device to cpu."
            )
        return (own, *[device for device in cuda if device != own][: max(workers, 1) - 1])
    if workers > 1 and kind != "cpu":
        raise ConfigError(
            f"learner.workers={workers} share updates on the CPU or on CUDA devices, and learner.device={learner}. "
            "Set learner.workers to 1, or learner.device to cpu."
        )
    return (learner,) * max(workers, 1)


def balanced(loads: Sequence[float], taken: Mapping[str, float]) -> tuple[str, ...]:
    """A device for each load: the heaviest choose first, each takes the device that has least by then, of equals the first."""
    sums, found = dict(taken), [""] * len(loads)
    for i in sorted(range(len(loads)), key=lambda i: -loads[i]):
        found[i] = min(sums, key=lambda device: sums[device])
        sums[found[i]] += loads[i]
    return tuple(found)
