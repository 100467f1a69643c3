"""The account of any figures, and of any phase: nothing raises, nothing lies outside its bounds, nothing is unexplained."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freewheel.config import find_algo
from freewheel.config.algos import names as algo_names
from freewheel.config.assemble import known
from freewheel.report import phases
from freewheel.report.account import RoleTime, account, table
from freewheel.report.verdict import WORDS

seconds = st.one_of(st.floats(0, 1e6), st.floats(min_value=0), st.just(0.0))
names = st.one_of(st.sampled_from(phases.PHASES), st.text(max_size=5))
role_times = st.builds(
    RoleTime,
    st.sampled_from(["actor 0", "actor 1", "learner", "x"]),
    st.sampled_from(["actor", "learner", "supervisor", "x"]),
    seconds,
    st.dictionaries(names, seconds, max_size=8),
    st.dictionaries(st.sampled_from(phases.COUNTERS), st.integers(0, 2**64 - 1), max_size=4),
    st.dictionaries(st.sampled_from(phases.GAUGES), st.floats(min_value=0), max_size=4),
    seconds,
    st.integers(0, 9),
    st.booleans(),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(role_times, max_size=12), seconds, seconds, st.booleans(), seconds)
def test_any_figures_give_an_account(
    roles: list[RoleTime], ratio_target: float, ratio: float, is_free: bool, warmup_s: float
) -> None:
    found = account(roles, ratio_target=ratio_target, ratio=ratio, is_free=is_free, warmup_s=warmup_s)
    assert set(found.roles) == {role.name for role in roles}
    for one in found.roles.values():
        assert all(0 <= share <= 1 for share in (one.closed, one.useful, *one.phases.values()))
        assert sum(one.phases.values()) == pytest.approx(one.closed)
        assert one.useful <= one.closed + 1e-9
    assert found.verdict.endswith(".")
    assert max(len(line) for line in table(found).splitlines()) <= 80
    json.dumps(found.to_dict(), allow_nan=False)
    assert all(0 <= share <= 1 for share in found.metrics().values())


PAGE = (Path(__file__).parents[2] / "docs" / "account.md").read_text()


def test_every_phase_is_explained() -> None:
    for name in phases.PHASES:
        assert f"| `{name}` |" in PAGE, name


def test_the_settings_it_advises_exist() -> None:
    texts = [advice for _, advice in WORDS.values()]
    flags = [flag.replace("-", "_") for text in texts for flag in re.findall(r"--([a-z]+\.[a-z-]+)", text)]
    assert flags
    there = {setting for algo in algo_names() for setting in known(find_algo(algo).Settings)}
    assert [flag for flag in flags if flag.replace(".no_", ".") not in there] == []
    for algo in algo_names():
        assert find_algo(algo).fewer_updates in known(find_algo(algo).Settings)
