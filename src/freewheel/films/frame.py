"""A frame of a film with what the network sees beside it, oldest first, and the action it takes below."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from gymnasium import spaces

Array = np.ndarray[Any, Any]

GAP = 4
LABEL = 16  # height of the line of text
LEAST = 64  # side of the smallest tile that shows anything
BACK = 24


def shows_pictures(space: Any) -> bool:
    """Whether observations can be drawn beside the game."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
        return False
    return len(space.shape) == 2 or (len(space.shape) == 3 and space.shape[2] in (1, 3))


class Panel:
    """`begin` with an episode's first observation, `see` each later one; `beside` puts the newest ones next to a frame."""

    def __init__(self, stack: int, names: list[str]) -> None:
        self._seen: deque[Array] = deque(maxlen=stack)
        self._names = names

    def begin(self, obs: Array) -> None:
        self._seen.extend([_in_colour(obs)] * (self._seen.maxlen or 1))

    def see(self, obs: Array) -> None:
        self._seen.append(_in_colour(obs))

    def beside(self, frame: Array, action: Any) -> Array:
        """`action` None is for the last frame, which no action follows."""
        count = len(self._seen)
        columns = 1 if count == 1 else 2 if count <= 8 else 4
        rows = -(-count // columns)
        side = max((len(frame) - GAP * (rows - 1)) // rows, LEAST)
        height = max(len(frame), rows * (side + GAP) - GAP)
        width = frame.shape[1] + columns * (side + GAP)
        canvas = np.full((height + LABEL, width, 3), BACK, np.uint8)
        canvas[: len(frame), : frame.shape[1]] = frame
        for i, picture in enumerate(self._seen):
            top = i // columns * (side + GAP)
            left = frame.shape[1] + GAP + i % columns * (side + GAP)
            canvas[top : top + side, left : left + side] = _enlarged(picture, side)
        return _written(canvas, self._said(action), height)

    def _said(self, action: Any) -> str:
        if action is None:
            return "end"
        is_named = np.ndim(action) == 0 and 0 <= int(action) < len(self._names)
        return self._names[int(action)] if is_named else f"action {action}"


def names_of(env: Any) -> list[str]:
    """What an env calls its actions; none if it does not say."""
    meanings = getattr(env.unwrapped, "get_action_meanings", None)
    return [str(name) for name in meanings()] if callable(meanings) else []


def _in_colour(obs: Array) -> Array:
    obs = obs[:, :, None] if obs.ndim == 2 else obs
    return np.repeat(obs, 3, axis=2) if obs.shape[2] == 1 else np.array(obs)


def _enlarged(picture: Array, side: int) -> Array:
    """The nearest pixels: what is shown is what is there."""
    rows = np.arange(side) * picture.shape[0] // side
    columns = np.arange(side) * picture.shape[1] // side
    tile: Array = picture[rows][:, columns]
    return tile


def _written(canvas: Array, text: str, top: int) -> Array:
    from PIL import Image, ImageDraw

    image = Image.fromarray(canvas)
    ImageDraw.Draw(image).text((GAP, top + 2), text, fill=(255, 255, 255))
    return np.array(image)
