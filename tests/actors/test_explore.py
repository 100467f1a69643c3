from __future__ import annotations

import numpy as np
import pytest

from freewheel.actors.value_policy import Explorer
from freewheel.config import ExploreConfig


def course(config: ExploreConfig, steps: list[int], **more: bool) -> list[float]:
    explorer = Explorer(config, 1, 2, 0, **more)
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
    rungs = Explorer(config, 8, 2, 0).epsilon(0)
    assert rungs == pytest.approx([0.4 ** (1 + 7 * i / 7) for i in range(8)])
    assert Explorer(config, 1, 2, 0).epsilon(0) == pytest.approx([0.4])
    np.testing.assert_array_equal(Explorer(config, 8, 2, 0).epsilon(10_000), rungs)


def test_override_goes_before_the_schedule_and_floor_before_both() -> None:
    config = ExploreConfig(start=1.0, end=0.0, over_steps=10, floor=0.1)
    explorer = Explorer(config, 1, 2, 0)
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


def test_as_many_explore_as_epsilon_says_and_try_all_actions() -> None:
    explorer = Explorer(ExploreConfig(), 10_000, 4, seed=1)
    lanes, never = np.arange(10_000), np.zeros(10_000, bool)
    explores, tried = explorer.explore(np.full(10_000, 0.3), lanes, never)
    assert abs(explores.mean() - 0.3) < 0.02
    assert np.bincount(tried, minlength=4).min() > 2_300
    assert not explorer.explore(np.zeros(10_000), lanes, never)[0].any()
    assert explorer.explore(np.ones(10_000), lanes, never)[0].all()


def test_held_actions_last_up_to_the_limit_and_end_with_the_episode() -> None:
    explorer = Explorer(ExploreConfig(hold_steps=5), 1000, 3, seed=1)
    lanes, never = np.arange(1000), np.zeros(1000, bool)
    explores, places = explorer.explore(np.ones(1000), lanes, never)
    assert explores.all()
    lengths = np.ones(1000)
    goes_on = explores
    for _ in range(6):
        more, same = explorer.explore(np.zeros(1000), lanes, never)
        np.testing.assert_array_equal(same[more], places[more])
        goes_on = goes_on & more
        lengths += goes_on
    assert sorted(set(lengths)) == [1, 2, 3, 4, 5]
    assert np.bincount(lengths.astype(int))[1:].min() > 150
    explorer.explore(np.ones(1000), lanes, never)
    assert not explorer.explore(np.zeros(1000), lanes, first=np.ones(1000, bool))[0].any()


def test_lanes_hold_apart() -> None:
    explorer = Explorer(ExploreConfig(hold_steps=50), 2, 3, seed=1)
    explorer.explore(np.array([1.0, 0.0]), np.array([0, 1]), np.zeros(2, bool))
    explores, _ = explorer.explore(np.zeros(2), np.array([1, 0]), np.zeros(2, bool))
    assert explores.tolist() == [False, True]


@pytest.mark.parametrize("hold_steps", [1, 4])
def test_what_a_lane_tries_does_not_depend_on_its_company(hold_steps: int) -> None:
    config, epsilon = ExploreConfig(hold_steps=hold_steps), np.full(6, 0.5)
    together, apart = Explorer(config, 6, 5, seed=3), Explorer(config, 6, 5, seed=3)
    later = Explorer(config, 2, 5, seed=3, first_lane=4, all_lanes=6)  # another actor's, with the run's last two lanes
    every = [np.array(together.explore(epsilon, np.arange(6), np.zeros(6, bool))) for _ in range(40)]
    for lanes in (np.array([5, 1]), np.array([0]), np.array([2, 4, 3])):
        for step in range(40):
            found = np.array(apart.explore(epsilon, lanes, np.zeros(len(lanes), bool)))
            np.testing.assert_array_equal(found, every[step][:, lanes])
    for step in range(40):
        found = np.array(later.explore(epsilon[:2], np.arange(2), np.zeros(2, bool)))
        np.testing.assert_array_equal(found, every[step][:, 4:])
    assert len({tuple(tried) for tried in np.stack(every)[:, 1].T.tolist()}) == 6, "lanes try the same"


def test_exploring_goes_on_where_each_lane_was() -> None:
    first, second = (Explorer(ExploreConfig(), 3, 1000, seed=3) for _ in range(2))
    for lanes in (np.arange(3), np.array([1]), np.array([1, 2])):
        first.explore(np.ones(3), lanes, np.zeros(len(lanes), bool))
    assert first.uniforms.drawn.tolist() == [1, 3, 2]
    second.uniforms.drawn[...] = first.uniforms.drawn
    every = np.arange(3), np.zeros(3, bool)
    np.testing.assert_array_equal(first.explore(np.ones(3), *every), second.explore(np.ones(3), *every))
