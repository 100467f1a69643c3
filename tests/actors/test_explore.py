from __future__ import annotations

import numpy as np
import pytest

from freewheel.actors.explore import Explorer
from freewheel.config import ExploreConfig


def course(config: ExploreConfig, steps: list[int], **more: bool) -> list[float]:
    explorer = Explorer(config, 1, **more)
    return [explorer.epsilon(step)[0] for step in steps]


def test_linear() -> None:
    config = ExploreConfig(start=1.0, end=0.2, over_steps=100)
    assert course(config, [0, 50, 100, 1000]) == pytest.approx([1.0, 0.6, 0.2, 0.2])


def test_exponential() -> None:
    config = ExploreConfig(schedule="exponential", start=1.0, end=0.01, over_steps=100)
    assert course(config, [0, 50, 100, 1000]) == pytest.approx([1.0, 0.1, 0.01, 0.01])


def test_constant() -> None:
    assert course(ExploreConfig(schedule="constant", end=0.3), [0, 9999]) == [0.3, 0.3]


def test_the_ladder_is_that_of_ape_x() -> None:
    config = ExploreConfig(schedule="ladder", ladder_base=0.4, ladder_power=7.0)
    rungs = Explorer(config, 8).epsilon(0)
    assert rungs == pytest.approx([0.4 ** (1 + 7 * i / 7) for i in range(8)])
    assert Explorer(config, 1).epsilon(0) == pytest.approx([0.4])
    np.testing.assert_array_equal(Explorer(config, 8).epsilon(10_000), rungs)


def test_override_goes_before_the_schedule_and_floor_before_both() -> None:
    config = ExploreConfig(start=1.0, end=0.0, over_steps=10, floor=0.1)
    explorer = Explorer(config, 1)
    assert explorer.epsilon(10) == [0.1]
    explorer.override = 0.5
    assert explorer.epsilon(10) == [0.5]
    explorer.override = 0.01
    assert explorer.epsilon(0) == [0.1]
    explorer.override = None
    assert explorer.epsilon(0) == [1.0]


def test_pulses() -> None:
    config = ExploreConfig(schedule="constant", end=0.1, pulse_every_steps=100, pulse_steps=10, pulse_epsilon=0.6)
    assert course(config, [0, 9, 99, 100, 109, 110, 205]) == [0.1, 0.1, 0.1, 0.6, 0.6, 0.1, 0.6]
    higher = ExploreConfig(schedule="constant", end=0.9, pulse_every_steps=100, pulse_steps=10, pulse_epsilon=0.6)
    assert course(higher, [100]) == [0.9]


def test_noise_explores_in_place_of_the_schedule() -> None:
    assert course(ExploreConfig(), [0], has_noise=True) == [0.0]
    assert course(ExploreConfig(floor=0.02), [0], has_noise=True) == [0.02]
    assert course(ExploreConfig(override=0.5), [0], has_noise=True) == [0.5]
