"""The profile of a role: shares that are true, files that viewers read, and nothing that can end a run."""

from __future__ import annotations

import gzip
import json
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import freewheel
from freewheel.report import profile
from freewheel.report.profile import Profiler, folded, profiled, report
from freewheel.run import entry


def work(seconds: float) -> None:
    over_s = time.monotonic() + seconds
    while time.monotonic() < over_s:
        sum(range(1000))


def other_work(seconds: float) -> None:
    work(seconds)


def test_the_functions_of_the_role_are_found(tmp_path: Path) -> None:
    with profiled("actor-0", tmp_path, True):
        work(0.3)
    assert sorted(path.name for path in (tmp_path / "profile").iterdir()) == ["actor-0.folded", "actor-0.txt"]
    text = (tmp_path / "profile" / "actor-0.txt").read_text()
    assert text.startswith("actor-0: ")
    first_of_self = text.split("\n\n")[1].splitlines()[1]
    assert "work (report/test_profile.py:" in first_of_self
    assert "test_the_functions_of_the_role_are_found" in text.split("\n\n")[2]
    for line in (tmp_path / "profile" / "actor-0.folded").read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        assert int(count) >= 1
        # What called the profiler is the same in every stack, and left out.
        assert stack.startswith("test_the_functions_of_the_role_are_found (")


def test_waits_are_seen(tmp_path: Path) -> None:
    with profiled("actor-0", tmp_path, True):
        threading.Event().wait(0.3)
    assert "wait (" in (tmp_path / "profile" / "actor-0.txt").read_text().split("\n\n")[1].splitlines()[1]


def test_off_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "Profiler", None)
    threads = threading.active_count()
    with profiled("learner", tmp_path, False):
        assert threading.active_count() == threads
    assert list(tmp_path.iterdir()) == []


def test_shares_are_of_all_samples() -> None:
    inner, outer, test = (f.__code__ for f in (work, other_work, test_off_does_nothing))
    counts = Counter({(outer, inner): 30, (outer,): 10, (test,): 60})
    alone, total = report("learner", counts, 1.0).split("\n\n")[1:]
    shares = {line.split()[1]: line.split()[0] for line in alone.splitlines()[1:]}
    assert shares == {"work": "30.0%", "other_work": "10.0%", "test_off_does_nothing": "60.0%"}
    shares = {line.split()[1]: line.split()[0] for line in total.splitlines()[1:]}
    assert shares == {"work": "30.0%", "other_work": "40.0%", "test_off_does_nothing": "60.0%"}
    assert [line.rpartition(" ")[2] for line in folded(counts).splitlines()] == ["60", "30", "10"]
    assert folded(counts).splitlines()[1].split(";")[1].startswith("work (report/test_profile.py:")


def test_a_function_that_calls_itself_counts_once() -> None:
    code = work.__code__
    assert "100.0%" in report("learner", Counter({(code, code, code): 4}), 1.0).split("\n\n")[2]
    assert "300.0%" not in report("learner", Counter({(code, code, code): 4}), 1.0)


def test_no_samples_are_no_error(tmp_path: Path) -> None:
    Profiler(threading.get_ident()).write(tmp_path, "learner")
    assert "0 samples" in (tmp_path / "learner.txt").read_text()


def test_stacks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "MOST_STACKS", 1)
    sampler = Profiler(threading.get_ident())
    sampler.look()
    first = next(iter(sampler.counts))

    def deeper() -> None:
        sampler.look()

    deeper()
    deeper()
    assert dict(sampler.counts) == {first: 1, (): 2}
    assert folded(sampler.counts).splitlines()[0] == "others 2"


def test_an_error_of_the_role_passes_through_and_the_profile_is_written(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), profiled("actor-1", tmp_path, True):
        raise ZeroDivisionError
    assert (tmp_path / "profile" / "actor-1.txt").exists()


def test_a_folder_that_cannot_be_written_does_not_end_the_role(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "profile").write_text("a file")
    with profiled("actor-0", tmp_path, True):
        pass
    assert "the profile of actor-0 is incomplete: FileExistsError" in capsys.readouterr().err


def test_a_sampler_that_fails_does_not_end_the_role(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Any:
        raise RuntimeError("no frames")

    monkeypatch.setattr(sys, "_current_frames", fail)
    with profiled("actor-0", tmp_path, True):
        threading.Event().wait(0.05)
    assert "RuntimeError: no frames" in capsys.readouterr().err


def test_the_learner_leaves_a_trace_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(profile, "TRACE_AFTER_S", 0.05)
    monkeypatch.setattr(profile, "TRACE_S", 0.05)
    path = tmp_path / "profile" / "learner.trace.json.gz"
    a = torch.ones(8, 8)
    with profiled("learner", tmp_path, True):
        over_s = time.monotonic() + 60
        while not path.exists() and time.monotonic() < over_s:
            a @ a
            time.sleep(0.001)
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    assert [event for event in events if event.get("name") == "aten::matmul"]
    assert sorted(p.name for p in path.parent.iterdir()) == ["learner.folded", "learner.trace.json.gz", "learner.txt"]


def test_a_short_run_leaves_no_trace_and_no_complaint(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with profiled("learner", tmp_path, True):
        pass
    assert sorted(path.name for path in (tmp_path / "profile").iterdir()) == ["learner.folded", "learner.txt"]
    assert capfd.readouterr().err == ""


def test_torch_that_cannot_trace_does_not_end_the_learner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Any:
        raise TypeError("profile_all_threads")

    monkeypatch.setattr(profile, "_prepared", fail)
    with profiled("learner", tmp_path, True):
        work(0.05)
    assert "profile_all_threads" in capsys.readouterr().err
    assert (tmp_path / "profile" / "learner.txt").exists()


def test_a_run_leaves_the_profiles_of_its_roles(tmp_path: Path) -> None:
    settings = {
        "runtime": "local",
        "local.profile": True,
        "local.actors": 2,
        "world.lanes": 4,
        "world.kind": "inline",
        "net.hidden": (16,),
        "replay.rows": 2000,
        "replay.warmup_rows": 100,
        "learner.batch_size": 16,
        "learner.workers": 1,
        "learner.compile": "off",
        "eval_episodes": 0,
        "log.tensorboard": False,
        "log.folder": str(tmp_path),
    }
    run = freewheel.train("CartPole-v1", steps=400, preset="none", settings=settings)
    for name, function in (
        ("actor-0", "ActorProcess.run"),
        ("actor-1", "ActorProcess.run"),
        ("learner", "LearnerProcess.run"),
    ):
        text = (run.folder / "profile" / f"{name}.txt").read_text()
        assert text.startswith(f"{name}: ")
        assert function.rpartition(".")[2] + " (run/" in text
        assert (run.folder / "profile" / f"{name}.folded").exists()


class FakePlan:
    """As much of a plan as the helpers of a learner look at."""

    owner = ""

    def __init__(self, folder: Path, is_on: bool, steps: int = 0, is_stopping: bool = False) -> None:
        self.folder = folder
        own = {"workers": SimpleNamespace(is_apart=False), "targets": SimpleNamespace(package="none.pt2")}
        self.policies = [SimpleNamespace(device="cpu", form=SimpleNamespace(threads=1), **own)]
        self.config = SimpleNamespace(steps=100, local=SimpleNamespace(profile=is_on))
        self.counts = SimpleNamespace(steps=steps, is_stopping=is_stopping)

    def role_name(self, kind: str, policy: int, index: int) -> str:
        return f"{kind}-{index}" if kind == "worker" else kind

    def process_seed(self, name: str, life: int) -> int:
        return 0


@pytest.fixture
def _as_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """`entry.main` works here, and comes back; this process goes on with what it has."""
    monkeypatch.setattr(entry.process, "begin_role", lambda owner: 0)
    monkeypatch.setattr(entry, "run_role", lambda channel, work: work())
    monkeypatch.setattr(entry, "Channel", lambda end: SimpleNamespace(send=lambda message: None))
    monkeypatch.setattr(entry, "keep_memory", lambda: True)
    monkeypatch.setattr(entry, "load", lambda path: None)
    monkeypatch.setattr(entry.torch, "set_num_threads", lambda count: None)


def enter(kind: str, index: int, plan: Any) -> None:
    entry.main(kind, 0, index, 0, plan, None)  # type: ignore[arg-type]


@pytest.mark.usefixtures("_as_in_a_process_of_its_own")
@pytest.mark.parametrize("is_on", [False, True])
def test_the_helpers_of_the_learner_are_profiled(is_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "build_update", lambda policy, device: None)
    monkeypatch.setattr(entry, "work_for_gradients", lambda *given: work(0.1))
    monkeypatch.setattr(entry, "work_ahead", lambda *given: work(0.1))
    plan = FakePlan(tmp_path, is_on)
    enter("worker", 1, plan)
    enter("target", 0, plan)
    found = sorted(path.name for path in tmp_path.glob("profile/*"))
    assert found == (["target.folded", "target.txt", "worker-1.folded", "worker-1.txt"] if is_on else [])
    for name in ("target", "worker-1") if is_on else ():
        assert "work (report/test_profile.py:" in (tmp_path / "profile" / f"{name}.txt").read_text()


@pytest.mark.usefixtures("_as_in_a_process_of_its_own")
@pytest.mark.parametrize(
    ("is_on", "steps", "is_stopping", "ends"),
    [(True, 99, False, False), (True, 100, False, True), (True, 50, True, True), (False, 100, True, False)],
)
def test_the_target_process_ends_by_itself_only_to_write_its_profile(
    is_on: bool, steps: int, is_stopping: bool, ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(entry, "work_ahead", lambda targets, function, is_over: asked.append(is_over()))
    enter("target", 0, FakePlan(tmp_path, is_on, steps, is_stopping))
    assert asked == [ends]


@pytest.mark.usefixtures("_as_in_a_process_of_its_own")
def test_a_learner_and_its_helpers_keep_their_memory_before_they_build_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def learning(*given: Any) -> Any:
        said.append("learner")
        return SimpleNamespace(run=lambda: None)

    monkeypatch.setattr(entry, "keep_memory", lambda: said.append("keeps"))
    monkeypatch.setattr(entry, "build_update", lambda policy, device: said.append("worker"))
    monkeypatch.setattr(entry, "work_for_gradients", lambda *given: None)
    monkeypatch.setattr(entry, "LearnerProcess", learning)
    plan = FakePlan(tmp_path, False)
    enter("worker", 1, plan)
    enter("learner", 0, plan)
    assert said == ["keeps", "worker", "keeps", "learner"]
