"""Which cases `bench replay` has, and how they are laid out in time and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from freewheel.bench.harness import Case
from freewheel.bench.peers.packages import PACKAGES
from freewheel.bench.peers.rows import Obs, parse_obs
from freewheel.bench.settings import (
    NUM_LANES,
    PIXEL_ROWS,
    VECTOR_ROWS,
    ReplaySettings,
    check_capacity,
    check_rounds,
)
from freewheel.errors import ConfigError
from freewheel.memory.segment import format_bytes

# What the first release set out to reach, against the fastest peer of the same run.
GOALS = {
    "add/f32[8]/64": 5.0,
    "add/f32[171]/64": 5.0,
    "uniform/f32[8]/256": 3.0,
    "uniform/f32[171]/256": 2.0,
    "prioritized/f32[8]/256": 5.0,
    "prioritized/f32[171]/256": 5.0,
    "uniform/u8[4,84,84]/32": 2.0,
    "bytes/u8[4,84,84]": 7.0,
    "per_cost/f32[171]/256": 1 / 1.6,
}


@dataclass(frozen=True)
class Stage:
    """Cases that share one filled buffer."""

    op: str  # add, uniform or prioritized
    obs: Obs
    capacity: int
    batches: tuple[int, ...]

    @property
    def num_envs(self) -> int:
        """Envs behind a peer's buffer: as many as rows are added at once; for sampling one, their best."""
        return self.batches[0] if self.op == "add" else 1

    @property
    def peer_bytes(self) -> int:
        """What a peer takes: both observations of a transition, small columns, and a few of its batches."""
        return self.capacity * (2 * self.obs.num_bytes + 64) + 6 * max(self.batches) * self.obs.num_bytes

    def case(self, batch: int) -> Case:
        name = f"{self.op}/{self.obs.name}/{batch}"
        unit = "rows/s" if self.op == "add" else "us"
        return Case(name, unit, goal=GOALS.get(name), extra={"capacity": self.capacity})

    def figure(self, us: float, batch: int) -> float:
        """Microseconds per call in the unit of the case."""
        return batch * 1e6 / us if self.op == "add" else us

    def is_run_by(self, name: str) -> bool:
        return self.op != "prioritized" or PACKAGES[name].has_prioritized


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


def num_windows(stages: Sequence[Stage], peers: Sequence[str], settings: ReplaySettings) -> int:
    """Measurements to come, when all peers fit into memory together."""
    runners = [1 + sum(stage.is_run_by(name) for name in [*peers, "numpy"]) for stage in stages]
    return settings.rounds * sum(n * len(stage.batches) for n, stage in zip(runners, stages, strict=True))


def fit(names: Sequence[str], stage: Stage, free: int) -> tuple[list[list[str]], str | None]:
    """Groups whose buffers fit into `free` bytes together; one empty group when not even one peer fits."""
    at_once = free // stage.peer_bytes
    where = f"{stage.op}/{stage.obs.name}"
    if at_once >= len(names):
        return [list(names)], None
    needed = f"a peer's buffer takes {format_bytes(stage.peer_bytes)} and {format_bytes(free)} are free"
    if at_once == 0:
        return [[]], f"{where}: ours ran alone, because {needed}."
    groups = [list(names[k : k + at_once]) for k in range(0, len(names), at_once)]
    turns = ", then ".join(" and ".join(group) for group in groups)
    return groups, f"{where}: {turns} ran in rounds with ours, because {needed}."
