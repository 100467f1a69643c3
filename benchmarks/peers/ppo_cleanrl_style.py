"""PPO in the manner of a single-file script, written for this benchmark: no project of that name is run."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from freewheel.bench.worker.meter import Meter

from .ppo_settings import (
    ADAM_EPS,
    CLIP,
    CLIP_NORM,
    ENTROPY_WEIGHT,
    ENV,
    EPOCHS,
    GAE_LAMBDA,
    GAMMA,
    HIDDEN,
    LR,
    MINIBATCHES,
    ROLLOUT,
    UPDATES_PER_ROLLOUT,
    VALUE_WEIGHT,
)

OnReturn = Callable[[float], None]


def version() -> str:
    return f"torch {torch.__version__}"


def layer(inputs: int, outputs: int, gain: float = 2**0.5) -> nn.Linear:
    made = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(made.weight, gain)
    nn.init.zeros_(made.bias)
    return made


def make_net(num_obs: int, num_outputs: int, gain: float) -> nn.Sequential:
    first, second = HIDDEN
    return nn.Sequential(
        layer(num_obs, first), nn.Tanh(), layer(first, second), nn.Tanh(), layer(second, num_outputs, gain)
    )


class Agent(nn.Module):
    """Actor and critic with a body each."""

    def __init__(self, num_obs: int, num_actions: int) -> None:
        super().__init__()
        self.actor = make_net(num_obs, num_actions, 0.01)
        self.critic = make_net(num_obs, 1, 1.0)

    def act(self, obs: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Actions, drawn if they are not given, their log-chances, the entropy and the values."""
        policy = Categorical(logits=self.actor(obs))
        if action is None:
            action = policy.sample()  # type: ignore[no-untyped-call]
        return action, policy.log_prob(action), policy.entropy(), self.critic(obs).squeeze(-1)  # type: ignore[no-untyped-call]


class Rollout:
    """One line per turn of the envs. `is_done[t]` tells that the observation of line t begins an episode."""

    def __init__(self, envs: int, num_obs: int) -> None:
        self.obs = torch.zeros(ROLLOUT, envs, num_obs)
        self.action = torch.zeros(ROLLOUT, envs, dtype=torch.int64)
        self.log_prob, self.reward, self.is_done, self.value = (torch.zeros(ROLLOUT, envs) for _ in range(4))


def gae(rollout: Rollout, next_value: Tensor, next_done: Tensor) -> Tensor:
    """Advantages, from the last line to the first. Episodes that were cut count as ended, as in scripts of this kind."""
    found = torch.zeros_like(rollout.reward)
    last = torch.zeros_like(next_value)
    for t in reversed(range(len(found))):
        is_newest = t == len(found) - 1
        goes_on = 1.0 - (next_done if is_newest else rollout.is_done[t + 1])
        after = next_value if is_newest else rollout.value[t + 1]
        delta = rollout.reward[t] + GAMMA * after * goes_on - rollout.value[t]
        last = delta + GAMMA * GAE_LAMBDA * goes_on * last
        found[t] = last
    return found


def loss_of(agent: Agent, obs: Tensor, action: Tensor, log_prob: Tensor, advantage: Tensor, goal: Tensor) -> Tensor:
    _, new_log_prob, entropy, value = agent.act(obs, action)
    ratio = (new_log_prob - log_prob).exp()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    policy_loss = torch.max(-advantage * ratio, -advantage * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
    value_loss = (value - goal).square().mean()
    return policy_loss + VALUE_WEIGHT * value_loss - ENTROPY_WEIGHT * entropy.mean()


def learn(agent: Agent, optimizer: torch.optim.Optimizer, rollout: Rollout, advantage: Tensor) -> None:
    columns = (rollout.obs, rollout.action, rollout.log_prob, advantage, advantage + rollout.value)
    flat = [column.flatten(0, 1) for column in columns]
    order = np.arange(len(flat[0]))
    for _ in range(EPOCHS):
        np.random.shuffle(order)
        for rows in np.split(order, MINIBATCHES):
            loss = loss_of(agent, *(column[rows] for column in flat))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(agent.parameters(), CLIP_NORM)
            optimizer.step()


def train(meter: Meter, order: dict[str, Any], on_return: OnReturn = lambda _: None) -> None:
    """Until the meter has its window; `on_return` hears of each episode."""
    num_envs = order["envs"]
    torch.manual_seed(0)
    np.random.seed(0)
    envs = gymnasium.vector.SyncVectorEnv(
        [lambda: gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make(ENV))] * num_envs,
        autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
    )
    first, _ = envs.reset(seed=0)
    agent = Agent(first.shape[1], 2)
    optimizer = torch.optim.Adam(agent.parameters(), lr=LR, eps=ADAM_EPS)
    rollout = Rollout(num_envs, first.shape[1])
    obs, is_done = torch.from_numpy(first), torch.zeros(num_envs)
    steps = updates = 0
    while not meter.is_over(steps, updates):
        for t in range(ROLLOUT):
            rollout.obs[t], rollout.is_done[t] = obs, is_done
            with torch.no_grad():
                rollout.action[t], rollout.log_prob[t], _, rollout.value[t] = agent.act(obs)
            seen, reward, terminated, truncated, info = envs.step(rollout.action[t].numpy())
            rollout.reward[t] = torch.as_tensor(reward)
            obs, is_done = torch.from_numpy(seen), torch.as_tensor(terminated | truncated, dtype=torch.float32)
            if "final_info" in info:
                for i in np.flatnonzero(terminated | truncated):
                    on_return(float(info["final_info"]["episode"]["r"][i]))
        with torch.no_grad():
            advantage = gae(rollout, agent.critic(obs).squeeze(-1), is_done)
        learn(agent, optimizer, rollout, advantage)
        steps, updates = steps + ROLLOUT * num_envs, updates + UPDATES_PER_ROLLOUT
    envs.close()
