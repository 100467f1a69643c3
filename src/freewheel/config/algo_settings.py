"""Settings that several algorithms share: action values, exploration, replay and rollouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from freewheel.config.ranges import LARGE, AboveZero, Natural, NotNegative, Positive, Range, Share, Size


@dataclass(frozen=True)
class QConfig:
    """Algorithms of the DQN family."""

    gamma: Share = 0.99
    """Discount factor per step."""

    n_step: Annotated[int, Range(1, 1000)] = 1
    """n-step returns: sum the rewards of this many steps before bootstrapping."""

    double: bool = True
    """Double DQN: the online network selects the next action, the target network evaluates it."""

    dueling: bool = False
    """Dueling network: separate streams for state value and advantages."""

    head: Literal["paper", "shared", "linear"] = "paper"
    """With dueling, noisy or iqn: where the last layer of net.hidden is. paper: in the head, one for each dueling stream, noisy, after IQN's fractions; shared: the same, but one for both streams; linear: in the body, so that the head is linear."""

    noisy: bool = False
    """Noisy networks: explore by learned noise instead of epsilon."""

    noisy_sigma: NotNegative = 0.5
    """noisy: initial noise scale."""

    loss: Literal["huber", "mse"] = "huber"
    """dqn: loss on the TD error."""

    huber: AboveZero = 1.0
    """dqn, qrdqn, iqn: Huber loss threshold."""

    num_quantiles: Size = 50
    """qrdqn: quantiles per action."""

    num_taus: Size = 64
    """iqn: quantiles of the online network per training row."""

    num_target_taus: Size = 64
    """iqn: quantiles of the target network per training row."""

    num_act_taus: Size = 32
    """iqn: quantiles used to select an action."""

    num_cosines: Size = 64
    """iqn: size of the cosine embedding of a quantile."""

    num_atoms: Annotated[int, Range(2, 2**31 - 1)] = 51
    """c51, rainbow: atoms of the return distribution."""

    v_min: Annotated[float, Range(-LARGE, LARGE)] = -10.0
    """c51, rainbow: lowest return of the support."""

    v_max: Annotated[float, Range(-LARGE, LARGE)] = 10.0
    """c51, rainbow: highest return of the support."""


@dataclass(frozen=True)
class ExploreConfig:
    """Epsilon-greedy exploration. Steps are counted over all lanes."""

    schedule: Literal["linear", "exponential", "constant", "ladder"] = "linear"
    """Epsilon schedule. linear, exponential: from start to end; constant: always end; ladder: a constant per lane, as in Ape-X."""

    start: Share = 1.0
    """Epsilon at the first step."""

    end: Share = 0.05
    """Epsilon after over_steps steps."""

    over_steps: Positive = 10_000
    """Steps over which epsilon goes from start to end."""

    ladder_base: Share = 0.4
    """ladder: epsilon of the first lane."""

    ladder_power: NotNegative = 7.0
    """ladder: the last lane has epsilon ladder_base ** (1 + ladder_power)."""

    hold_steps: Annotated[int, Range(1, 10_000)] = 1
    """Repeat each random action for a random number of steps, at most this many."""

    floor: Share = 0.0
    """Lower bound on epsilon, also for override."""

    override: Annotated[float | None, Range(0, 1)] = None
    """Use this epsilon instead of the schedule."""

    pulse_every_steps: Natural = 0
    """Start a pulse of extra exploration every this many steps; 0 turns pulses off."""

    pulse_steps: Positive = 1_000
    """Length of a pulse, in steps."""

    pulse_epsilon: Share = 0.5
    """Epsilon during a pulse, unless the schedule's is higher."""


@dataclass(frozen=True)
class ReplayConfig:
    """The replay buffer, and how it is sampled."""

    rows: Annotated[int, Range(2, 2**32 - 1)] = 100_000
    """Replay buffer size, in rows over all lanes."""

    warmup_rows: Positive = 1_000
    """Env steps before training starts."""

    prioritized: bool = False
    """Prioritized experience replay (PER): sample rows by their last TD error."""

    alpha: Share = 0.6
    """PER: priority exponent alpha."""

    beta: Share = 0.4
    """PER: importance weight exponent beta at the start."""

    beta_end: Share = 1.0
    """PER: beta at the end of the run."""

    priority_lag_updates: Natural = 32
    """PER: draw each batch at most this many updates before it is trained on. Limits local.prefetch and the updates that are sampled at once."""


@dataclass(frozen=True)
class RolloutConfig:
    """Rollouts: rows that are collected, learned from once and discarded."""

    rows: Annotated[int, Range(1, 2**24)] = 128
    """Rollout length: rows per lane. A rollout has rows x lanes rows in total; fast lanes may give more of them than slow ones."""

    max_lag: Natural = 4
    """Discard and count rows whose policy is more than this many rollouts old. appo: actors wait at this lag instead (default 1)."""

    collect: Literal["rows", "episodes"] = "rows"
    """When a rollout is complete. rows: when it has enough rows, even in mid-episode; episodes: when the finished episodes have enough rows; it then holds all of them."""

    reuse: Annotated[int, Range(0, 1000)] = 0
    """appo: number of earlier rollouts to reuse with each new one, corrected by V-trace."""
