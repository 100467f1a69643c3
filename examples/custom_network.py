"""A network and a loss of your own.  Run: python examples/custom_network.py"""

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

import freewheel


class Waves(nn.Module):
    """A body: observations [B, ...] to features [B, F]. The algorithm adds its head, for any F."""

    def __init__(self, obs_space: spaces.Box) -> None:
        super().__init__()
        self.frequencies = nn.Linear(obs_space.shape[0], 64)
        self.mix = nn.Linear(128, 128)

    def forward(self, obs: Tensor) -> Tensor:
        waves = self.frequencies(obs)
        return self.mix(torch.cat([waves.sin(), waves.cos()], dim=-1)).relu()


def cautious_loss(forward: Any, params: Any, target: Any, batch: Any, draws: Any) -> tuple[Tensor, freewheel.Outcome]:
    """DQN with a penalty on large values. forward(params, obs, noise, taus) runs the network.

    batch["discount"] is gamma^m of the m steps in batch["reward"], and 0 where the episode terminated.
    """
    with torch.no_grad():
        next_value = forward(target, batch["next_obs"], None, None).max(1).values
        goal = batch["reward"] + batch["discount"] * next_value
    q = forward(params, batch["obs"], None, None)
    taken = q.gather(1, batch["action"].unsqueeze(1)).squeeze(1)
    td = (goal - taken).detach()
    loss = (batch["weight"] * nn.functional.smooth_l1_loss(taken, goal, reduction="none")).mean()
    return loss + 1e-4 * q.square().mean(), freewheel.Outcome(priorities=td.abs(), q=q.detach(), td=td)


def main(steps: int = 30_000, folder: str = "runs") -> float:
    run = freewheel.train("CartPole-v1", steps=steps, body=Waves, loss=cautious_loss, settings={"log.folder": folder})
    policy = freewheel.load(run.folder, body=Waves)  # a checkpoint holds weights, no code
    print(f"evaluation: {run.result['eval_return_mean']:.1f}; pushes {policy.act([0.0, 0.0, 0.1, 0.0])}")
    return float(run.result["eval_return_mean"])


if __name__ == "__main__":
    main()
