"""F26: envs that do in the evaluation what envs should not. It has limits and signals, and in the local runtime a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fault_fixtures
import pytest
from fault_envs import Evaluated, Plain
from fault_fixtures import Starter
from fault_processes import by_kind
from fault_runs import SMALL, Run, assert_all_gone, flags, is_alive, until

from freewheel.algos.make import make_algo
from freewheel.config import assemble
from freewheel.contracts import Spaces
from freewheel.errors import ChildTrace, EnvError
from freewheel.evaluate import Played, evaluate, what_was_cut
from freewheel.store.load import Trained
from freewheel.worlds.choose import groups_apart

starter, nursery = fault_fixtures.starter, fault_fixtures.nursery

END_S = 15.0
STEPS = 200
BOTH = ("local", "sequential")

Evaluation = Callable[..., list[Played]]


@pytest.fixture
def play(tmp_path: Path) -> Evaluation:
    """Evaluates an untrained policy in an env that does what it is told to."""
    (tmp_path / "runs/run/checkpoints/step-1").mkdir(parents=True)

    def play(how: str, episodes: int = 5, runtime: str = "local", **settings: Any) -> list[Played]:
        given = {"net.hidden": (8,), "world.lanes": 2, "world.kind": "inline", "runtime": runtime, **settings}
        config = assemble("Evaluated", given, "none")
        algo = make_algo(config, Spaces(Plain.observation_space, Plain.action_space, 2))
        trained = Trained(algo, algo.net.eval(), config)
        return evaluate([trained], config, partial(Evaluated, how, str(tmp_path)), episodes)

    return play


@pytest.mark.parametrize("runtime", BOTH)
def test_f26_episodes_that_never_end_are_cut(play: Evaluation, runtime: str) -> None:
    """Each of 25 lanes is cut in its first world, and one of them in a second."""
    (played,) = play("endless", 26, runtime, eval_max_steps=30)
    assert [one.length for one in played.episodes] == [30] * 26
    assert played.num_cut == 26
    assert played.episodes[-1].lane == 0
    assert all(0 < one.ret < 30 for one in played.episodes), "the return so far"


def test_f26_an_episode_that_ends_at_the_limit_is_not_cut(play: Evaluation) -> None:
    (played,) = play("", 3, "sequential", eval_max_steps=25)
    assert ([one.length for one in played.episodes], played.num_cut) == ([25] * 3, 0)
    (played,) = play("", 3, "sequential", eval_max_steps=24)
    assert ([one.length for one in played.episodes], played.num_cut) == ([24] * 3, 3)


@pytest.mark.parametrize("runtime", BOTH)
def test_f26_an_evaluation_ends_in_time(play: Evaluation, runtime: str) -> None:
    (played,) = play("endless", 27, runtime, eval_timeout_s=0.5, eval_max_steps=0)
    assert played.num_cut == len(played.episodes) == 25
    config = assemble("Evaluated", {"eval_timeout_s": 0.5})
    assert what_was_cut([played], config, 27).startswith("25 of 27 evaluation episodes were cut")
    assert "eval_timeout_s=0.5" in what_was_cut([played], config, 27)
    assert "2 were not played" in what_was_cut([played], config, 27)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("hangs", r"partial: no answer within 0.5 s while it was played"),
        ("holds", r"partial: no answer within 0.5 s while it was played"),
        ("dies", r"partial: its process died by SIGSEGV"),
        ("exits", r"partial: its process ended with exit code 0"),
        ("raises", r"partial .*raised ZeroDivisionError: .* in step\(\)"),
    ],
)
def test_f26_an_env_that_fails_is_an_error_of_the_env(play: Evaluation, tmp_path: Path, how: str, why: str) -> None:
    with pytest.raises(EnvError, match=why) as caught:
        play(how, **{"local.step_timeout_s": 0.5 if how in ("hangs", "holds") else 30.0})
    if how == "raises":
        assert isinstance(caught.value.__cause__, ChildTrace)
        assert "fault_envs.py" in str(caught.value.__cause__), "the line of the env"
    pids = set(map(int, (tmp_path / "made").read_text().split()))
    until(lambda: not any(map(is_alive, pids)), 10, "the process of the evaluation lives on")


def test_f26_an_env_that_does_not_close_costs_nothing(play: Evaluation) -> None:
    (played,) = play("lingers", 3, **{"local.step_timeout_s": 0.5})
    assert len(played.episodes) == 3


class Slow(Plain):
    """All lanes together take longer for a step than one may, and for their making."""

    def __init__(self) -> None:
        super().__init__()
        time.sleep(0.1)

    def step(self, action: Any) -> Any:
        time.sleep(0.1)
        return super().step(action)


def test_f26_the_time_limit_is_for_one_step(play: Evaluation) -> None:
    config = assemble(
        "Slow", {"net.hidden": (8,), "runtime": "local", "local.step_timeout_s": 1.0, "eval_max_steps": 1}
    )
    algo = make_algo(config, Spaces(Plain.observation_space, Plain.action_space, 2))
    (played,) = evaluate([Trained(algo, algo.net.eval(), config)], config, Slow, 25)
    assert len(played.episodes) == 25


def test_f26_a_look_at_the_spaces_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    config = assemble("Evaluated", {}).world
    monkeypatch.setattr("freewheel.worlds.choose.START_S", 0.5)
    with pytest.raises(EnvError, match="hang_when_made: no answer within 0.5 s while it was made"):
        groups_apart(hang_when_made, config, 0)


def hang_when_made() -> Any:
    time.sleep(1000)


def start(starter: Starter, folder: Path, how: str, **settings: Any) -> Run:
    given = {"steps": STEPS, "eval_episodes": 3, "world.kwargs": json.dumps({"how": how}), **settings}
    if given.get("runtime") != "sequential":
        return starter.start(folder, "fault_envs:Evaluated", {"local.actors": 1, **given})
    own = {name: value for name, value in SMALL.items() if not name.startswith(("local.", "learner.workers"))}
    words = ["train", "fault_envs:Evaluated", "--preset", "none", "--json", "--quiet", *flags({**own, **given})]
    return starter.call(folder, "freewheel.cli.main:main", words)


def result_of(run: Run) -> dict[str, Any]:
    (path,) = run.folder.glob("runs/*/result.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def status_of(run: Run) -> str:
    (path,) = run.folder.glob("runs/*/status.json")
    return str(json.loads(path.read_text())["status"])


@pytest.mark.parametrize(
    ("runtime", "how", "why"), [("local", "dies", "SIGSEGV"), ("sequential", "raises", "ZeroDivision")]
)
def test_f26_an_env_that_fails_costs_the_evaluation_only(
    nursery: Starter, tmp_path: Path, runtime: str, how: str, why: str
) -> None:
    run = start(nursery, tmp_path, how, runtime=runtime)
    assert run.wait(60) == 1, run.err
    assert re.search(rf"^EnvError: .*{why}.*freewheel eval", run.err, re.MULTILINE), run.err
    told = json.loads((run.folder / "out").read_text().splitlines()[-1])
    assert told == result_of(run), "the result of the training is printed all the same"
    assert (told["steps"], told["eval_return_mean"]) == (STEPS, None)
    assert status_of(run) == "finished"
    saved = run.checkpoint()
    assert saved is not None
    assert saved.step == STEPS


@pytest.mark.parametrize(
    ("runtime", "how", "number"),
    [("local", "holds", signal.SIGINT), ("local", "hangs", signal.SIGTERM), ("sequential", "hangs", signal.SIGINT)],
)
def test_f26_a_signal_ends_an_evaluation_that_hangs(
    nursery: Starter, tmp_path: Path, runtime: str, how: str, number: signal.Signals
) -> None:
    run = start(nursery, tmp_path, how, runtime=runtime)
    until((run.folder / "evaluated").exists, 60, lambda: run.err)
    run.send(number)
    assert run.wait(END_S) == 128 + number, run.err
    assert "Traceback" not in run.err
    assert result_of(run)["eval_return_mean"] is None
    assert status_of(run) == "finished"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: signal.Signals(number).name)
def test_f26_an_evaluation_that_is_killed_or_stopped_costs_nothing_else(
    nursery: Starter, tmp_path: Path, number: signal.Signals
) -> None:
    run = start(nursery, tmp_path, "hangs", **{"local.step_timeout_s": 2.0 if number == signal.SIGSTOP else 60.0})
    until((tmp_path / "evaluated").exists, 60, lambda: run.err)
    (evaluation,) = by_kind(run.pid)["role"]  # the others have ended
    os.kill(evaluation, number)
    assert run.wait(END_S) == 1, run.err
    assert re.search(r"^EnvError: .*(died by SIGKILL|no answer within 2 s).*freewheel eval", run.err, re.MULTILINE), (
        run.err
    )
    assert (result_of(run)["steps"], result_of(run)["eval_return_mean"]) == (STEPS, None)
    assert status_of(run) == "finished"


def test_f26_nobody_outlives_the_command(nursery: Starter, tmp_path: Path) -> None:
    """The program beside the env too."""
    run = start(nursery, tmp_path, "helped")
    until((tmp_path / "evaluated").exists, 60, lambda: run.err)
    run.send(signal.SIGKILL)
    assert_all_gone(run)


def test_f26_the_main_process_makes_no_env(nursery: Starter, tmp_path: Path) -> None:
    """Nor steps one: whatever an env does, this process decides how the run ends. Training, its clips, eval and play."""
    run = start(nursery, tmp_path, "", **{"log.tensorboard": True, "log.clip_every_steps": 50})
    assert run.wait(60) == 0, run.err
    assert "no more clips" not in run.err
    name, commands = run.name(), [run.pid]
    for words in (["eval", name, "--episodes", "2"], ["play", name, "--max-steps", "5"]):
        command = nursery.call(tmp_path, "freewheel.cli.main:main", [*words, "--json", "--quiet"])
        assert command.wait(60) == 0, command.err
        commands.append(command.pid)
    made = set(map(int, (tmp_path / "made").read_text().split()))
    assert len(made) >= 6
    assert not made & set(commands)
    assert (tmp_path / "runs" / name / "play.gif").exists()


def test_f26_play_and_eval_end_too(nursery: Starter, tmp_path: Path) -> None:
    run = start(nursery, tmp_path, "hangs", eval_episodes=0, **{"local.step_timeout_s": 2.0})
    assert run.wait(60) == 0, run.err
    late = nursery.call(tmp_path, "freewheel.cli.main:main", ["play", run.name(), "--quiet"])
    assert late.wait(60) == 1, late.err
    assert re.search("^EnvError: .*no answer within 2 s", late.err, re.MULTILINE), late.err
    (tmp_path / "evaluated").unlink()
    stopped = nursery.call(tmp_path, "freewheel.cli.main:main", ["eval", run.name(), "--quiet"])
    until((tmp_path / "evaluated").exists, 60, lambda: stopped.err)
    stopped.send(signal.SIGTERM)
    assert stopped.wait(END_S) == 143, stopped.err
