"""Raw observations as floats: every space, stacks, and what counts as an image."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from freewheel.errors import ConfigError
from freewheel.nets.inputs import Image, Vector, example, is_image


def test_numbers_stay_as_they_are_and_bytes_become_fractions() -> None:
    floats = Vector(spaces.Box(-9, 9, (2, 2), np.float64))(
        torch.tensor([[[1.0, -2.0], [3.0, 4.5]]], dtype=torch.float64)
    )
    assert floats.dtype == torch.float32
    assert floats.tolist() == [[1.0, -2.0, 3.0, 4.5]]
    assert Vector(spaces.Box(0, 255, (2,), np.uint8))(torch.tensor([[0, 255]], dtype=torch.uint8)).tolist() == [[0, 1]]
    assert Vector(spaces.Box(-9, 9, (2,), np.int32))(torch.tensor([[-3, 9]], dtype=torch.int32)).tolist() == [[-3, 9]]
    assert Vector(spaces.MultiBinary(3))(torch.tensor([[0, 1, 1]], dtype=torch.int8)).tolist() == [[0, 1, 1]]
    assert Vector(spaces.Box(-1, 1, ()))(torch.tensor([0.5, 0.25])).tolist() == [[0.5], [0.25]]


def test_choices_become_one_hots_from_their_start() -> None:
    assert Vector(spaces.Discrete(3))(torch.tensor([2, 0])).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert Vector(spaces.Discrete(3, start=5))(torch.tensor([5, 7])).tolist() == [[1, 0, 0], [0, 0, 1]]
    several = Vector(spaces.MultiDiscrete([2, 3], start=[0, 10]))
    assert several.size == 5
    assert several(torch.tensor([[1, 10], [0, 12]])).tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]
    assert Vector(spaces.MultiDiscrete([2, 2]))(torch.tensor([[1, 0]])).tolist() == [[0, 1, 1, 0]]


def test_nested_spaces_are_put_side_by_side_by_name() -> None:
    space = spaces.Dict(bag=spaces.Tuple((spaces.Discrete(2), spaces.Box(-1, 1, (1,)))), pos=spaces.Box(-1, 1, (2,)))
    obs = {"pos": torch.tensor([[0.1, 0.2]]), "bag.1": torch.tensor([[0.3]]), "bag.0": torch.tensor([1])}
    assert Vector(space)(obs)[0].tolist() == pytest.approx([0, 1, 0.3, 0.1, 0.2])


def test_a_stack_is_seen_frame_by_frame() -> None:
    assert Vector(spaces.Discrete(2), stack=3)(torch.tensor([[0, 1, 1]])).tolist() == [[1, 0, 0, 1, 0, 1]]
    boxes = Vector(spaces.Box(-1, 1, (2,)), stack=2)
    assert boxes.size == 4
    assert boxes(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])).tolist() == [[1, 2, 3, 4]]


@given(
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=4), stack=st.integers(1, 3), seed=st.integers(0, 2**31 - 1)
)
@settings(max_examples=50, deadline=None)
def test_one_hots_are_what_a_loop_would_set(counts: list[int], stack: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    starts = rng.integers(-3, 4, len(counts))
    values = starts + rng.integers(0, counts, (2, stack, len(counts)))
    want = [
        [float(values[b, s, i] == starts[i] + k) for s in range(stack) for i, n in enumerate(counts) for k in range(n)]
        for b in range(2)
    ]
    space = spaces.MultiDiscrete(counts, start=starts.tolist())
    given_obs = torch.from_numpy(values if stack > 1 else values[:, 0])
    assert Vector(space, stack)(given_obs).tolist() == want


def test_images_become_channels_first() -> None:
    for shape, stack, want in [
        ((84, 84, 3), 1, (3, 84, 84)),
        ((3, 84, 84), 1, (3, 84, 84)),
        ((84, 84), 1, (1, 84, 84)),
        ((84, 84), 4, (4, 84, 84)),
        ((210, 160, 3), 2, (6, 210, 160)),
        ((1, 20, 30), 3, (3, 20, 30)),
    ]:
        space = spaces.Box(0, 255, shape, np.uint8)
        assert is_image(space)
        assert tuple(Image(space, stack)(example(space, stack)).shape) == (2, *want)


def test_pixels_and_frames_keep_their_places() -> None:
    space = spaces.Box(0, 255, (6, 5, 3), np.uint8)
    frames = np.random.default_rng(1).integers(0, 256, (2, 4, 6, 5, 3), np.uint8)
    made = Image(space, 4)(torch.from_numpy(frames)).numpy()
    for frame in range(4):
        for colour in range(3):
            np.testing.assert_allclose(made[:, 3 * frame + colour], frames[:, frame, :, :, colour] / np.float32(255))


def test_only_bytes_in_two_or_three_dimensions_are_taken_for_images() -> None:
    assert not is_image(spaces.Box(0, 1, (84, 84, 3), np.float32))
    assert not is_image(spaces.Box(0, 255, (128,), np.uint8))
    assert not is_image(spaces.Discrete(4))


def test_examples_are_of_the_space() -> None:
    for space in (
        spaces.Box(2, 3, (2,), np.float32),
        spaces.Discrete(3, start=-2),
        spaces.MultiDiscrete([2, 3], start=[4, 5]),
        spaces.MultiBinary(2),
        spaces.Box(0, 255, (3, 4), np.uint8),
    ):
        made = example(space)
        assert isinstance(made, torch.Tensor)
        value = made[0].numpy()
        assert space.contains(np.int64(value) if isinstance(space, spaces.Discrete) else value), space


def test_spaces_without_numbers_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"part 'name' of the observation space is Text.*Wrap the env"):
        Vector(spaces.Dict(name=spaces.Text(5)))
    with pytest.raises(ConfigError, match="the observation space is Text"):
        Vector(spaces.Text(5))
    with pytest.raises(ConfigError, match=r"needs an image.*Discrete\(3\).*net.body=mlp"):
        Image(spaces.Discrete(3))
