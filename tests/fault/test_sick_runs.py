"""F07, F08, F09, F13: envs, losses and disks that fail in a local run. All runs of a part go at once; each test judges its own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fault_fixtures
import pytest
from fault_envs import BAD, EPISODE
from fault_fixtures import Starter
from fault_runs import TIMES, Run, assert_all_gone

starter = fault_fixtures.starter

ONE = {"local.actors": 1, "local.restarts": 1, "steps": 5_000, "checkpoint.every_steps": 100}
RAISES = {
    "step": (r"ValueError: motor broke", r"motor broke in step\(\) at step {at} of the episode with seed \d+"),
    "reset": (r"OSError: port in use", r"raised OSError: port in use in reset\(\).*seed \d+"),
    "make": (r"RuntimeError: no simulator here", r"no simulator here"),
}


# Each part has runs of its own: a machine takes so many at once, and not ten times as many.
PARTS = range(TIMES)
parts = pytest.mark.parametrize("part", PARTS)


def named(name: str, part: int) -> str:
    return f"{name}-{part}"


def raises_at(part: int) -> int:
    """The step of an env at which it raises: another one of the episode in each part."""
    return 40 + 7 * part


class Sick:
    """The runs by name, all ended."""

    def __init__(self, starter: Starter, folder: Path) -> None:
        self.starter, self.folder, self.runs, self.codes = starter, folder, dict[str, Run](), dict[str, int]()
        for part in PARTS:
            if part == 0:
                self.start_single()
            self.start_part(part)
            self.codes |= {name: run.wait(100) for name, run in self.runs.items() if name not in self.codes}

    def start_part(self, part: int) -> None:
        for where in RAISES:
            kwargs = json.dumps({"where": where, "at": raises_at(part)})
            self.start(named(where, part), "fault_envs:Raises", {"world.kwargs": kwargs, "seed": part})
        close = {"world.kwargs": '{"where": "close"}', "steps": 300, "seed": part}
        self.start(named("close", part), "fault_envs:Raises", close)
        broken = self.folder / named("import", part)
        broken.mkdir()
        (broken / "broken_env.py").write_text("raise OSError('no licence file')\n")
        self.start(broken.name, "broken_env:make", {})
        hangs = {"steps": 400, "local.restarts": 9, "local.step_timeout_s": 2.0, "seed": part}
        self.start(named("hangs", part), "fault_envs:Hangs", hangs)

    def start_single(self) -> None:
        for what in BAD if TIMES > 1 else BAD[:1]:
            self.start(what, "fault_envs:Gives", {"world.kwargs": f'{{"what": "{what}"}}'})
        self.drive("drop", {"env": "fault_envs:Gives", "steps": 500, "settings": {"world.bad_rows": "drop"}})
        self.drive("diverges", {"env": "fault_envs:Plain", "steps": 5_000, "loss": "diverges"})
        full = {"env": "fault_envs:Plain", "loss": "fills_the_disk", "settings": {"checkpoint.every_steps": 8}}
        self.drive("full", {**full, "acts": [["wait_for_line", {"name": "full_disk", "line": "0"}]]})

    def start(self, name: str, env: str, settings: dict[str, Any]) -> None:
        self.runs[name] = self.starter.start(self.folder / name, env, {**ONE, **settings})

    def drive(self, name: str, plan: dict[str, Any]) -> None:
        settings = {**ONE, **plan.get("settings", {})}
        del settings["steps"]
        self.runs[name] = self.starter.drive(self.folder / name, {**plan, "settings": settings})


@pytest.fixture(scope="module")
def sick(starter: Starter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sick]:
    starter.runs.clear()
    try:
        yield Sick(starter, tmp_path_factory.mktemp("sick"))
    finally:
        starter.end_all()


def test_f17_no_sick_run_left_anything(sick: Sick) -> None:
    for run in sick.runs.values():
        assert_all_gone(run)


@parts
@pytest.mark.parametrize("where", RAISES)
def test_f07_an_env_that_raises_is_tried_again_and_then_ends_the_run(sick: Sick, where: str, part: int) -> None:
    run, (line, message) = sick.runs[named(where, part)], RAISES[where]
    message = message.replace("{at}", str(raises_at(part) % EPISODE + 1))
    assert sick.codes[named(where, part)] == 1, run.err
    assert len(re.findall(f"^{line}", run.err, re.MULTILINE)) == 2, run.err  # its own traceback, of both lives
    assert re.search(message, run.err), run.err
    assert "fault_envs.py" in run.err, "the line of the env is not shown"
    assert "fault_envs:Raises" in run.err
    assert re.search(r"actor-0 \(pid \d+\) failed at step [\d,]+; restart 1 of 1\. EnvError: ", run.err), run.err
    assert "more than local.restarts=1" in run.err
    saved = run.checkpoint()
    assert saved is not None
    assert saved.state["steps"] >= (0 if where == "make" else 40)


@parts
def test_f07_an_env_that_raises_in_close_costs_nothing(sick: Sick, part: int) -> None:
    run = sick.runs[named("close", part)]
    assert sick.codes[named("close", part)] == 0, run.err
    assert "who has the door key" in run.err
    saved = run.checkpoint()
    assert saved is not None
    assert saved.state["steps"] >= 300


@parts
def test_f07_a_module_that_cannot_be_imported_ends_it_before_anything_starts(sick: Sick, part: int) -> None:
    run = sick.runs[named("import", part)]
    assert sick.codes[named("import", part)] == 1, run.err
    assert "OSError: no licence file" in run.err
    assert "broken_env" in run.err
    assert not (run.folder / "runs").exists()


@parts
def test_f08_an_env_that_hangs_is_replaced_also_when_it_holds_the_lock(sick: Sick, part: int) -> None:
    run = sick.runs[named("hangs", part)]
    assert sick.codes[named("hangs", part)] == 0, run.err
    assert (run.folder / "slept").exists()
    assert (run.folder / "held").exists()
    told = re.findall(r"actor-0 has shown no sign of life for (\d+) s \(phase env\) and is replaced", run.err)
    assert len(told) >= 2, run.err
    assert all(2 <= int(seconds) <= 10 for seconds in told), run.err  # 2 s are set; a busy supervisor looks later
    assert run.err.count("fault_envs.py") >= 2, "the stack does not show where the env hangs"
    saved = run.checkpoint()
    assert saved is not None
    assert saved.state["steps"] >= 400


@pytest.mark.parametrize("what", BAD if TIMES > 1 else BAD[:1])
def test_f09_a_broken_contract_stops_the_run(sick: Sick, what: str) -> None:
    run = sick.runs[what]
    assert sick.codes[what] == 1, run.err
    assert re.search(r"EnvError: fault_envs:Gives \(lane \d\) .* of the episode with seed \d+", run.err), run.err
    assert "; restart " not in run.err, "the same would come again"
    assert run.checkpoint() is not None


def test_f09_or_is_left_out_and_counted(sick: Sick) -> None:
    run = sick.runs["drop"]
    assert sick.codes["drop"] == 0, run.err
    facts = run.facts
    assert facts["lives"]["actor-0"] == 0
    told = run.err.count("actor-0 dropped rows: ")
    assert told >= 3, run.err
    assert facts["dropped"] == told * 4
    assert facts["begun"] == facts["committed"]


def test_f09_losses_that_are_not_finite_end_the_run_with_the_last_good_weights(sick: Sick) -> None:
    run = sick.runs["diverges"]
    assert sick.codes["diverges"] == 1, run.err
    assert re.search(r"Diverged: .* 10 updates in a row", run.err), run.err
    assert "; restart " not in run.err
    saved = run.checkpoint()
    assert saved is not None
    assert all(bool(t.isfinite().all()) for t in saved.tensors.values() if t.is_floating_point())
    assert float(saved.tensors["optimizer.decay"][0]) == pytest.approx(0.9**5)


def test_f13_a_full_disk_at_each_call_in_turn_is_told_and_the_run_goes_on(sick: Sick) -> None:
    run = sick.runs["full"]
    assert sick.codes["full"] == 0, run.err
    assert run.facts["trouble"] == [], run.err
    hits = (run.folder / "full_disk").read_text().split()
    assert hits == ["1"] * (len(hits) - 1) + ["0"]
    assert len(hits) > 15, "saving needs more calls than that: the faults were not where they should be"
    told = re.findall(r"^CheckpointError: .*No space left on device", run.err, re.MULTILINE)
    # A folder that is there already, or an old checkpoint that goes with the next save, are no loss.
    assert len(hits) - 5 <= len(told) <= len(hits), run.err
    assert "The run is degraded: 3 checkpoints in a row could not be written." in run.err
    assert run.facts["lives"]["learner"] == 0
    saved = run.checkpoint()
    assert saved is not None
    assert list(saved.path.parent.glob(".tmp*")) == []
