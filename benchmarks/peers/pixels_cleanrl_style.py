"""DQN on frames in the manner of a single-file script, written for this benchmark: no project of that name is run."""

import random
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from freewheel.bench.worker.meter import Meter

from .pixels_envs import make_one
from .pixels_nets import nature
from .pixels_settings import (
    BATCH,
    BUFFER,
    EPSILON,
    GAMMA,
    LEARNING_STARTS,
    LR,
    SIZE,
    STACK,
    STEPS_PER_UPDATE,
    TARGET_EVERY_STEPS,
)

Array = np.ndarray[Any, Any]


def version() -> str:
    return f"torch {torch.__version__}"


class Ring:
    """The newest `BUFFER` transitions, stacks as they came; the next ones are those of the following place, as such scripts
    save memory."""

    def __init__(self) -> None:
        self.obs = np.zeros((BUFFER, STACK, SIZE, SIZE), np.uint8)
        self.action = np.zeros(BUFFER, np.int64)
        self.reward, self.is_terminal = (np.zeros(BUFFER, np.float32) for _ in range(2))
        self.rng, self.head, self.size = np.random.default_rng(0), 0, 0

    def add(self, obs: Array, action: int, reward: float, next_obs: Array, is_terminal: bool) -> None:
        at = self.head
        self.obs[at], self.obs[(at + 1) % BUFFER] = obs, next_obs
        self.action[at], self.reward[at], self.is_terminal[at] = action, reward, is_terminal
        self.head, self.size = (at + 1) % BUFFER, min(self.size + 1, BUFFER - 1)

    def sample(self) -> tuple[torch.Tensor, ...]:
        at = (self.head - 1 - self.rng.integers(0, self.size, BATCH)) % BUFFER
        columns = (self.obs[at], self.obs[(at + 1) % BUFFER], self.action[at], self.reward[at], self.is_terminal[at])
        return tuple(torch.from_numpy(column) for column in columns)


def train(meter: Meter, order: dict[str, Any]) -> None:
    """As such scripts have it: one env, Adam as it comes, and no clipping of gradients."""
    torch.manual_seed(0)
    random.seed(0)
    net, target = nature(), nature()
    target.load_state_dict(net.state_dict())
    optimizer = torch.optim.Adam(net.parameters(), lr=LR)
    env, ring = make_one(order["env"]), Ring()
    num_actions = int(getattr(env.action_space, "n"))  # noqa: B009  the type does not say that it is Discrete
    obs, _ = env.reset(seed=0)
    steps = updates = 0
    # Asked where whole updates are done, so that the window has as many steps as belong to them.
    while steps % STEPS_PER_UPDATE or not meter.is_over(steps, updates):
        if random.random() < EPSILON:
            action = random.randrange(num_actions)
        else:
            with torch.no_grad():
                action = int(net(torch.from_numpy(np.asarray(obs))[None]).argmax())
        next_obs, reward, terminated, truncated, _ = env.step(action)
        ring.add(np.asarray(obs), action, float(reward), np.asarray(next_obs), terminated)
        obs = env.reset()[0] if terminated or truncated else next_obs
        steps += 1
        if steps < LEARNING_STARTS:
            continue
        if steps % STEPS_PER_UPDATE == 0:
            update(net, target, optimizer, ring)
            updates += 1
        if steps % TARGET_EVERY_STEPS == 0:
            target.load_state_dict(net.state_dict())
    env.close()


def update(net: torch.nn.Module, target: torch.nn.Module, optimizer: torch.optim.Optimizer, ring: Ring) -> None:
    obs, next_obs, action, reward, is_terminal = ring.sample()
    with torch.no_grad():
        goal = reward + GAMMA * (1 - is_terminal) * target(next_obs).max(1).values
    value = net(obs).gather(1, action[:, None]).squeeze(1)
    loss = functional.mse_loss(value, goal)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
