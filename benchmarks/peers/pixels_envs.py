"""The env of a peer: Pong as other projects prepare it, or frames of the same shape."""

import importlib
from typing import Any

import gymnasium

from .frames_env import Frames
from .pixels_settings import GAME, SIZE, STACK


def make_one(kind: str) -> gymnasium.Env[Any, Any]:
    """One env with its frames stacked: observations of (4, 84, 84)."""
    if kind == "frames":
        return gymnasium.wrappers.FrameStackObservation(Frames(), STACK)
    gymnasium.register_envs(importlib.import_module("ale_py"))
    env = gymnasium.make(GAME, frameskip=1, repeat_action_probability=0.0)
    env = gymnasium.wrappers.AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=SIZE, grayscale_obs=True)
    env = gymnasium.wrappers.TransformReward(env, lambda reward: max(-1.0, min(1.0, float(reward))))
    return gymnasium.wrappers.FrameStackObservation(env, STACK)
