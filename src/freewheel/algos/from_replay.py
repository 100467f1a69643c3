"""Memory and pace of algorithms that learn from a replay, and their settings."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from freewheel.algos.algo import Defaults
from freewheel.algos.value_range import PersistentProblems, RewardRange, beyond
from freewheel.config import Config, ReplayConfig
from freewheel.contracts import TargetRule
from freewheel.errors import ConfigError
from freewheel.learners.target_process import DEPTH
from freewheel.learners.update import unrolled
from freewheel.memory.counts import Counts
from freewheel.memory.dials import Dials
from freewheel.memory.lanes import Lanes, forecast_bytes
from freewheel.memory.ratio_pace import Ratio, RatioPace, slack_of
from freewheel.memory.replay import Replay, ReplayMemory
from freewheel.memory.replay_batch import BatchLayout
from freewheel.memory.segment import allowed_bytes, format_bytes
from freewheel.spec import RowSpec

MOST_UPDATES = 1000  # per step: with ten times as many even a tiny network takes seconds for a step


@dataclass(frozen=True)
class ReplaySettings(Config):
    """Settings of an algorithm that learns from a replay."""

    replay: ReplayConfig = field(default_factory=ReplayConfig)


class FromReplay(Defaults):
    """The memory and pace of an algorithm that learns from a replay at a ratio. `section` of its settings has gamma and n_step."""

    first_action = 0
    rows_are = "replay"
    fewer_updates = "learner.ratio"
    section = "q"
    rewards: RewardRange | None = None

    @property
    def batch_rows(self) -> int:
        return int(self.config.learner.batch_size)

    def num_updates(self, steps: int) -> float:
        """How many updates so many steps make due."""
        return float(steps * self.config.learner.ratio / self.config.learner.batch_size)

    def lane_rows(self, num_lanes: int, is_local: bool) -> int:
        return int(self.config.replay.rows // num_lanes)

    def refuse_memory(self, spec: RowSpec, num_lanes: int) -> None:
        """Refuses a replay that does not fit in this machine's memory, and says how many rows do."""
        rows = self.config.replay.rows
        needed = forecast_bytes(spec, num_lanes, rows // num_lanes)
        allowed, source = allowed_bytes()
        if needed > allowed:
            fitting = max(int(rows * allowed / needed * 0.9), 1)
            fitting -= fitting % 10 ** (len(str(fitting)) - 1)  # one digit and zeros, rounded down
            size = format_bytes(forecast_bytes(spec, num_lanes, max(fitting // num_lanes, 2)))
            raise ConfigError(
                f"replay.rows={rows:_} needs {format_bytes(needed)}, {source} allows {format_bytes(allowed)}. "
                f"Try --replay.rows {fitting:_} ({size})."
            )
        self._refuse_batches(spec, allowed - needed)

    def _refuse_batches(self, spec: RowSpec, left: int) -> None:
        """Of what the replay leaves. A draw has the rows of all updates of a call, where the warm-up has that many."""
        config, learner = self.config, self.config.learner
        rows = max(min(learner.batch_size * learner.updates_per_call, config.replay.warmup_rows), learner.batch_size)
        layout = BatchLayout(spec.fields, rows, config.world.stack, getattr(config, self.section).n_step)
        needed = layout.num_bytes * (1 + (config.local.prefetch if config.runtime == "local" else 0))
        if needed > left:
            raise ConfigError(
                f"batches of learner.batch_size={learner.batch_size:_} rows with learner.updates_per_call="
                f"{learner.updates_per_call:_} need {format_bytes(needed)}, and the replay leaves {format_bytes(left)}. "
                "Lower one of the two, or replay.rows."
            )

    def updates_together(self) -> int:
        """Updates that are drawn and made at once, as one graph if they are compiled."""
        learner, warmup = self.config.learner, self.config.replay.warmup_rows
        if not self.may_compile():
            return 1
        if learner.compile == "auto":
            return unrolled(learner.updates_per_call, min(warmup // learner.batch_size, self._most_late))
        most = unrolled(learner.updates_per_call, self._most_late)
        if most * learner.batch_size > warmup:
            raise ConfigError(
                f"learner.compile=on draws {most * learner.batch_size} rows at once (learner.batch_size={learner.batch_size}, "
                f"learner.updates_per_call={learner.updates_per_call}), more than replay.warmup_rows={warmup}. "
                "Raise the last or lower one of the others."
            )
        return most

    def memory(self, lanes: Lanes, seed: Callable[[str], int], prefetch: int = 0) -> ReplayMemory:
        """Draws for all updates of a call at once if the warm-up has that many rows, else for those of one graph.

        Each draw may wake a thread and a process, which costs as much as a few small updates. With priorities a draw leaves room for
        those that are ready behind it: one of the thread's, and those that the target process is shown.
        """
        self.rewards, self._persistent = RewardRange(lanes), PersistentProblems()
        config, learner, together = self.config, self.config.learner, self.updates_together()
        own, late = getattr(config, self.section), self._most_late
        most = min(config.replay.warmup_rows // learner.batch_size, late // (2 + DEPTH) if prefetch else late)
        counts = range(together, learner.updates_per_call + 1, together)
        updates = max((n for n in counts if learner.updates_per_call % n == 0 and n <= most), default=together)
        most_ahead = late // updates - 1
        replay = Replay(
            lanes,
            learner.batch_size,
            updates=updates,
            n_step=own.n_step,
            gamma=own.gamma,
            stack=config.world.stack,
            prioritized=config.replay.prioritized,
            alpha=config.replay.alpha,
            seed=seed("replay"),
            prefetch=min(prefetch, most_ahead),
        )
        return ReplayMemory(
            replay,
            self.draws,
            updates_per_call=learner.updates_per_call,
            unrolled=together,
            seed=seed("learner"),
            beta=(config.replay.beta, config.replay.beta_end),
            first_action=self.first_action,
            columns=tuple(self.extra),
            most_ahead=most_ahead,
        )

    def warnings(self, metrics: Mapping[str, float]) -> list[str]:
        if self.rewards is None:
            return []
        self.rewards.look()
        return self._persistent.told(self.problems(metrics, self.rewards))

    def problems(self, metrics: Mapping[str, float], rewards: RewardRange) -> dict[str, str]:
        """What is wrong with the newest values, by name."""
        return beyond(metrics, rewards, getattr(self.config, self.section).gamma, self.section)

    @property
    def _most_late(self) -> int:
        """With the update after a draw as the first, the last one that may train on its rows."""
        replay = self.config.replay
        return replay.priority_lag_updates + 1 if replay.prioritized else sys.maxsize

    def pace(self, counts: Counts, num_lanes: int, is_local: bool, dials: Dials | None = None) -> RatioPace:
        learner, local = self.config.learner, self.config.local
        ratio = Ratio(learner.ratio, learner.batch_size, learner.updates_per_call, self.config.replay.warmup_rows)
        slack = local.slack_steps or slack_of(ratio, num_lanes)
        return RatioPace(counts, ratio, slack, is_free=local.free or not is_local, dials=dials)

    def publish_every(self) -> tuple[int, float]:
        """Updates and seconds between two published versions of the weights."""
        return self.config.local.publish_every_updates, self.config.local.publish_every_s

    def target_rule(self) -> TargetRule:
        learner = self.config.learner
        return TargetRule(learner.tau, learner.target_every_updates, learner.target_refresh_updates)

    @classmethod
    def check(cls, config: Any) -> None:
        learner, replay, lanes = config.learner, config.replay, config.world.lanes
        n_step = getattr(config, cls.section).n_step
        if learner.batch_size > replay.warmup_rows:
            raise ConfigError(
                f"learner.batch_size={learner.batch_size} exceeds replay.warmup_rows={replay.warmup_rows}. "
                "Lower the first or raise the second."
            )
        if learner.ratio > MOST_UPDATES * learner.batch_size:
            raise ConfigError(
                f"learner.ratio={learner.ratio:g} makes {learner.ratio / learner.batch_size:,.0f} updates of learner.batch_size="
                f"{learner.batch_size} per step; at most {MOST_UPDATES:,} are allowed. Lower the first or raise the second."
            )
        if learner.batch_size % learner.accumulate:
            raise ConfigError(
                f"learner.accumulate={learner.accumulate} must divide learner.batch_size={learner.batch_size} "
                "into equal parts."
            )
        _refuse_lone_rows(config)
        if replay.warmup_rows > replay.rows:
            raise ConfigError(
                f"replay.warmup_rows={replay.warmup_rows} exceeds replay.rows={replay.rows}: the warm-up would never end. "
                "Lower the first or raise the second."
            )
        first_due = replay.warmup_rows + math.ceil(learner.batch_size * learner.updates_per_call / learner.ratio)
        if math.ceil(first_due / lanes) < n_step:
            raise ConfigError(
                f"replay.warmup_rows={replay.warmup_rows} over world.lanes={lanes} ends before a lane has n_step={n_step} steps, "
                f"which a row to train on needs. Raise the first to {lanes * n_step}."
            )
        needed = n_step + config.world.stack
        if replay.rows // lanes < needed:
            raise ConfigError(
                f"replay.rows={replay.rows} over world.lanes={lanes} leaves {replay.rows // lanes} rows a lane; "
                f"n_step={n_step} with world.stack={config.world.stack} needs {needed}. Raise replay.rows."
            )

    @classmethod
    def refuse_dial(cls, config: Any, name: str) -> None:
        super().refuse_dial(config, name)
        if name == "prioritized" and not config.replay.prioritized:
            raise ConfigError(
                f"the dial {name!r} needs a run that began with priorities, and replay.prioritized is off. Start with "
                "--replay.prioritized, and set the dial to 0 for uniform draws."
            )

    @classmethod
    def unused(cls, config: Any) -> dict[str, str]:
        found = {"net.shared": f"it belongs to ppo and appo, and algo={config.algo}"}
        if not config.replay.prioritized:
            names = ("alpha", "beta", "beta_end", "priority_lag_updates")
            found |= {f"replay.{name}": "replay.prioritized is off" for name in names}
        if config.learner.tau == 1.0:
            found["learner.target_refresh_updates"] = "learner.tau=1 copies the online network at every move"
        return found


def _refuse_lone_rows(config: Any) -> None:
    """BatchNorm has no statistics of a single row; after convolutions it has those of many places."""
    learner = config.learner
    parts = learner.accumulate * max(learner.workers, 1)
    if config.net.norm == "batch" and learner.batch_size < 2 * parts:
        raise ConfigError(
            f"net.norm=batch needs at least 2 rows in each of {parts} parts of a batch, and learner.batch_size is "
            f"{learner.batch_size}. Raise it."
        )
