"""Values beyond what rewards and the discount allow, and targets beyond the support of C51: seen, and told once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import freewheel
from freewheel.algos import c51
from freewheel.algos.make import make_algo
from freewheel.algos.value_range import MOST_ROWS, PATIENCE, PersistentProblems, RewardRange
from freewheel.config import QConfig, find_algo
from freewheel.contracts import Spaces
from freewheel.memory.lanes import Lanes
from freewheel.spec import RowSpec

OBS, ACTIONS = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)


def write(lanes: Lanes, lane: int, *rewards: float) -> None:
    n = len(rewards)
    fields = {"obs": np.zeros((n, 2), np.float32), "action": np.zeros(n, np.int64)}
    false = np.zeros(n, np.bool_)
    lanes.writer([lane]).append(np.full(n, lane), fields, np.array(rewards, np.float32), false, false)


def watched(name: str, **q: Any) -> tuple[Any, Lanes]:
    config = find_algo(name).Settings("test", algo=name, q=QConfig(**q))
    algo, lanes = make_algo(config, Spaces(OBS, ACTIONS, 2)), Lanes(RowSpec.of(OBS, ACTIONS), 2, 1_000)
    algo.memory(lanes, lambda stream: 0, 0).close()
    return algo, lanes


def looks(algo: Any, **metrics: float) -> list[str]:
    """All warnings of as many looks as it takes, and of as many again."""
    return [text for _ in range(2 * PATIENCE) for text in algo.warnings(metrics)]


@pytest.mark.parametrize("first_row", [0, 7])
def test_all_rewards_count_of_rows_that_are_gone_too(first_row: int) -> None:
    lanes = Lanes(RowSpec.of(OBS, ACTIONS), 3, 10, first_row=first_row)
    seen = RewardRange(lanes)
    seen.look()
    assert (seen.low, seen.high) == (0.0, 0.0)
    write(lanes, 1, 0.5, 3.0)
    write(lanes, 2, -2.0)
    seen.look()
    assert (seen.low, seen.high) == (-2.0, 3.0)
    write(lanes, 1, *[1.0] * 25)
    seen.look()
    assert (seen.low, seen.high) == (-2.0, 3.0)
    write(lanes, 0, *[0.0] * 9, 5.0)
    seen.look()
    assert (seen.low, seen.high) == (-2.0, 5.0)
    assert seen.values(0.9) == pytest.approx((-20.0, 50.0))
    assert seen.values(1.0) == (-np.inf, np.inf)
    assert lanes.num_lanes * lanes.lane_rows < MOST_ROWS


def test_values_that_rewards_do_not_allow_are_told_once_with_the_numbers() -> None:
    algo, lanes = watched("dqn", gamma=0.9)
    write(lanes, 0, 1.0, 0.0, 0.5)
    assert looks(algo, q_min=-0.5, q_max=19.0) == []
    (text,) = looks(algo, q_min=-0.5, q_max=45.0)
    assert "between -0.5 and 45, but rewards between 0 and 1 with q.gamma=0.9 allow 0 to 10 only" in text
    assert "learner.lr" in text
    algo, lanes = watched("dqn", gamma=0.9)
    write(lanes, 0, -1.0)
    assert looks(algo, q_min=-18.0, q_max=0.9) == []
    assert "allow -10 to 0 only" in looks(algo, q_min=-18.0, q_max=2.0)[0]


def test_rows_that_were_not_seen_allow_no_judgement() -> None:
    """After a resume without the replay: the values may come from rewards of then."""
    config = find_algo("dqn").Settings("test", algo="dqn", q=QConfig(gamma=0.9))
    algo = make_algo(config, Spaces(OBS, ACTIONS, 2))
    lanes = Lanes(RowSpec.of(OBS, ACTIONS), 2, 1_000, first_row=500)
    algo.memory(lanes, lambda stream: 0, 0).close()
    write(lanes, 0, 0.0, 0.0)
    assert looks(algo, q_min=-5.0, q_max=5.0) == []
    assert "world.reward_scale" in looks(algo, q_min=-5.0, q_max=5e4)[0]


def test_sac_warns_too_and_allows_for_the_entropy() -> None:
    config = find_algo("sac").Settings("test", algo="sac")
    boxes = spaces.Box(-1, 1, (3,), np.float32)
    algo, lanes = make_algo(config, Spaces(OBS, boxes, 2)), Lanes(RowSpec.of(OBS, boxes), 2, 1_000)
    algo.memory(lanes, lambda stream: 0, 0).close()
    fields = {"obs": np.zeros((1, 2), np.float32), "action": np.zeros((1, 3), np.float32)}
    false = np.zeros(1, np.bool_)
    lanes.writer([0]).append(np.zeros(1, np.int64), fields, np.array([-1.0], np.float32), false, false)
    # Rewards of -1..0 and 3 nats at a temperature of 1, with gamma 0.99, allow -400 to 300; a margin of 2 lies beyond.
    assert looks(algo, q_min=-790.0, q_max=590.0) == []
    (text,) = looks(algo, q_min=-790.0, q_max=610.0)
    assert "with sac.gamma=0.99 allow -400 to 300 only" in text


def test_a_passing_peak_is_not_told_of() -> None:
    problems = PersistentProblems()
    for _ in range(3):
        assert not [text for _ in range(PATIENCE - 1) for text in problems.told({"a": "high"})]
        assert problems.told({}) == []
    assert [text for _ in range(PATIENCE) for text in problems.told({"a": "high", "b": "low"})] == ["high", "low"]
    assert [text for _ in range(3 * PATIENCE) for text in problems.told({"a": "high"})] == []


def test_large_values_are_told_of_where_nothing_bounds_them() -> None:
    algo, lanes = watched("dqn", gamma=1.0)
    write(lanes, 0, 1.0, -1.0)
    assert looks(algo, q_min=-900.0, q_max=900.0) == []
    assert "world.reward_scale" in looks(algo, q_min=-2e4, q_max=0.0)[0]


def test_targets_beyond_the_support_are_counted() -> None:
    """Of atoms 0, 1, 2: a value by rounding a little beyond the end is not."""
    table = torch.tensor([[[0.2, 0.3, 0.5]]]).log().expand(3, 1, 3)
    reward, discount = torch.tensor([1.0, -1.0, 1e-6]), torch.ones(3)
    rows = torch.arange(3)
    batch = {
        "obs": rows,
        "next_obs": rows,
        "action": rows * 0,
        "reward": reward,
        "discount": discount,
        "weight": discount,
    }
    config = find_algo("c51").Settings("test", algo="c51", q=QConfig(v_min=0.0, v_max=2.0, num_atoms=3))
    algo = make_algo(config, Spaces(OBS, ACTIONS, 1))
    _, outcome = algo.loss(lambda params, obs, noise, taus: table[obs], {}, {}, batch, {})
    assert outcome.above.tolist() == pytest.approx([0.5, 0.0, 0.0])
    assert outcome.below.tolist() == pytest.approx([0.0, 0.2, 0.0])
    both = c51.C51Outcome.in_order([outcome, outcome])
    assert both.above.shape == (6,)
    assert both.metrics()["target_above"] == pytest.approx(0.5 / 3)


def test_a_support_that_does_not_fit_is_told_with_the_setting_to_change() -> None:
    algo, lanes = watched("rainbow", gamma=0.99)
    write(lanes, 0, 1.0, -0.1)
    good = {"q_min": -9.0, "q_max": 9.0}
    assert looks(algo, target_below=0.05, target_above=0.05, **good) == []
    low, high = looks(algo, target_below=0.2, target_above=0.6, **good)
    assert "20 % of the targets' probability lies below q.v_min=-10" in low
    assert "Set q.v_min to the least discounted return" in low
    assert "allow -10" in low
    assert "60 % of the targets' probability lies above q.v_max=10" in high
    assert high.endswith("allow 100")


@pytest.mark.parametrize("runtime", ["sequential", "local"])
def test_a_run_says_that_its_support_is_too_narrow(
    runtime: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {
        "runtime": runtime,
        "q.v_min": -1.0,
        "q.v_max": 1.0,
        "net.hidden": (16,),
        "replay.warmup_rows": 100,
        "learner.batch_size": 16,
        "learner.ratio": 2.0,
        "learner.compile": "off",
        "eval_episodes": 0,
        "log.every_s": 0.0,
        "log.folder": str(tmp_path),
    }
    said = ""

    class Reads(freewheel.Callback):
        def on_step(self, moment: freewheel.Moment) -> None:
            nonlocal said
            said += capsys.readouterr().err
            if "v_max" in said:
                moment.stop()

    given: dict[str, Any] = {"settings": settings, "callbacks": [Reads()], "is_quiet": True, "preset": "none"}
    run = freewheel.train("CartPole-v1", algo="c51", steps=200_000, **given)
    said += capsys.readouterr().err
    assert run.result["steps"] < 200_000
    assert said.count("warning: ") == said.count("above q.v_max=1, where returns cannot be told apart") == 1, said
    assert "learner/target_above" in (run.folder / "metrics.csv").read_text().partition("\n")[0]
