"""The corpus of sick envs: each run must end as its row of the table says, and leave nothing."""

from __future__ import annotations

import re
from pathlib import Path

import fault_fixtures
import pytest
from fault_fixtures import Starter
from fault_runs import TIMES, flags
from sick_corpus import Case, all_cases, outcome_of, quick_cases

from freewheel import errors
from freewheel.store.folder import open_run

starter = fault_fixtures.starter
nursery = fault_fixtures.nursery

CASES = quick_cases() if TIMES == 1 else all_cases()
OURS = [
    name for name, thing in vars(errors).items() if isinstance(thing, type) and issubclass(thing, errors.FreewheelError)
]
SHOWN = re.compile(rf"^({'|'.join(OURS)}): (.*(?:\n(?!Traceback).*)*)", re.MULTILINE)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_f29_a_sick_env_ends_as_the_table_says(case: Case, nursery: Starter, tmp_path: Path) -> None:
    words = ["train", case.env, "--preset", "none", "--json", "--quiet", *flags(case.settings())]
    run = nursery.call(tmp_path, "freewheel.cli.main:main", words)
    code = run.wait(100)
    expected, told = outcome_of(case), SHOWN.findall(run.err)
    assert code == expected.code, run.err
    last, text = told[-1] if told else ("", "")
    assert re.fullmatch(expected.error, last), run.err
    assert re.search(expected.words, text, re.DOTALL), run.err
    (folder,) = (run.folder / "runs").iterdir()
    assert re.fullmatch(expected.status, open_run(folder).status()["status"])
    saved = run.checkpoint()
    assert saved is not None
    assert saved.state["steps"] >= 20
