"""What a benchmark tells of a run's account."""

from __future__ import annotations

from typing import Any

import pytest

from freewheel.bench.account import BESIDE, USEFUL, sentence, summary, useful_share
from freewheel.report.phases import PHASES


def account(binds: str) -> dict[str, Any]:
    return {
        "verdict": "The learner binds.",
        "binds": binds,
        "roles": {
            "learner": {"kind": "learner", "closed": 0.99, "phases": {"start": 0.5, "compute": 0.4, "sample": 0.1}},
            "actor-0": {"kind": "actor", "closed": 0.995, "phases": {"env": 0.3, "infer": 0.6, "wait_ratio": 0.1}},
            "supervisor": {"kind": "supervisor", "closed": 1.0, "phases": {"watch": 1.0}},
        },
    }


def test_start_and_compile_do_not_count() -> None:
    phases = {"start": 0.2, "compile": 0.3, "compute": 0.4, "sample": 0.05, "stop": 0.05}
    assert useful_share(phases) == pytest.approx(0.4 / 0.45)
    assert useful_share({"start": 1.0}) == 0.0


def test_the_phases_it_names_are_those_of_the_ledger() -> None:
    assert set(BESIDE) | USEFUL <= set(PHASES)


def test_the_binding_role_is_the_one_that_the_account_names() -> None:
    found = summary(account("learner"))
    assert found is not None
    assert (found["closed"], found["binding"], found["binding_useful"]) == (0.99, "learner", 0.8)
    assert sentence(found) == "account closed to 99.0 %; learner spends 80 % on useful work. The learner binds."
    found = summary(account("actors"))
    assert found is not None
    assert (found["binding"], found["binding_useful"]) == ("actor-0", 0.9)


def test_the_busiest_role_binds_when_none_is_named() -> None:
    found = summary(account("neither"))
    assert found is not None
    assert found["binding"] == "actor-0"


@pytest.mark.parametrize("given", [None, {}, {"roles": {}}])
def test_a_run_without_an_account_is_none(given: dict[str, Any] | None) -> None:
    assert summary(given) is None


def test_what_is_missing_is_left_out() -> None:
    assert summary({"verdict": "Nothing ran.", "roles": {"learner": {}}}) == {"verdict": "Nothing ran."}
    assert summary({"roles": {"learner": {"closed": 0.5}}}) == {"closed": 0.5}
