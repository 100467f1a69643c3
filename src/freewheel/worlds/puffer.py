"""PufferLib envs as vector envs: many agents in buffers that each step overwrites."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from freewheel.worlds.world import Array

FORM = ("single_observation_space", "single_action_space", "num_agents", "reset", "step")


def is_puffer(env: Any) -> bool:
    """By its attributes: PufferLib itself need not be installed."""
    return not isinstance(env, VectorEnv) and all(hasattr(env, name) for name in FORM)


class PufferVector(VectorEnv[Any, Any, Any]):
    """One lane per agent.

    Such an env begins an agent's next episode in the step that ends one and keeps no final observation. The observation before it
    is used instead: it does not matter after a termination, and a truncated episode bootstraps from it, one step too early.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.num_envs = int(env.num_agents)
        self.single_observation_space, self.single_action_space = env.single_observation_space, env.single_action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        space: Any = self.single_observation_space
        self._seen = np.empty((self.num_envs, *space.shape), space.dtype)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        obs, _ = self._env.reset(seed)
        self._see(obs)
        return obs, {}

    def step(self, actions: Any) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = self._env.step(actions)
        has_end = np.any(terminated) or np.any(truncated)
        info = {"final_obs": self._seen.copy()} if has_end else {}
        self._see(obs)
        return obs, reward, terminated, truncated, info

    def close(self, **given: Any) -> None:
        self._env.close()

    def _see(self, obs: Any) -> None:
        masks = getattr(self._env, "masks", None)
        if masks is not None and not np.all(masks):
            raise ValueError(
                f"agents {np.flatnonzero(~np.asarray(masks, np.bool_)).tolist()} are masked out, and lanes cannot pause. Keep all agents in the env"
            )
        if np.shape(obs) == self._seen.shape:  # else the world raises an error
            np.copyto(self._seen, obs, casting="unsafe")
