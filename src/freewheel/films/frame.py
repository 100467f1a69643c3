"""Draws the network's input beside a frame of a film, oldest image first, and its action below."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from gymnasium import spaces

from freewheel.contracts import Array
from freewheel.nets.masks import without_mask

GAP = 4
LABEL = 16  # height of the line of text
LEAST = 64  # side of the smallest tile that shows anything
BACK = 24


def has_images(space: Any) -> bool:
    """Whether observations can be drawn."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
        return False
    return len(space.shape) == 2 or (len(space.shape) == 3 and space.shape[2] in (1, 3))


def view_of(env: Any, stack: int) -> InputView:
    """The view of an env's images; empty for other observations, and for a stack of 0."""
    space, rest = without_mask(env.observation_space)
    return InputView(stack, action_names(env), rest) if stack and has_images(space) else InputView(0, [])


class InputView:
    """The newest `stack` observations. `begin` with the first of an episode, `see` each later one, and draw them `beside` a frame.

    `part` is the name of the images in observations that have a mask too.
    """

    def __init__(self, stack: int, names: list[str], part: str | None = None) -> None:
        self._seen: deque[Array] = deque(maxlen=stack)
        self._names, self._part = names, part

    def begin(self, obs: Any) -> None:
        for _ in range(self._seen.maxlen or 0):
            self.see(obs)

    def see(self, obs: Any) -> None:
        if self._seen.maxlen:
            self._seen.append(_in_colour(obs if self._part is None else obs[self._part]))

    def beside(self, frame: Array, action: Any) -> Array:
        """`action` None is for the last frame of an episode. An empty view leaves the frame as it is."""
        count = len(self._seen)
        if not count:
            return frame
        from PIL import Image, ImageDraw

        columns = 1 if count == 1 else 2 if count <= 8 else 4
        rows = -(-count // columns)
        side = max((len(frame) - GAP * (rows - 1)) // rows, LEAST)
        height = max(len(frame), rows * (side + GAP) - GAP)
        width = frame.shape[1] + columns * (side + GAP)
        canvas = Image.new("RGB", (width, height + LABEL), (BACK, BACK, BACK))
        canvas.paste(Image.fromarray(frame))
        for i, picture in enumerate(self._seen):
            place = (frame.shape[1] + GAP + i % columns * (side + GAP), i // columns * (side + GAP))
            # The nearest pixels, so that nothing is blurred.
            canvas.paste(Image.fromarray(picture).resize((side, side), Image.Resampling.NEAREST), place)
        ImageDraw.Draw(canvas).text((GAP, height + 2), self._label(action), fill=(255, 255, 255))
        return np.array(canvas)

    def _label(self, action: Any) -> str:
        if action is None:
            return "end"
        is_named = np.ndim(action) == 0 and 0 <= int(action) < len(self._names)
        return self._names[int(action)] if is_named else f"action {action}"


def action_names(env: Any) -> list[str]:
    """The env's names of its actions, if it has any."""
    meanings = getattr(env.unwrapped, "get_action_meanings", None)
    return [str(name) for name in meanings()] if callable(meanings) else []


def _in_colour(obs: Array) -> Array:
    obs = obs[:, :, None] if obs.ndim == 2 else obs
    return np.repeat(obs, 3, axis=2) if obs.shape[2] == 1 else np.array(obs)
