"""F23: a process that an env or a loss ends with exit code 0 has died, and sys.exit() in an env is an error."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import fault_fixtures
import pytest
from fault_fixtures import Starter
from fault_runs import TIMES, Run, assert_all_gone

starter = fault_fixtures.starter

ONE = {"local.actors": 1, "local.restarts": 1, "checkpoint.every_steps": 100}
WORLDS = {"inline": "fault_envs:Leaves", "pool": "fault_envs:Leaves", "vector": "fault_envs:leaves_together"}
# Runtime, world, how the env leaves. In the sequential runtime os._exit() ends the command itself, unless a pool steps the env.
CASES = [
    ("local", "inline", "os._exit"),
    ("local", "pool", "os._exit"),
    ("local", "vector", "os._exit"),
    ("local", "inline", "sys.exit"),
    ("sequential", "inline", "sys.exit"),
    ("sequential", "vector", "sys.exit"),
    ("sequential", "pool", "os._exit"),
    ("sequential", "pool", "sys.exit"),
]
# A loss that ends its process, and the gradient workers of that run.
LOSSES = {"learner_leaves": 1, "worker_leaves": 2}
LOCAL_ONLY = ("local.actors", "local.restarts", "learner.workers")
PARTS = range(TIMES)


class Left:
    """The runs by name, all ended."""

    def __init__(self, starter: Starter, folder: Any) -> None:
        self.starter, self.runs, self.codes = starter, dict[str, Run](), dict[str, int]()
        for part in PARTS:
            for case in CASES:
                runtime, kind, how = case
                own = {
                    "runtime": runtime,
                    "world.kind": kind,
                    "world.kwargs": json.dumps({"how": how, "at": 40 + 7 * part}),
                }
                if kind == "pool":
                    own |= {"world.workers": 2, "world.threads": 1}
                given = ONE | own | ({} if runtime == "local" else dict.fromkeys(LOCAL_ONLY))
                self.runs[name_of(case, part)] = starter.start(
                    folder / name_of(case, part), WORLDS[kind], given | {"steps": 5_000, "seed": part}
                )
            for loss, workers in LOSSES.items():
                plan = {"env": "fault_envs:Plain", "steps": 5_000, "loss": loss}
                settings = ONE | {"learner.workers": workers, "seed": part}
                self.runs[f"{loss}-{part}"] = starter.drive(folder / f"{loss}-{part}", plan | {"settings": settings})
            self.codes |= {name: run.wait(100) for name, run in self.runs.items() if name not in self.codes}


def name_of(case: tuple[str, str, str], part: int) -> str:
    return "-".join((*case, str(part)))


@pytest.fixture(scope="module")
def left(starter: Starter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Left]:
    starter.runs.clear()
    try:
        yield Left(starter, tmp_path_factory.mktemp("left"))
    finally:
        starter.end_all()


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_f23_a_process_that_leaves_has_died(left: Left, case: tuple[str, str, str], part: int) -> None:
    name, (runtime, _, how) = name_of(case, part), case
    run = left.runs[name]
    assert_all_gone(run)
    assert left.codes[name] == 1, f"{name}: {run.err}"
    if how == "sys.exit":
        assert re.search(r"EnvError: .*raised SystemExit: 0 in step\(\)", run.err), run.err
    else:
        assert "ended with exit code 0" in run.err, run.err
    if runtime == "local":
        assert "restart 1 of 1" in run.err, run.err
    saved = run.checkpoint()
    assert saved is not None
    assert 40 <= saved.state["steps"] < 5_000


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("loss", LOSSES)
def test_f23_a_loss_that_ends_its_process_is_a_death_of_it(left: Left, loss: str, part: int) -> None:
    name, who = f"{loss}-{part}", loss.partition("_")[0]
    run = left.runs[name]
    assert_all_gone(run)
    assert left.codes[name] == 1, run.err
    assert re.search(rf"{who}(-1)? \(pid \d+\) ended with exit code 0 at step [\d,]+; restart 1 of 1", run.err), run.err
    assert re.search(rf"RoleLost: {who}(-1)? ended 2 times within ten minutes.* it ended with exit code 0", run.err), (
        run.err
    )
    assert run.checkpoint() is not None
