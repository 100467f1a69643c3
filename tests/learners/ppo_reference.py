"""PPO written down plainly, row by row and with torch's own parts: what ours is compared with."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.distributions import Categorical, Normal


class Noisy(gymnasium.Env[Any, Any]):
    """Random observations and rewards; ends by chance, and is cut after some steps."""

    observation_space = spaces.Box(-5, 5, (3,), np.float32)

    def __init__(self, action_space: spaces.Space[Any], ends: float = 0.15, limit: int = 7) -> None:
        self.action_space = action_space
        self.ends, self.limit = ends, limit

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = 0
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at += 1
        reward = float(self.np_random.normal()) + 0.1 * float(np.sum(action))
        terminated = bool(self.np_random.random() < self.ends)
        return self._see(), reward, terminated, self.at >= self.limit and not terminated, {}

    def _see(self) -> Any:
        return self.np_random.normal(size=3).astype(np.float32)


@dataclass
class Step:
    """One step of one lane: what was seen, done and got, and what was seen after it."""

    obs: Any
    action: Any
    reward: float
    after: Any
    terminated: bool
    truncated: bool


@dataclass
class Tape:
    """Writes down, beside the world, what each lane did."""

    world: Any
    lanes: dict[int, list[Step]] = field(default_factory=dict)
    _seen: dict[int, Any] = field(default_factory=dict)
    _did: dict[int, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.world, name)

    def recv(self, timeout_s: float = 60.0) -> Any:
        (ready,) = self.world.recv(timeout_s)
        if ready.ended is not None:
            ended = ready.ended
            for i, lane in enumerate(ended.lanes.tolist()):
                flags = bool(ended.terminated[i]), bool(ended.truncated[i])
                self._end(lane, float(ended.reward[i]), ended.obs["obs"][i].copy(), *flags)
        for i, lane in enumerate(ready.lanes.tolist()):
            seen = ready.obs["obs"][i].copy()
            if not ready.first[i]:
                self._end(lane, float(ready.reward[i]), seen, False, False)
            self._seen[lane] = seen
        return (ready,)

    def stored(self, lanes: np.ndarray[Any, Any], actions: np.ndarray[Any, Any]) -> None:
        for lane, action in zip(lanes.tolist(), actions, strict=True):
            self._did[lane] = np.array(action)

    def _end(self, lane: int, reward: float, after: Any, terminated: bool, truncated: bool) -> None:
        self.lanes.setdefault(lane, []).append(
            Step(self._seen[lane], self._did[lane], reward, after, terminated, truncated)
        )


def distributions(out: Tensor, space: spaces.Space[Any]) -> list[Any]:
    if isinstance(space, spaces.Discrete):
        return [Categorical(logits=out)]
    if isinstance(space, spaces.MultiDiscrete):
        return [Categorical(logits=part) for part in out.split(space.nvec.tolist(), 1)]
    mean, log_std = out.chunk(2, 1)
    return [Normal(mean, log_std.exp())]


def log_prob_and_entropy(out: Tensor, actions: Tensor, space: spaces.Space[Any]) -> tuple[Tensor, Tensor]:
    each = distributions(out, space)
    if isinstance(space, spaces.Box):
        return each[0].log_prob(actions).sum(1), each[0].entropy().sum(1)
    if isinstance(space, spaces.Discrete):
        return each[0].log_prob(actions - int(space.start)), each[0].entropy()
    logs = [one.log_prob(actions[:, i]) for i, one in enumerate(each)]
    return sum(logs), sum(one.entropy() for one in each)  # type: ignore[return-value]


def naive_gae(steps: list[Step], values: list[float], after: list[float], gamma: float, lam: float) -> list[float]:
    """Row by row, backwards."""
    found = [0.0] * len(steps)
    later = 0.0
    for t in reversed(range(len(steps))):
        step = steps[t]
        over = step.terminated or step.truncated
        delta = step.reward + (0.0 if step.terminated else gamma * after[t]) - values[t]
        later = delta + (0.0 if over else gamma * lam * later)
        found[t] = later
    return found


def train(
    net: nn.Module, space: spaces.Space[Any], tape: Tape, config: Any, generator: torch.Generator
) -> tuple[nn.Module, dict[str, Tensor]]:
    """The network after PPO has learned from all steps of the tape, and the rows it learned from."""
    ppo, learner = config.ppo, config.learner
    net = copy.deepcopy(net).requires_grad_(True)
    rows: dict[str, list[Any]] = {name: [] for name in ("obs", "action", "log_prob", "value", "advantage")}
    for lane in sorted(tape.lanes):
        steps = [replace(step, reward=step.reward * config.world.reward_scale) for step in tape.lanes[lane]]
        with torch.no_grad():
            obs = torch.tensor(np.stack([step.obs for step in steps]))
            out = net(obs)
            actions = torch.tensor(np.stack([step.action for step in steps]))
            after = net(torch.tensor(np.stack([step.after for step in steps])))[:, -1]
            log_prob, _ = log_prob_and_entropy(out[:, :-1], actions, space)
        values = out[:, -1].tolist()
        rows["obs"] += list(obs)
        rows["action"] += list(actions)
        rows["log_prob"] += log_prob.tolist()
        rows["value"] += values
        rows["advantage"] += naive_gae(steps, values, after.tolist(), ppo.gamma, ppo.gae_lambda)
    batch = {
        name: torch.stack(column) if isinstance(column[0], Tensor) else torch.tensor(column)
        for name, column in rows.items()
    }
    goal = batch["value"] + batch["advantage"]
    optimizer = torch.optim.Adam(net.parameters(), lr=learner.lr, eps=learner.adam_eps)
    for _ in range(ppo.epochs):
        order = torch.randperm(len(goal), generator=generator)
        for part in order.chunk(ppo.minibatches):
            out = net(batch["obs"][part])
            log_prob, entropy = log_prob_and_entropy(out[:, :-1], batch["action"][part], space)
            advantage = batch["advantage"][part]
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            ratio = (log_prob - batch["log_prob"][part]).exp()
            policy = -torch.min(ratio * advantage, ratio.clamp(1 - ppo.clip, 1 + ppo.clip) * advantage).mean()
            value, before = out[:, -1], batch["value"][part]
            errors = (value - goal[part]) ** 2
            if ppo.value_clip:
                near = before + (value - before).clamp(-ppo.value_clip, ppo.value_clip)
                errors = torch.max(errors, (near - goal[part]) ** 2)
            loss = policy + ppo.value_weight * errors.mean() - ppo.entropy_weight * entropy.mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), learner.clip_norm)
            optimizer.step()
    return net, batch
