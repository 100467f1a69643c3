"""The shape of a trial: candidates in turn, the first unless another is faster, a memory, and a process that may hang or die."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from freewheel.machine import cache, trial
from freewheel.machine.process import is_alive
from freewheel.machine.trial import Measured, Report, throwaway


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


class Clock:
    """Stands in for the clock: only what is spent passes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(trial.time, "perf_counter", lambda: self.now_s)

    def spend(self, seconds: float) -> float:
        self.now_s += seconds
        return seconds


def test_candidates_are_measured_in_turn() -> None:
    found = list(trial.interleaved(["a", "b"], lambda candidate: 1.0, rounds=3))
    assert [candidate for candidate, _ in found] == ["a", "b"] * 3


def test_hopeless_candidates_drop_out_after_the_least_rounds() -> None:
    seconds = {"fast": 1.0, "near": 1.4, "slow": 1.6}
    found = list(trial.interleaved(list(seconds), seconds.__getitem__, rounds=4, least_rounds=2, hopeless=1.5))
    assert {name: sum(one == name for one, _ in found) for name in seconds} == {"fast": 4, "near": 4, "slow": 2}


def test_no_round_begins_after_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    found = list(trial.interleaved(["a"], lambda _: clock.spend(3.0), rounds=9, least_rounds=1, budget_s=7.0))
    assert len(found) == 3
    found = list(trial.interleaved(["a"], lambda _: clock.spend(30.0), rounds=9, least_rounds=2, budget_s=7.0))
    assert len(found) == 2


def test_the_seconds_of_one_call_are_those_of_a_round_by_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    spent = {
        1: iter([50, *[3, 5] * trial.ROUNDS]),
        2: iter([50, *[1, 2] * trial.ROUNDS]),
    }  # the first call does not count
    times = trial.measure({n: lambda n=n: clock.spend(next(spent[n])) for n in (1, 2)}, num_calls=2)  # type: ignore[misc]
    assert times == {1: [4.0] * trial.ROUNDS, 2: [1.5] * trial.ROUNDS}


def test_the_first_is_chosen_unless_another_is_clearly_faster() -> None:
    assert trial.choose({"first": [1.04], "other": [1.0]}, least_gain=1.05) == "first"
    assert trial.choose({"first": [1.06], "other": [1.0]}, least_gain=1.05) == "other"
    assert trial.choose({"first": [], "other": [9.0], "dead": []}) == "other"
    assert trial.choose({"first": [], "dead": []}) == "first"
    rounds = {"first": [3.0, 3.0, 9.0], "other": [2.0, 8.0, 9.0]}
    assert trial.choose(rounds) == "other"
    assert trial.choose(rounds, summary=statistics.median) == "first"


def test_a_measurement_is_remembered_by_machine_and_work(monkeypatch: pytest.MonkeyPatch) -> None:
    key = cache.key_of("work", 1)
    assert key == cache.key_of("work", 1)
    assert key != cache.key_of("work", 2)
    assert trial.recall(key, ["a", "b"]) is None
    trial.remember(key, Measured({"a": [0.1], "b": []}, "b died"))
    cache.remember(key, {"more": 1})
    found = trial.recall(key, ["a", "b"])
    assert found == Measured({"a": [0.1], "b": []}, "b died", is_remembered=True)
    assert found.suffix == " (measured earlier)"
    assert cache.recall(key)["more"] == 1
    assert trial.recall(key, ["a"]) is None  # of other candidates
    monkeypatch.setattr(cache, "cpu_flags", lambda: "another machine")
    assert cache.key_of("work", 1) != key


def test_only_the_newest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST_KEPT", 2)
    for key in ("one", "two", "one", "three"):
        cache.remember(key, {"is": key})
    assert [cache.recall(key) for key in ("one", "two", "three")] == [{"is": "one"}, {}, {"is": "three"}]


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"key": 3}', '{"key": {"times": [["fast"]], "failure": ""}}', "\x00\xff"],
)
def test_a_damaged_memory_is_ignored_and_replaced(content: str) -> None:
    cache.file().parent.mkdir(parents=True)
    cache.file().write_bytes(content.encode("latin-1"))
    assert trial.recall("key", ["a"]) is None
    trial.remember("key", Measured({"a": [1.0]}))
    assert trial.recall("key", ["a"]) is not None
    assert [left.name for left in cache.file().parent.iterdir()] == ["trials.json"]


def test_a_memory_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "freewheel").write_text("in the way")
    trial.remember("key", Measured({"a": [1.0]}))
    assert trial.recall("key", ["a"]) is None


Tell = Callable[..., None]


def tells(tell: Tell) -> None:
    tell()
    tell({"seconds": 1.5})
    tell([os.getppid()])


def raises(tell: Tell) -> None:
    tell(1)
    raise ValueError("no such thing")


def dies(number: int, tell: Tell) -> None:
    tell(1)
    os.kill(os.getpid(), number)


def leaves(tell: Tell) -> None:
    os._exit(0)


def hangs(file: str, tell: Tell) -> None:
    tell(1)
    Path(file).write_text(f"{os.getpid()} {subprocess.Popen(['sleep', '1000']).pid}")
    time.sleep(1000)


def is_slow(tell: Tell) -> None:
    for _ in range(4):
        time.sleep(0.6)
        tell()
    tell("done")


def starts_slowly(tell: Tell) -> None:
    time.sleep(2.0)
    tell("started")


def test_what_a_throwaway_process_tells_arrives() -> None:
    report = throwaway(tells, timeout_s=20.0)
    assert report.told[0] == {"seconds": 1.5}
    assert report.told[1] != [os.getpid()]  # it ran elsewhere
    assert (len(report.told), report.failure) == (2, "")


@pytest.mark.parametrize(
    ("work", "args", "report"),
    [
        (raises, (), Report([1], "ValueError: no such thing")),
        (dies, (signal.SIGILL,), Report([1], "its process died by SIGILL", -signal.SIGILL)),
        (leaves, (), Report([], "its process ended with exit code 0", 0)),
    ],
)
def test_how_it_failed_is_a_reason_and_what_it_told_before_is_kept(work: Any, args: Any, report: Report) -> None:
    assert throwaway(work, *args, timeout_s=20.0) == report


def test_one_that_hangs_shows_its_stack_and_is_killed_with_what_it_started(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """In a script: a forkserver that pytest started has another stderr."""
    script = textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_trial import hangs, throwaway
        if __name__ == "__main__":
            print(throwaway(hangs, {str(tmp_path / "pids")!r}, timeout_s=0.5, start_timeout_s=99.0))
    """)
    (tmp_path / "script.py").write_text(script)
    began_s = time.monotonic()
    subprocess.run([sys.executable, str(tmp_path / "script.py")], check=True, timeout=100)
    said = capfd.readouterr()
    assert time.monotonic() - began_s < 60
    assert "Report(told=[1], failure='no answer within 0.5 s', exit_code=None)" in said.out
    assert "in hangs" in said.err
    for pid in (tmp_path / "pids").read_text().split():
        deadline_s = time.monotonic() + 5
        while is_alive(int(pid)) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert not is_alive(int(pid))


def test_signs_of_life_and_a_longer_start_move_the_deadline() -> None:
    assert throwaway(is_slow, timeout_s=0.5).told == ["done"]  # each silence is within its grace
    assert throwaway(starts_slowly, timeout_s=0.1, start_timeout_s=20.0) == Report(["started"])
    assert throwaway(starts_slowly, timeout_s=0.1).failure == "no answer within 0.1 s"


def test_a_throwaway_process_does_not_run_the_users_script_again(tmp_path: Path) -> None:
    script = textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_trial import starts_slowly, throwaway
        print("ran")
        throwaway(starts_slowly, timeout_s=20.0)  # no guard: loading this again would start another one
    """)
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")], check=True, timeout=100, capture_output=True, text=True
    )
    assert done.stdout == "ran\n"
