from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces

from freewheel.nets.inputs import Vector


def test_bounded_numbers_become_minus_one_to_one_and_the_rest_stays() -> None:
    low = np.array([-1.2, -0.07, -np.inf, -3.4e38, 5.0], np.float32)
    high = np.array([0.6, 0.07, np.inf, 3.4e38, 9.0], np.float32)
    vector = Vector(spaces.Box(low, high), stack=1, rescale=True)
    seen = vector(torch.tensor([[-1.2, 0.07, 3.0, -4.0, 7.0], [0.6, -0.07, 0.0, 0.0, 9.0]]))
    torch.testing.assert_close(seen, torch.tensor([[-1.0, 1.0, 3.0, -4.0, 0.0], [1.0, -1.0, 0.0, 0.0, 1.0]]))
    assert not list(vector.parameters())
    assert not list(vector.buffers())


def test_bytes_and_choices_are_left_alone() -> None:
    space = spaces.Dict(a=spaces.Box(0, 255, (2,), np.uint8), b=spaces.Discrete(3))
    obs = {"a": torch.tensor([[255, 0]], dtype=torch.uint8), "b": torch.tensor([2])}
    torch.testing.assert_close(Vector(space, rescale=True)(obs), Vector(space)(obs))


def test_stacks_are_rescaled_frame_by_frame() -> None:
    vector = Vector(spaces.Box(np.zeros(2, np.float32), np.array([2, 4], np.float32)), stack=2, rescale=True)
    assert vector(torch.tensor([[[0.0, 0.0], [2.0, 4.0]]])).tolist() == [[-1, -1, 1, 1]]
