"""What must be learned: each row's env, algorithm, switches and steps, the published figure, and the mark to reach."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from freewheel.bench.checks import near
from freewheel.config import assemble
from freewheel.errors import ConfigError

# Settings that say where and how a run is written down, not what it learns.
NOT_LEARNING = ("log", "checkpoint")


@dataclass(frozen=True)
class Row:
    """One line of the table. Settings that it does not name are the env's preset's."""

    env: str
    label: str
    algo: str
    steps: int
    published: float
    source: str
    goal: float
    level: float  # of the mean return of 100 training episodes: reached by whoever has begun to learn the task
    switches: dict[str, Any] = field(default_factory=dict)
    most: float | None = None  # a return above this fails too: the settings are known not to learn it

    @property
    def name(self) -> str:
        return f"{self.env}/{self.label}"

    def compiled(self) -> Row:
        """The same, with the update compiled."""
        return replace(self, switches={**self.switches, "learner.compile": "on"})

    def in_runtime(self, runtime: str) -> Row:
        """The same in another runtime; appo always runs in the local one, because sequential appo is ppo."""
        if self.algo == "appo":
            runtime = "local"
        return replace(self, switches={**self.switches, "runtime": runtime})

    def given(self, seed: int) -> dict[str, Any]:
        return {"algo": self.algo, "steps": self.steps, "seed": seed, **self.switches}

    def fingerprint(self, seed: int) -> str:
        """Changes with any setting that a training of this row learns by, those of the preset included."""
        settings = asdict(assemble(self.env, self.given(seed)))
        learning = {name: value for name, value in settings.items() if name not in NOT_LEARNING}
        return hashlib.sha256(json.dumps(learning, sort_keys=True).encode()).hexdigest()[:16]


# With one step of reward values need more updates of the target to travel. With the preset's discount and ratio single seeds lost late in
# a training what they had learned.
_IQN_1 = {"q.n_step": 1, "q.gamma": 0.98, "learner.ratio": 32.0, "learner.target_every_updates": 64}
_PER_N3 = {"replay.prioritized": True, "q.n_step": 3}
_ALL = {"q.double": True, "q.dueling": True, **_PER_N3}
_NOISY = {"q.dueling": True, "q.noisy": True}
# The least lag of priorities, and much.
_LAG = {lag: {"replay.prioritized": True, "replay.priority_lag_updates": lag} for lag in (0, 48)}
_LINEAR = {"q.head": "linear"}  # beside the papers' heads
_ZOO, _TIANSHOU, _RLLIB = "rl-baselines3-zoo", "Tianshou's CI", "RLlib, within 200 k steps"

TABLE = (
    Row("CartPole-v1", "dqn", "dqn", 50_000, 500.0, _ZOO, 475.0, 195.0),
    Row("CartPole-v1", "qrdqn", "qrdqn", 50_000, 500.0, _ZOO, 475.0, 195.0),
    Row("CartPole-v1", "iqn", "iqn", 100_000, 195.0, _TIANSHOU, 475.0, 195.0, _IQN_1),
    Row("CartPole-v1", "iqn_linear", "iqn", 100_000, 195.0, _TIANSHOU, 475.0, 195.0, {**_IQN_1, **_LINEAR}),
    Row("CartPole-v1", "iqn_per_n3", "iqn", 100_000, 195.0, _TIANSHOU, 475.0, 195.0, _PER_N3),
    Row("CartPole-v1", "rainbow", "rainbow", 80_000, 195.0, _TIANSHOU, 475.0, 195.0),
    Row("CartPole-v1", "dqn_all", "dqn", 100_000, 450.0, _RLLIB, 475.0, 195.0, _ALL),
    Row("CartPole-v1", "dqn_all_linear", "dqn", 100_000, 450.0, _RLLIB, 475.0, 195.0, {**_ALL, **_LINEAR}),
    Row("CartPole-v1", "dqn_lag_0", "dqn", 50_000, 195.0, _TIANSHOU, 450.0, 195.0, _LAG[0]),
    Row("CartPole-v1", "dqn_lag_48", "dqn", 50_000, 195.0, _TIANSHOU, 450.0, 195.0, _LAG[48]),
    Row("CartPole-v1", "dqn_noisy", "dqn", 50_000, 195.0, _TIANSHOU, 475.0, 195.0, _NOISY),
    Row("CartPole-v1", "dqn_noisy_linear", "dqn", 50_000, 195.0, _TIANSHOU, 475.0, 195.0, {**_NOISY, **_LINEAR}),
    Row("Acrobot-v1", "dqn", "dqn", 100_000, -76.6, _ZOO, -100.0, -150.0),
    Row("MountainCar-v0", "dqn", "dqn", 120_000, -100.8, _ZOO, -125.0, -150.0),
    Row("LunarLander-v3", "dqn", "dqn", 100_000, 154.0, f"{_ZOO}, LunarLander-v2", 150.0, 0.0),
    Row("CartPole-v1", "ppo", "ppo", 100_000, 500.0, _ZOO, 475.0, 450.0),
    Row("CartPole-v1", "appo", "appo", 130_000, 450.0, "what PPO reaches, in 1.3x its steps", 450.0, 450.0),
    Row("Acrobot-v1", "ppo", "ppo", 1_000_000, -73.5, _ZOO, -100.0, -150.0),
    Row("LunarLander-v3", "ppo", "ppo", 1_000_000, 242.1, f"{_ZOO}, LunarLander-v2", 200.0, 0.0),
    Row("Pendulum-v1", "ppo", "ppo", 300_000, -172.2, f"{_ZOO}, 100 k steps", -250.0, -400.0),
    Row("Pendulum-v1", "sac", "sac", 20_000, -157.0, _ZOO, -170.0, -400.0),
    Row("MountainCar-v0", "ppo", "ppo", 500_000, -200.0, "CleanRL's settings", -200.0, -199.0, most=-199.0),
)


def choose(only: Sequence[str] | None) -> list[Row]:
    """The rows by name, by env or by algorithm, in the order of the table; all of them for None."""
    if only is None:
        return list(TABLE)
    known = list(dict.fromkeys(word for row in TABLE for word in (row.name, row.env, row.label)))
    for word in only:
        if word not in known:
            raise ConfigError(
                f"unknown row {word!r}.{near(word, known)} There are: {', '.join(r.name for r in TABLE)}."
            )
    if not only:
        raise ConfigError(f"--only names no row. There are: {', '.join(row.name for row in TABLE)}.")
    return [row for row in TABLE if {row.name, row.env, row.label} & set(only)]
