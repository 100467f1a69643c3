"""Settings of algorithms that learn from what their own policy just did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Algorithms that learn a policy from its own newest rows.
ON_POLICY = ("ppo", "appo")


@dataclass(frozen=True)
class PPOConfig:
    """PPO's switches."""

    gamma: float = 0.99
    """Discount per step."""

    gae_lambda: float = 0.95
    """How far advantages look ahead before they trust the value: 0 one step, 1 to the end of the episode."""

    clip: float = 0.2
    """How far the chance of an action may move from what it was when the row was collected, as a share of it."""

    clip_schedule: Literal["constant", "linear"] = "constant"
    """Course of clip over the run; linear falls to 0."""

    value_clip: float = 0.0
    """How far a value may move from what it was when the row was collected; 0 sets no bound."""

    value_weight: float = 0.5
    """Weight of the values' squared error in the loss."""

    entropy_weight: float = 0.01
    """Weight of the policy's entropy in the loss: more keeps it trying for longer."""

    epochs: int = 4
    """Times that each rollout is learned from."""

    minibatches: int = 4
    """Updates per epoch, each with an equal part of the rollout's rows."""

    normalize_advantage: bool = True
    """Bring the advantages of each minibatch to mean 0 and deviation 1."""

    target_kl: float = 0.0
    """Leave the other epochs out once the policy has moved this far (approximate KL); 0 never does."""

    normalize_obs: bool = False
    """Bring observations to mean 0 and deviation 1 by running statistics, bounded at 10."""

    normalize_reward: bool = False
    """Divide rewards by the running deviation of the discounted returns, bounded at 10."""

    log_std: float = 0.0
    """Box actions: logarithm of the deviation that exploration begins with."""

    rho_bar: float = 1.0
    """appo: most that a row counts, however much likelier the newer policy makes its action."""

    c_bar: float = 1.0
    """appo: most that later rows count for it, likewise."""


@dataclass(frozen=True)
class RolloutConfig:
    """What is collected, and learned from once."""

    rows: int = 128
    """Rows per lane in a rollout; it has that many times the lanes in all, whichever lanes they come from."""

    max_lag: int = 4
    """Rows of a policy that is more rollouts old than this are left out and counted. With appo actors stop before: so far ahead they may be, and it is 1."""

    collect: Literal["rows", "episodes"] = "rows"
    """rows: a rollout is complete when it has its rows, wherever episodes stand; episodes: when whole episodes have that many, and it has all that ended."""

    reuse: int = 0
    """appo: newest rollouts that are kept and learned from again beside each new one, corrected by V-trace."""
