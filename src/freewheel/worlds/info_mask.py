"""Envs that give their mask of allowed actions in info: the mask becomes the part `action_mask` of the observation.

Rows, replays and policies then treat it as any other mask; the network sees what it would see without one.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from freewheel.errors import Breach, ConfigError
from freewheel.spec import MASK, Space, choices
from freewheel.worlds.world import Array

OBS = "obs"  # the part that has what the env shows, unless it shows a Dict
OFF = "Set world.info_mask to off if it is no mask of allowed actions."


class InfoMask(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One env. Results that break the contract are passed on: the world says what is wrong with them."""

    def __init__(self, env: gymnasium.Env[Any, Any], name: str) -> None:
        super().__init__(env)
        self._num_actions = num_masked(name, env.observation_space, env.action_space)
        self.observation_space = masked_space(env.observation_space, self._num_actions)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        result: Any = self.env.reset(seed=seed, options=options)
        if not (isinstance(result, tuple) and len(result) == 2):
            return result
        return self._joined(*result), result[1]

    def step(self, action: Any) -> Any:
        result: Any = self.env.step(action)
        if not (isinstance(result, tuple) and len(result) == 5):
            return result
        observed, reward, terminated, truncated, info = result
        return self._joined(observed, info, is_over=bool(terminated)), reward, terminated, truncated, info

    def _joined(self, observed: Any, info: Any, is_over: bool = False) -> Any:
        given = info.get(MASK) if isinstance(info, dict) else None
        if given is None and not is_over:
            raise vanished()
        everything = np.ones(self._num_actions, np.int8)
        return joined(observed, everything if given is None else mask_of(given, self._num_actions))


class VectorInfoMask(gymnasium.vector.VectorWrapper[Any, Any, Any, Any, Any]):
    """A vector env, in any of its autoreset modes."""

    def __init__(self, env: gymnasium.vector.VectorEnv[Any, Any, Any], name: str) -> None:
        super().__init__(env)
        seen = env.single_observation_space
        self._num_actions = num_masked(name, seen, env.single_action_space)
        self.single_observation_space = masked_space(seen, self._num_actions)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        result: Any = self.env.reset(seed=seed, options=options)
        if not (isinstance(result, tuple) and len(result) == 2):
            return result
        begun = (options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_))
        return joined(result[0], self._masks(result[1], begun)), result[1]

    def step(self, actions: Any) -> Any:
        result: Any = self.env.step(actions)
        if not (isinstance(result, tuple) and len(result) == 5):
            return result
        observed, reward, terminated, truncated, info = result
        goes_on = ~np.asarray(terminated, np.bool_)
        if self.metadata.get("autoreset_mode") is AutoresetMode.SAME_STEP:
            info = self._with_finals(info, ~goes_on, np.asarray(truncated, np.bool_))
            goes_on = np.ones(self.num_envs, np.bool_)  # the masks beside them are of the next episodes
        return joined(observed, self._masks(info, goes_on)), reward, terminated, truncated, info

    def _with_finals(self, info: Any, terminated: Array, truncated: Array) -> Any:
        """Joins the final observations of the lanes whose episode ended to their masks."""
        if "final_obs" not in info:
            return info
        given, finals = info.get("final_info"), np.full(self.num_envs, None, object)
        found = self._masks(given if isinstance(given, dict) else {}, truncated & ~terminated)
        for lane in np.flatnonzero(terminated | truncated).tolist():
            finals[lane] = joined(lane_of(info["final_obs"], lane), found[lane])
        return {**info, "final_obs": finals}

    def _masks(self, info: Any, needed: Array) -> Array:
        """The masks of all lanes; where none is needed and none is given, everything is allowed."""
        masks = np.ones((self.num_envs, self._num_actions), np.int8)
        given = info.get(MASK)
        has = np.zeros(self.num_envs, np.bool_) if given is None else info.get(f"_{MASK}", np.ones_like(needed))
        if (needed & ~has).any():
            raise vanished()
        for lane in np.flatnonzero(has).tolist():
            masks[lane] = mask_of(given[lane], self._num_actions)
        return masks


def vanished() -> Breach:
    cure = "An env that masks actions gives it at every reset and step; only where an episode terminated it may be left out."
    return Breach("gave no info['action_mask']", f"{cure} {OFF}")


def mask_at_reset(env: Any, seed: int) -> Any:
    """What the env gives as its mask at a reset; None where its observation has one. An env that fails here fails in the run too,
    which reports it.
    """
    space = getattr(env, "single_observation_space", None) or env.observation_space
    if isinstance(space, spaces.Dict) and MASK in space.spaces:
        return None
    try:
        _, info = env.reset(seed=seed)
        return info.get(MASK)
    except Exception:
        return None


def num_masked(name: str, obs_space: Space, action_space: Space) -> int:
    """How many numbers a mask of these actions has. Refuses spaces that can have no mask in info."""
    if isinstance(obs_space, spaces.Dict) and MASK in obs_space.spaces:
        raise ConfigError(
            f"{name} has the mask {MASK!r} in its observation, which is used; world.info_mask=on is for one in info. Leave it out."
        )
    num_actions = sum(choices(action_space)[0])
    if not num_actions:
        raise ConfigError(
            f"{name} gives info['action_mask'], which needs discrete actions; it has {action_space}. {OFF}"
        )
    return num_actions


def masked_space(space: Space, num_actions: int) -> spaces.Dict:
    parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {OBS: space}
    return spaces.Dict({**parts, MASK: spaces.MultiBinary(num_actions)})


def joined(observed: Any, mask: Array) -> dict[str, Any]:
    """An observation, or a batch of them, with its mask."""
    return {**(observed if isinstance(observed, dict) else {OBS: observed}), MASK: mask}


def mask_of(given: Any, num_actions: int) -> Array:
    """A mask as rows keep it. It may be given as an array or a list, or in parts: one for each of several choices."""
    parts = given if isinstance(given, (tuple, list)) else (given,)
    mask = np.concatenate([np.ravel(part) for part in parts]) if len(parts) else np.empty(0)
    if mask.dtype.kind not in "biuf" or mask.size != num_actions:
        raise Breach(
            f"gave info['action_mask'] with {mask.size} values of dtype {mask.dtype}",
            f"Give {num_actions} numbers or bools, one for each action. {OFF}",
        )
    if (mask.dtype.kind == "f" and not np.isfinite(mask).all()) or (mask < 0).any():
        raise Breach(
            f"gave info['action_mask'] with {mask.min():g}",
            f"Give 1 for an allowed action and 0 for a forbidden one. {OFF}",
        )
    return np.asarray(mask != 0, np.int8)


def lane_of(rows: Any, lane: int) -> Any:
    """One lane's part of final observations: an array with a row or an object per lane, or a nest of such arrays."""
    if isinstance(rows, dict):
        return {name: lane_of(part, lane) for name, part in rows.items()}
    return tuple(lane_of(part, lane) for part in rows) if isinstance(rows, tuple) else rows[lane]
