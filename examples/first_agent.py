"""A first agent on the core alone: Double DQN on CartPole, eight lanes, acting with weights fetched from the board."""

import copy

import gymnasium as gym
import numpy as np
import torch
from rich.progress import Progress
from torch import nn

from freewheel.memory.lanes import Lanes
from freewheel.memory.replay import Replay
from freewheel.spec import RowSpec
from freewheel.weights.board import Board

LANES, ROWS, WARMUP, BATCH, GAMMA = 8, 50_000, 1_000, 128, 0.99


def greedy(net: nn.Module, obs: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return net(torch.from_numpy(obs)).argmax(1).numpy()


def main(seed: int = 1) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    envs = gym.make_vec("CartPole-v1", LANES, vectorization_mode="sync")
    spec = RowSpec.of(envs.single_observation_space, envs.single_action_space)
    lanes, ids = Lanes(spec, LANES, ROWS // LANES), np.arange(LANES)
    writer, replay = lanes.writer(), Replay(lanes, BATCH, n_step=3, gamma=GAMMA, seed=seed)
    net = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
    target, actor = copy.deepcopy(net), copy.deepcopy(net)
    adam = torch.optim.Adam(net.parameters(), 1e-3)
    decay = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 0.01, total_iters=4 * (ROWS - WARMUP) // LANES)
    flat = nn.utils.parameters_to_vector(net.parameters()).detach()
    board, mine, version = Board(flat.nbytes), torch.empty_like(flat), 0

    obs, _ = envs.reset(seed=seed)
    reward, ended, cut = np.zeros(LANES, np.float32), np.zeros(LANES, bool), np.zeros(LANES, bool)
    with Progress() as progress:
        task = progress.add_task("training CartPole-v1", total=ROWS)
        for rows in range(0, ROWS, LANES):
            epsilon = max(0.04, 1 - rows / (0.16 * ROWS))
            action = np.where(rng.random(LANES) < epsilon, rng.integers(0, 2, LANES), greedy(actor, obs))
            writer.append(ids, {"obs": obs, "action": action}, reward, ended, cut, version)
            obs, reward, ended, cut, _ = envs.step(action)
            reward = reward.astype(np.float32)
            for _ in range(4 if rows >= WARMUP else 0):
                batch = replay.sample()
                with torch.no_grad():
                    best = net(batch.next_obs).argmax(1, keepdim=True)
                    goal = batch.reward + batch.discount * target(batch.next_obs).gather(1, best).squeeze(1)
                q = net(batch.obs).gather(1, batch.action[:, None]).squeeze(1)
                adam.zero_grad()
                nn.functional.smooth_l1_loss(q, goal).backward()
                nn.utils.clip_grad_norm_(net.parameters(), 10.0)
                adam.step()
                decay.step()
            if rows % 400 == 0:
                target.load_state_dict(net.state_dict())
                board.publish(nn.utils.parameters_to_vector(net.parameters()).detach())
            if (newer := board.fetch(mine, newer_than=version)) is not None:
                version = newer
                nn.utils.vector_to_parameters(mine, actor.parameters())
            progress.advance(task, LANES)
    envs.close()

    returns, test = [], gym.make("CartPole-v1")
    for episode in range(20):
        state, _ = test.reset(seed=1000 + episode)
        total, done = 0.0, False
        while not done:
            state, gain, end, timeout, _ = test.step(int(greedy(net, state[None])[0]))
            total, done = total + gain, end or timeout
        returns.append(total)
    test.close()
    print(
        f"evaluation: mean return {np.mean(returns):.1f} of 500 over {len(returns)} episodes, worst {min(returns):.0f}"
    )


if __name__ == "__main__":
    main()
