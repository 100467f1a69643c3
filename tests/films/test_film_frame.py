"""What the network sees stands beside the game: oldest first, with the action it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from freewheel.films.frame import GAP, LABEL, InputView, action_names, has_images, view_of
from freewheel.worlds.catch import Catch

Array = np.ndarray[Any, Any]


def shade(value: int, *colours: int) -> Array:
    return np.full((84, 84, *colours), value, np.uint8)


def tiles(canvas: Array, width: int, side: int, count: int, columns: int = 2) -> list[int]:
    """The shade in the middle of each tile."""
    middles = [
        (i // columns * (side + GAP) + side // 2, width + GAP + i % columns * (side + GAP) + side // 2)
        for i in range(count)
    ]
    return [int(canvas[row, column, 0]) for row, column in middles]


def test_images_beside_a_mask_are_shown() -> None:
    class Env:
        observation_space = spaces.Dict(
            {"obs": spaces.Box(0, 255, (84, 84), np.uint8), "action_mask": spaces.MultiBinary(2)}
        )
        unwrapped = None

    view, frame = view_of(Env(), 2), np.full((210, 160, 3), 90, np.uint8)
    view.begin({"obs": shade(10), "action_mask": np.ones(2, np.int8)})
    view.see({"obs": shade(30), "action_mask": np.ones(2, np.int8)})
    assert tiles(view.beside(frame, 0), 160, 210, 2) == [10, 30]


@pytest.mark.parametrize("colours", [(), (1,), (3,)])
def test_frames_stand_in_order(colours: tuple[int, ...]) -> None:
    view = InputView(4, ["NOOP", "UP"])
    frame = np.full((210, 160, 3), 90, np.uint8)
    view.begin(shade(10, *colours))
    first = view.beside(frame, 1)
    side = (210 - GAP) // 2
    assert first.shape == (210 + LABEL, 160 + 2 * (side + GAP), 3)
    assert (first[:210, :160] == 90).all()
    assert tiles(first, 160, side, 4) == [10] * 4, "the first one fills the places before it"
    for value in (20, 30):
        view.see(shade(value, *colours))
    assert tiles(view.beside(frame, 0), 160, side, 4) == [10, 10, 20, 30]
    view.begin(shade(50, *colours))
    assert tiles(view.beside(frame, 0), 160, side, 4) == [50] * 4


def test_all_frames_of_a_film_are_alike_and_the_action_is_written() -> None:
    view = InputView(8, ["NOOP", "UP"])
    view.begin(shade(10))
    frame = np.zeros((30, 40, 3), np.uint8)
    drawn = [view.beside(frame, action) for action in (0, 1, 5, np.array([0.5]), None)]
    assert len({image.shape for image in drawn}) == 1
    words = [image[-LABEL:].tobytes() for image in drawn]
    assert len(set(words)) == 5
    assert all(image[-LABEL:].max() > 200 for image in drawn)


def test_what_can_be_shown() -> None:
    assert has_images(spaces.Box(0, 255, (84, 84), np.uint8))
    assert has_images(spaces.Box(0, 255, (84, 84, 3), np.uint8))
    assert not has_images(spaces.Box(0, 255, (3, 84, 84), np.uint8))
    assert not has_images(spaces.Box(0, 1, (84, 84), np.float32))
    assert not has_images(spaces.Discrete(3))
    assert action_names(Catch()) == ["LEFT", "NOOP", "RIGHT"]


def test_an_env_without_images_leaves_the_frame_as_it_is() -> None:
    frame = np.zeros((30, 40, 3), np.uint8)
    env = Catch()
    env.observation_space = spaces.Box(-1, 1, (4,))
    for view in (view_of(env, 4), view_of(Catch(), 0)):
        view.begin(np.zeros(4))
        view.see(np.ones(4))
        assert view.beside(frame, 1) is frame
    shown = view_of(Catch(), 2)
    shown.begin(shade(10))
    assert shown.beside(frame, 1).shape != frame.shape
