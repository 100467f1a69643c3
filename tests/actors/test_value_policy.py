"""The policy of action values: explores as the schedule says, or as the dial does once it is set."""

from __future__ import annotations

import numpy as np
import pytest
from test_actor import algo_of

from freewheel.actors.value_policy import ValuePolicy
from freewheel.config import WorldConfig
from freewheel.memory.dials import Dials

LANES = np.arange(4)
OBS = {"obs": np.linspace(0, 3, 4, dtype=np.float32)[:, None]}


def policy_of(epsilon: float, dials: Dials | None = None) -> ValuePolicy:
    algo = algo_of(WorldConfig(lanes=4), epsilon)
    made: ValuePolicy = algo.policy(algo.net.eval(), lambda stream: 1, range(4), 4, dials)
    return made


def choose(policy: ValuePolicy, step: int = 0) -> list[int]:
    choice = policy.choose(OBS, LANES, np.zeros(4, np.bool_), step)
    assert choice.actions is choice.columns  # what the env takes is what the row keeps
    return choice.actions["action"].tolist()  # type: ignore[no-any-return]


def test_it_takes_the_best_action_or_tries() -> None:
    policy, greedy = policy_of(0.0), policy_of(0.0).greedy(OBS)["action"].tolist()
    assert all(choose(policy) == greedy for _ in range(20))
    tried = [choose(policy_of(1.0)) for _ in range(1)]
    assert all(5 <= action <= 7 for action in tried[0])
    policy = policy_of(1.0)
    assert len({tuple(choose(policy)) for _ in range(20)}) > 1


def test_the_dial_goes_before_the_schedule_until_it_is_unset() -> None:
    dials = Dials()
    policy = policy_of(0.5, dials)
    choose(policy)
    assert policy.epsilon == pytest.approx(0.5)
    dials.set("epsilon", 0.0)
    greedy = policy.greedy(OBS)["action"].tolist()
    assert all(choose(policy) == greedy for _ in range(20))
    assert policy.epsilon == 0.0
    dials.set("epsilon", None)
    choose(policy)
    assert policy.epsilon == pytest.approx(0.5)


def test_chances_go_on_where_they_were() -> None:
    policy, other = policy_of(0.7), policy_of(0.7)
    for _ in range(7):
        choose(policy)
    assert (
        other.set_state(
            {name: np.asarray(value) if name != "random.noise" else value for name, value in policy.state().items()}
        )
        == []
    )
    assert [choose(policy) for _ in range(10)] == [choose(other) for _ in range(10)]


def test_it_needs_no_bootstraps_and_refuses_nothing() -> None:
    policy = policy_of(0.0)
    assert policy.bootstrap(OBS) is None
    assert policy.refuse(OBS) is None
    assert dict(policy.extra) == {}
