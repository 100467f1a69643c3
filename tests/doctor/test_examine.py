"""The examination of an env: true facts about a good one, and a clear line for each way in which one can be bad."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from sick_envs import Well

from freewheel.config import assemble
from freewheel.doctor import env_facts, examine
from freewheel.doctor.env_facts import costs_of_env
from freewheel.doctor.facts import Fact
from freewheel.doctor.trial import try_apart
from freewheel.errors import ConfigError
from freewheel.machine.cores import num_cores
from freewheel.run.layout import choose
from freewheel.run.plan import Setup
from freewheel.run.runtime import settled_world

HERE = Path(__file__).parent
PIXELS = f"{__name__}:Pixels"


class Pixels(Well):
    observation_space = spaces.Box(0, 255, (84, 84), np.uint8)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env_facts, "CONTRACT_S", 0.05)
    monkeypatch.setattr(env_facts, "COSTS_S", 0.05)
    monkeypatch.setattr(examine, "_stderr_bytes", lambda: 0)
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.chdir(HERE)


def examined(env: str, **given: Any) -> dict[str, Fact]:
    """In this process."""
    told: list[dict[str, Any]] = []
    examine.examine(assemble(env, {name.replace("__", "."): value for name, value in given.items()}), told.append)
    return {fact.name: fact for message in told if "fact" in message for fact in [Fact(**message["fact"])]}


def apart(env: str, timeout_s: float = 30.0) -> dict[str, Fact]:
    return {fact.name: fact for fact in try_apart(assemble(env, {}), timeout_s)}


def problems(facts: dict[str, Fact]) -> list[Fact]:
    return [fact for fact in facts.values() if fact.state == "problem"]


def test_an_env_that_refuses_forbidden_actions_is_stepped_as_the_policy_would() -> None:
    for env in ("Strict", "StrictByInfo"):
        found = examined(f"sick_envs:{env}", algo="dqn")
        assert problems(found) == []
        assert "could not be measured" not in found["world"].shown
        assert "action_mask" in found["observations"].shown
    (problem,) = problems(examined("sick_envs:StrictByInfo", algo="ppo", world__info_mask="off"))
    assert "is forbidden" in problem.shown


def test_a_good_env() -> None:
    found = examined("sick_envs:Well", runtime="sequential", world__lanes=3)
    assert {fact.state for fact in found.values()} == {"ok"}
    assert found["making"].value["lanes"] == 3
    assert found["world"].value == {
        "kind": "inline",
        "lanes": 3,
        "workers": 0,
        "threads": 0,
        "reason": "one process steps all lanes.",
    }
    assert found["observations"].value == 12
    assert found["actions"].shown == "Discrete(2)"
    assert found["contract"].value["episodes"] >= 1
    assert found["contract"].value["steps"] >= 30
    assert found["step"].value["steps"] >= 10
    assert found["processes"].value is True
    assert found["seed"].value is True


def test_the_replay_is_forecast() -> None:
    few, many = (examined("sick_envs:Well", replay__rows=rows)["replay"].value["bytes"] for rows in (10_000, 20_000))
    assert 1.9 < many / few < 2.1
    fact = examined("sick_envs:FloatImage", replay__rows=10**9)["replay"]
    assert fact.state == "problem"
    assert "Try --replay.rows" in fact.shown


def test_a_vector_env_shows_its_autoreset_mode() -> None:
    found = examined("sick_envs:vector", world__lanes=2)
    assert problems(found) == []
    assert found["world"].value["kind"] == "vector"
    assert found["making"].value["autoreset"] == "SAME_STEP"
    assert found["step"].value["reset_us"] is None


@pytest.mark.parametrize(
    ("env", "stage", "text"),
    [
        ("Raises", "stepping it", "raised RuntimeError: out of fuel in step() at step 6"),
        ("WrongType", "resetting it", "gave obs of dtype float64, and its space says float32"),
        ("NoScreen", "making it", "No available video device"),
        ("Continuous", "building the network", "needs a Discrete action space"),
        ("Exits", "stepping it", "raised SystemExit: 7"),
    ],
)
def test_what_train_would_fail_on_is_a_problem(env: str, stage: str, text: str) -> None:
    found = examined(f"sick_envs:{env}")
    (fact,) = problems(found)
    assert fact.name == stage
    assert text in fact.shown
    assert "step" not in found


def test_the_traceback_of_the_env_is_kept() -> None:
    assert 'raise RuntimeError("out of fuel")' in examined("sick_envs:Raises")["stepping it"].trace


def test_a_screen_that_is_missing_has_a_cure() -> None:
    assert "SDL_VIDEODRIVER=dummy" in examined("sick_envs:NoScreen")["making it"].cure
    assert examined("sick_envs:Raises")["stepping it"].cure == ""


@pytest.mark.parametrize(
    ("env", "name", "cure"),
    [
        ("Random", "seed", "np_random"),
        ("FloatImage", "observations", "uint8"),
        ("Waits", "work", "--local.actors"),
    ],
)
def test_what_makes_a_run_worse_is_a_warning(env: str, name: str, cure: str) -> None:
    found = examined(f"sick_envs:{env}", replay__rows=2_000, world__kind="inline")
    assert problems(found) == []
    assert found[name].state == "warning"
    assert cure in found[name].cure


def chosen_by_train(env: str, **given: Any) -> tuple[str, int, int]:
    """As the local runtime settles it before a run."""
    config = assemble(env, {name.replace("__", "."): value for name, value in given.items()})
    world = settled_world(Setup(config, env, choose(config, num_cores())))[0].config.world
    return world.kind, world.workers, world.threads


@pytest.mark.parametrize("given", [{}, {"world__kind": "inline"}, {"world__kind": "pool"}, {"world__threads": 3}])
def test_the_world_is_that_of_train(given: dict[str, Any]) -> None:
    """An env that waits, so that the measurement is the same on a busy machine."""
    given |= {"runtime": "local", "world__lanes": 4}
    value = examined("sick_envs:Waits", **given)["world"].value
    assert (value["kind"], value["workers"], value["threads"]) == chosen_by_train("sick_envs:Waits", **given)


def test_an_env_that_waits_in_a_pool_needs_no_more_actors() -> None:
    found = examined("sick_envs:Waits", runtime="local", world__lanes=4)
    assert found["world"].value["kind"] == "pool"
    assert found["world"].shown.startswith("Using a pool of ")
    assert (found["work"].state, found["work"].cure) == ("ok", "")


def test_what_was_asked_for_is_told_as_such() -> None:
    fact = examined("sick_envs:Well", runtime="local", world__kind="inline")["world"]
    assert fact.shown == "inline: set by world.kind=inline."


def test_the_choice_of_a_world_is_a_stage() -> None:
    told: list[dict[str, Any]] = []
    examine.examine(assemble("sick_envs:Well", {"runtime": "local"}), told.append)
    names = [next(iter(message.values())) for message in told if "stage" in message]
    assert names.index("stepping it") < names.index("choosing its world") < names.index("timing it")


def test_the_threads_of_images_are_left_to_the_trial() -> None:
    assert "update" not in examined("sick_envs:Well")
    images: dict[str, Any] = {"replay__rows": 2_000, "learner__device": "cpu"}
    side_by_side = examined(PIXELS, **images, runtime="local", steps=10**6)["update"]
    assert side_by_side.value == {"threads": None}
    short = examined(PIXELS, **images, runtime="local", steps=2_000, replay__warmup_rows=500)["update"]
    assert short.value == {"threads": num_cores()}
    assert "update" not in examined(PIXELS, **images, runtime="local", learner__threads=1)


def test_an_env_that_cannot_be_pickled_can_be_trained_on() -> None:
    fact = examined("sick_envs:Unpicklable")["processes"]
    assert (fact.state, fact.value) == ("ok", False)
    assert "cannot be pickled" in fact.shown


def test_costs_are_those_of_the_step() -> None:
    from sick_envs import Waits

    told: list[int] = []
    costs = costs_of_env(Waits(), 0.5, lambda: told.append(1))
    assert costs.median_us >= 3_000
    assert costs.mean_us >= 3_000
    assert costs.p95_us >= costs.median_us
    assert costs.reset_us is not None
    assert costs.reset_us < costs.median_us
    assert costs.waits
    assert told == []


def test_a_slow_env_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(env_facts.time, "monotonic", lambda: float(next(clock)))
    told: list[int] = []
    assert list(env_facts.paced(5.0, lambda: told.append(1))) == [0, 1, 2, 3, 4]
    assert len(told) == 2


def test_a_device_that_is_missing_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    assert "uses cpu" in examine.device_fact("auto").shown
    fact = examine.device_fact("cuda")
    assert fact.state == "problem"
    assert "this machine has cpu" in fact.shown


def test_an_env_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="Did you mean CartPole-v1"):
        apart("CartPole-v9")


def test_an_env_that_hangs_holding_the_interpreter_ends_with_its_line() -> None:
    (fact,) = problems(apart("sick_envs:Hangs", timeout_s=3.0))
    assert fact.name in ("making it", "resetting it")  # a look for a mask of actions resets it too
    assert "no answer within 3 s" in fact.shown
    assert "sick_envs.py" in fact.trace


def test_an_env_that_crashes_leaves_its_stack() -> None:
    found = apart("sick_envs:Crashes")
    (fact,) = problems(found)
    assert fact.name == "stepping it"
    assert f"died by {signal.SIGSEGV.name}" in fact.shown
    assert "sick_envs.py" in fact.trace
    assert found["devices"].state == "ok"


def test_an_env_that_ends_the_process() -> None:
    (fact,) = problems(apart("sick_envs:Vanishes"))
    assert "ended with exit code 3" in fact.shown


def test_programs_that_the_env_started_end_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SICK_HELPERS", str(tmp_path / "pids"))
    assert problems(apart("sick_envs:HasHelper")) == []
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) >= 8
    over_s = time.monotonic() + 10  # a killed process takes a moment to go
    while (left := [pid for pid in pids if is_running(pid)]) and time.monotonic() < over_s:
        time.sleep(0.05)
    for pid in left:
        os.kill(int(pid), signal.SIGKILL)
    assert left == []


def is_running(pid: str) -> bool:
    """A zombie that nobody has waited for yet does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_an_env_that_prints_is_told_and_its_output_stays_away(capfd: pytest.CaptureFixture[str]) -> None:
    found = apart("sick_envs:Prints")
    assert problems(found) == []
    assert found["prints"].state == "warning"
    assert "'\\x1b[2Jstep 0'" in found["prints"].shown
    assert capfd.readouterr() == ("", "")


def test_nothing_in_the_folder_of_the_call_takes_the_place_of_a_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gymnasium.py").write_text("raise RuntimeError('not the library')")
    (tmp_path / "sitecustomize.py").write_text("raise RuntimeError('not the library')")
    monkeypatch.chdir(tmp_path)
    assert problems(apart("")) == []
