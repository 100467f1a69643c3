"""Sequential runs give the values of the base commit, bit for bit; stopped and resumed they give the same.

Held are eager runs on one thread. Compiled updates agree with eager ones to a tolerance: tests/learners/test_update.py
(dqn, rainbow, iqn; bf16 and fp16 too) and tests/learners/test_ppo_update.py (ppo).

When a test fails: `python tests/golden compare CASE` names the first step that differs, and the values that differ there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import golden_base
import pytest
from golden_cases import CASES
from golden_run import resumed, whole

# Where this machine has no recording the first test builds the base commit and runs it.
pytestmark = pytest.mark.timeout(120 if golden_base.recorded() else golden_base.builds.BUILD_S + golden_base.RUN_S)


@pytest.fixture(scope="module")
def base() -> dict[str, Any]:
    try:
        return golden_base.recorded_or_made()
    except golden_base.builds.BuildError as error:
        pytest.skip(f"no golden hashes for {golden_base.machine_key()}, and none can be made: {error}")


def difference(held: Mapping[str, str], found: Mapping[str, str]) -> str:
    """The names whose values differ; empty where none do."""
    names = [name for name in sorted({*held, *found}) if held.get(name) != found.get(name)]
    return f"{len(names)} of {len(held)} values differ: {', '.join(names[:12])}" if names else ""


@pytest.mark.parametrize("name", CASES)
def test_a_run_has_the_values_of_the_base(name: str, base: dict[str, Any]) -> None:
    found = whole(CASES[name])
    steps = [step for step, digest in base[name]["trace"].items() if found["trace"].get(step) != digest]
    hint = f"first seen at step {steps[0]}; see python tests/golden compare {name}" if steps else ""
    assert difference(base[name]["values"], found["values"]) + hint == ""


@pytest.mark.parametrize("name", CASES)
def test_a_run_that_was_stopped_and_resumed_has_the_same_values(name: str, base: dict[str, Any]) -> None:
    assert difference(base[name]["values"], resumed(CASES[name])) == ""


def test_every_kind_of_value_is_held(base: dict[str, Any]) -> None:
    kinds = {name.split(".")[0] for name in base["rainbow"]["values"]}
    assert kinds >= {"weights", "target", "optimizer", "random", "world", "rows", "episodes", "finished", "counter"}
    kinds = {name.split(".")[0] for name in base["ppo-normal"]["values"]}
    assert kinds >= {"weights", "optimizer", "random", "world", "rows", "stats", "history", "finished", "counter"}
