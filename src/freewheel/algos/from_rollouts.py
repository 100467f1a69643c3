"""Memory and pace of algorithms that learn from rollouts, and their settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from freewheel.algos.algo import Defaults
from freewheel.config import Config, RolloutConfig
from freewheel.errors import ConfigError
from freewheel.learners.update import unrolled
from freewheel.memory.counts import Counts
from freewheel.memory.dials import Dials
from freewheel.memory.lanes import Lanes, forecast_bytes
from freewheel.memory.rollout import Rollout, RolloutMemory
from freewheel.memory.rollout_pace import RolloutPace
from freewheel.memory.segment import allowed_bytes, format_bytes
from freewheel.spec import RowSpec

# Settings that only learning from a replay uses.
NOT_LEARNER = ("batch_size", "ratio", "updates_per_call", "target_every_updates", "tau", "target_refresh_updates")
NOT_LOCAL = (
    "prefetch",
    "publish_every_updates",
    "publish_every_s",
    "publish_least_change",
    "fetch_every_steps",
    "fetch_every_s",
)


@dataclass(frozen=True)
class RolloutSettings(Config):
    """Settings of an algorithm that learns from rollouts."""

    rollout: RolloutConfig = field(default_factory=RolloutConfig)


class FromRollouts(Defaults):
    """The memory and pace of an algorithm that learns from each rollout in `epochs` of `minibatches`, then drops it.

    `columns` names what its `prepare` gives beside obs and action. Actors may be `max_lag` rollouts ahead of the learner.
    """

    needs_bootstraps = trains_as_it_acts = True
    rows_are = "rollout"
    columns: Sequence[str] = ()
    revalues = False  # the learner computes the values of all observations by its own weights
    epochs, minibatches, max_lag, target_kl = 1, 1, 0, 0.0

    def finish(self, minibatch: dict[str, Any]) -> dict[str, Any]:
        """Changes a minibatch before it is split any further."""
        return minibatch

    @property
    def num_rows(self) -> int:
        """Rows of a rollout, over all lanes."""
        return int(self.config.rollout.rows * self.spaces.num_lanes)

    @property
    def batch_rows(self) -> int:
        return self.num_rows // self.minibatches

    def num_updates(self, steps: int) -> float:
        """How many updates so many steps make due."""
        return steps / self.num_rows * self.epochs * self.minibatches

    def lane_rows(self, num_lanes: int, is_local: bool) -> int:
        """Room for a rollout, and in local runs for `max_lag` more that are collected meanwhile."""
        lag = self.max_lag if is_local else 0
        return lane_rows(self.config.rollout.rows * (1 + lag), num_lanes, self.config.world.stack)

    def refuse_memory(self, spec: RowSpec, num_lanes: int) -> None:
        """Refuses lanes that do not fit in this machine's memory: they count twice, since each rollout is copied, plus reused rollouts."""
        rollout = self.config.rollout
        kept = rollout.reuse * forecast_bytes(spec, num_lanes, rollout.rows)
        needed = 2 * forecast_bytes(spec, num_lanes, self.lane_rows(num_lanes, is_local=True)) + kept
        allowed, source = allowed_bytes()
        if needed > allowed:
            raise ConfigError(
                f"rollout.rows={rollout.rows} on {num_lanes} lanes needs {format_bytes(needed)}, {source} allows "
                f"{format_bytes(allowed)}. Lower rollout.rows or world.lanes."
            )

    def updates_together(self) -> int:
        """Updates that are made at once, as one graph if they are compiled. Rollouts of varying length stay eager."""
        is_one_size = self.config.rollout.collect != "episodes"
        return unrolled(self.minibatches) if is_one_size and self.may_compile() else 1

    def memory(self, lanes: Lanes, seed: Callable[[str], int], prefetch: int = 0) -> RolloutMemory:
        config = self.config
        rollout = Rollout(
            lanes,
            config.rollout.rows * lanes.num_lanes,
            stack=config.world.stack,
            max_lag=config.rollout.max_lag,
            revalues=self.revalues,
            by_episodes=config.rollout.collect == "episodes",
        )
        return RolloutMemory(
            rollout,
            epochs=self.epochs,
            minibatches=self.minibatches,
            unrolled=self.updates_together(),
            seed=seed("learner"),
            columns=self.columns,
            reuse=config.rollout.reuse,
            target_kl=self.target_kl,
            first_action=getattr(self.spaces.action, "start", 0),  # of choices; 0 is an action of all others
            finish=self.finish,
        )

    def pace(self, counts: Counts, num_lanes: int, is_local: bool, dials: Dials | None = None) -> RolloutPace:
        rows = self.config.rollout.rows * num_lanes
        lag = self.max_lag if is_local else 0
        return RolloutPace(counts, rows, num_lanes, lag, rows // self.minibatches, is_lockstep=not is_local)

    def publish_every(self) -> tuple[int, float]:
        """Publishes after each rollout."""
        return 1, 0.0

    @classmethod
    def check(cls, config: Any, minibatches: int = 1) -> None:
        rows, lanes = config.rollout.rows, config.world.lanes
        if rows * lanes % minibatches or rows * lanes // minibatches < 2:
            raise ConfigError(
                f"rollout.rows={rows} times world.lanes={lanes} gives {rows * lanes} rows, which {minibatches} minibatches "
                "must divide into equal parts of at least 2. Change one of them."
            )
        if rows * lanes // minibatches % config.learner.accumulate:
            raise ConfigError(
                f"learner.accumulate={config.learner.accumulate} must divide a minibatch of {rows * lanes // minibatches} rows "
                "into equal parts."
            )
        needs = {"learner.compile=on": config.learner.compile == "on", "learner.workers": config.learner.workers > 1}
        asked = [setting for setting, is_asked in needs.items() if is_asked]
        if config.rollout.collect == "episodes" and asked:
            raise ConfigError(
                f"rollout.collect=episodes gives rollouts of any length, but {asked[0]} needs batches of one size. Leave it out, "
                "or set rollout.collect to rows."
            )
        if config.net.norm.startswith("batch"):
            raise ConfigError(
                f"net.norm={config.net.norm} makes the policy depend on which rows are in a batch, but {config.algo} compares the policy "
                "of one row in different batches. Set net.norm to layer or none."
            )

    @classmethod
    def unused(cls, config: Any) -> dict[str, str]:
        algo = config.algo
        found = dict.fromkeys((f"learner.{name}" for name in NOT_LEARNER), f"algo={algo} does not use it")
        found["checkpoint.replay"] = f"algo={algo} has no replay"
        found |= dict.fromkeys((f"local.{name}" for name in NOT_LOCAL), f"algo={algo} publishes after each rollout")
        found["local.target_process"] = f"algo={algo} has no target network"
        found |= dict.fromkeys(("local.free", "local.slack_steps"), f"algo={algo} uses rollout.max_lag instead")
        return found


def lane_rows(rows: int, lanes: int, stack: int) -> int:
    """Rows that a lane must keep. In step it writes `rows` in a rollout, and at most as many final observations.

    A lane may be four times as fast as the others before rows are overwritten, and counted.
    """
    return 2 * min(4 * rows, rows * lanes) + stack + 16
