"""The contracts are true: every part that comes with the package has the members that `contracts.py` names."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from freewheel import contracts
from freewheel.actors.actor import Actor
from freewheel.actors.sample_policy import SamplePolicy
from freewheel.actors.value_policy import ValuePolicy
from freewheel.config import find_algo
from freewheel.config.algos import names
from freewheel.learners.learner import Learner
from freewheel.memory.ratio_pace import RatioPace
from freewheel.memory.replay import ReplayLesson, ReplayMemory
from freewheel.memory.rollout import RolloutLesson, RolloutMemory
from freewheel.memory.rollout_pace import RolloutPace

PARTS: list[tuple[type, type]] = [
    (contracts.Policy, SamplePolicy),
    (contracts.Policy, ValuePolicy),
    (contracts.Lesson, ReplayLesson),
    (contracts.Lesson, RolloutLesson),
    (contracts.Memory, ReplayMemory),
    (contracts.Memory, RolloutMemory),
    (contracts.Pace, RatioPace),
    (contracts.Pace, RolloutPace),
    (contracts.Role, Actor),
    (contracts.Role, Learner),
    *((contracts.Algo, find_algo(name)) for name in names()),
]


def missing(contract: type, part: type) -> list[str]:
    """Methods that the part lacks or that take fewer arguments, and attributes that neither its class nor its source has."""
    wanted = {name: method for name, method in vars(contract).items() if inspect.isfunction(method) and name[0] != "_"}
    found = [name for name, method in wanted.items() if not _takes(getattr(part, name, None), method)]
    source = "".join(inspect.getsource(base) for base in part.__mro__[:-1])
    return found + [
        name for name in contract.__annotations__ if not hasattr(part, name) and f"self.{name}" not in source
    ]


def _takes(own: Any, method: Any) -> bool:
    try:
        inspect.signature(own).bind(*inspect.signature(method).parameters)
    except TypeError:
        return False
    return True


@pytest.mark.parametrize(("contract", "part"), PARTS, ids=lambda one: one.__module__.rpartition(".")[2])
def test_every_part_keeps_its_contract(contract: type, part: type) -> None:
    assert missing(contract, part) == []


def test_a_broken_contract_is_seen() -> None:
    class Late(RatioPace):
        def show(self) -> None: ...  # type: ignore[override]

    assert missing(contracts.Pace, Late) == ["show"]
    assert "lesson" in missing(contracts.Memory, Late)
    assert "num_samples" in missing(contracts.Memory, Late)
