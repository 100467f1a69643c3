"""Which cases `bench replay` has, and how they are laid out in time and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from freewheel.bench.checks import check_rounds
from freewheel.bench.harness import Case
from freewheel.bench.settings import PIXEL_ROWS, VECTOR_ROWS, ReplaySettings
from freewheel.bench.worker.rows import Obs, parse_obs
from freewheel.errors import ConfigError
from freewheel.memory.segment import format_bytes

NUM_LANES = 64
# Fewer rows would leave a lane with hardly anything to sample from.
LEAST_LANE_ROWS = 8


@dataclass(frozen=True)
class Stage:
    """Cases that share one filled buffer."""

    op: str  # add, uniform or prioritized
    obs: Obs
    capacity: int
    batches: tuple[int, ...]

    @property
    def num_envs(self) -> int:
        """Envs behind another's buffer: as many as rows are added at once; for sampling one, their best."""
        return self.batches[0] if self.op == "add" else 1

    @property
    def other_bytes(self) -> int:
        """What another's buffer takes: both observations of a transition, small columns, and a few of its batches."""
        return self.capacity * (2 * self.obs.num_bytes + 64) + 6 * max(self.batches) * self.obs.num_bytes

    def case(self, batch: int) -> Case:
        unit = "rows/s" if self.op == "add" else "us"
        return Case(f"{self.op}/{self.obs.name}/{batch}", unit, extra={"capacity": self.capacity})

    def figure(self, us: float, batch: int) -> float:
        """Microseconds per call in the unit of the case."""
        return batch * 1e6 / us if self.op == "add" else us


def plan(settings: ReplaySettings) -> list[Stage]:
    """The stages in the order they are run: one kind of observation at a time."""
    check_rounds(settings.rounds, settings.seconds)
    stages = []
    for name in settings.obs:
        try:
            obs = parse_obs(name)
        except ValueError as error:
            raise ConfigError(f"--obs: {error}.") from error
        usual = PIXEL_ROWS if obs.is_stacked else VECTOR_ROWS
        capacity = usual if settings.capacity is None else settings.capacity
        check_capacity(capacity, settings.batches)
        for op, batches in (
            ("add", (1,)),
            ("add", (NUM_LANES,)),
            ("uniform", settings.batches),
            ("prioritized", settings.batches),
        ):
            stages.append(Stage(op, obs, capacity, tuple(batches)))
    return stages


def check_capacity(capacity: int, batches: Sequence[int]) -> None:
    if not batches or min(batches) < 1:
        raise ConfigError(f"--batches {','.join(map(str, batches))} must be one or more positive numbers.")
    least = max(NUM_LANES * LEAST_LANE_ROWS, 2 * max(batches))
    if capacity < least:
        raise ConfigError(
            f"--capacity {capacity} is less than {least}, the least for {NUM_LANES} lanes and batches of"
            f" {max(batches)} rows. Raise it or ask for smaller --batches."
        )


def fit(names: Sequence[str], stage: Stage, free: int) -> tuple[list[list[str]], str | None]:
    """Groups whose buffers fit into `free` bytes together; one empty group when not even one fits."""
    at_once = free // stage.other_bytes
    where = f"{stage.op}/{stage.obs.name}"
    if at_once >= len(names):
        return [list(names)], None
    needed = f"another buffer takes {format_bytes(stage.other_bytes)} and {format_bytes(free)} are free"
    if at_once == 0:
        return [[]], f"{where}: ours ran alone, because {needed}."
    groups = [list(names[k : k + at_once]) for k in range(0, len(names), at_once)]
    turns = ", then ".join(" and ".join(group) for group in groups)
    return groups, f"{where}: {turns} ran in rounds with ours, because {needed}."
