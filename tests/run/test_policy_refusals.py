"""What is refused about several policies: names, settings and files of theirs that cannot work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from run_cases import RUNTIMES
from test_two_policies import BLUE, POLICIES, RED, train

import freewheel
from freewheel.errors import ConfigError

every_run = pytest.mark.parametrize("runtime", RUNTIMES)


@pytest.mark.parametrize("name", ["", "/tmp/x", "..", "a/b", "a b\n", "a\n", "ü", "a" * 65, "step-000000100", "red", 3])
@every_run
def test_a_group_needs_a_name_that_can_be_a_file(runtime: str, name: Any, tmp_path: Path) -> None:
    settings = {"world.kwargs": json.dumps({"names": ["red", name]})}
    with pytest.raises(ConfigError, match="the world has a group .* needs its own name"):
        train(tmp_path, runtime, policies={"red": RED, name: BLUE}, settings=settings)
    assert list(tmp_path.iterdir()) == []


def test_names_of_the_longest_kind_are_trained_and_loaded(tmp_path: Path) -> None:
    names = ["Red_1-a", "b" * 64]
    policies = dict(zip(names, POLICIES.values(), strict=True))
    run = train(tmp_path, "sequential", policies=policies, settings={"world.kwargs": json.dumps({"names": names})})
    assert [run.policy(name).config.algo for name in names] == ["dqn", "ppo"]


@pytest.mark.parametrize("policies", [{"": {}}, {"red": {}}])
def test_an_env_with_one_policy_takes_no_policies(policies: Any, tmp_path: Path) -> None:
    settings = {"log.folder": str(tmp_path), "runtime": "sequential"}
    with pytest.raises(ConfigError, match="the env has a single policy, so policies= is not needed"):
        freewheel.train("CartPole-v1", steps=100, policies=policies, settings=settings, preset="none")


def test_a_resumed_run_keeps_its_policies(tmp_path: Path) -> None:
    run = train(tmp_path, "sequential", 100)
    with pytest.raises(ConfigError, match="policies was given, but a resumed run keeps its own"):
        freewheel.train(resume=run.folder, steps=200, policies={"red": {"learner.lr": 1.0}})
