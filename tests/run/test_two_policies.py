"""Two policies in one world: a DQN plays red, a PPO plays blue; trained, stopped, resumed, told of and loaded by their names."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_cases import RUNTIMES, At, StopAt, Watch, assert_same, kill, logged, resume

import freewheel
from freewheel.cli import eval as cli_eval
from freewheel.cli import play as cli_play
from freewheel.cli import runs as cli_runs
from freewheel.errors import CheckpointError, ConfigError, Untrusted
from freewheel.store import checkpoint
from freewheel.store.checkpoint import load_newest

WORLD = '{"blue_lanes": 2, "blue_every": 2}'  # four blue lanes at every second recv: half of all steps
SETTINGS: dict[str, Any] = {
    "world.kind": "two_groups:make_two_groups",
    "world.kwargs": WORLD,
    "world.lanes": 2,
    "net.hidden": (32,),
    "learner.compile": "off",
    "eval_episodes": 0,
    "log.tensorboard": False,
    "log.every_s": 0.0,
    "checkpoint.every_steps": 0,
}
RED: dict[str, Any] = {
    "algo": "dqn",
    "replay.rows": 4000,
    "replay.warmup_rows": 100,
    "learner.batch_size": 32,
    "learner.ratio": 16.0,
    "learner.lr": 3e-3,
    "q.gamma": 0.0,
    "explore.over_steps": 500,
}
BLUE: dict[str, Any] = {
    "algo": "ppo",
    "rollout.rows": 16,
    "ppo.minibatches": 2,
    "ppo.epochs": 4,
    "ppo.gamma": 0.0,
    "learner.lr": 1e-2,
}
POLICIES = {"red": RED, "blue": BLUE}
A_ROLLOUT, UPDATES_A_ROLLOUT = 16 * 4, 8
every_run = pytest.mark.parametrize("runtime", RUNTIMES)


def train(folder: Path, runtime: str, steps: int = 600, policies: Any = None, **more: Any) -> freewheel.Run:
    settings = {**SETTINGS, "runtime": runtime, "log.folder": str(folder), **more.pop("settings", {})}
    more = {"is_quiet": True, "preset": "none", **more}
    return freewheel.train("quiz", steps=steps, policies=policies or POLICIES, settings=settings, **more)


def states(run: freewheel.Run, runtime: str) -> dict[str, Any]:
    """What was saved of each policy."""
    folder = run.folder / "checkpoints"
    if runtime == "sequential":
        found: dict[str, Any] = load_newest(folder).state["policies"]
        return found
    return {name: load_newest(folder / name).state for name in POLICIES}


@every_run
def test_both_learn(runtime: str, tmp_path: Path) -> None:
    """By chance red answers half of its 4 to 8 questions, blue a third of its 9 to 15."""
    run = train(tmp_path, runtime, 5000, settings={"eval_episodes": 30})
    told = run.result["policies"]
    assert told["red"]["eval_return_mean"] > 5.0 > 0.5 * 6
    assert told["blue"]["eval_return_mean"] > 8.0 > 12 / 3
    assert run.result["eval_return_mean"] == told["red"]["eval_return_mean"]


def test_schedules_go_by_the_steps_of_the_run(tmp_path: Path) -> None:
    """Each policy has taken half of them."""
    seen: list[tuple[int, float]] = []

    class Look(freewheel.Callback):
        def on_step(self, moment: freewheel.Moment) -> None:
            red = moment._runtime.actor.groups[0].policy
            seen.append((moment.step, red.epsilon))

    schedule = {"explore.schedule": "linear", "explore.start": 1.0, "explore.end": 0.0, "explore.over_steps": 500}
    train(tmp_path, "sequential", policies={**POLICIES, "red": {**POLICIES["red"], **schedule}}, callbacks=[Look()])
    assert all(epsilon == 0.0 for step, epsilon in seen if step > 520)
    assert any(epsilon > 0.5 for step, epsilon in seen if step < 200)


@every_run
def test_all_that_is_told_has_the_name_of_its_policy(runtime: str, tmp_path: Path) -> None:
    watch = Watch()
    run = train(tmp_path, runtime, 2000, callbacks=[watch], settings={"checkpoint.every_steps": 500})
    result, told = run.result, run.result["policies"]
    assert (result["algo"], told["red"]["algo"], told["blue"]["algo"]) == ("dqn+ppo", "dqn", "ppo")
    steps = {name: figures["steps"] for name, figures in told.items()}
    assert sum(steps.values()) == result["steps"] >= 2000
    assert steps["red"] == pytest.approx(result["steps"] / 2, rel=0.1)
    assert told["red"]["updates"] == pytest.approx((steps["red"] - 100) / 2, abs=1)
    assert told["blue"]["updates"] == steps["blue"] // A_ROLLOUT * UPDATES_A_ROLLOUT
    assert result["updates"] == told["red"]["updates"] + told["blue"]["updates"]
    roles = result["account"]["roles"]
    assert set(roles) >= ({"sequential"} if runtime == "sequential" else {"learner-red", "learner-blue", "actor-0"})
    assert all(0.98 <= role["closed"] <= 1.02 for role in roles.values()), roles
    status = json.loads((run.folder / "status.json").read_text())["policies"]
    assert status["blue"]["steps"] == steps["blue"]
    with open(run.folder / "episodes.csv") as file:
        rows = list(csv.DictReader(file))
    lanes = {name: {int(row["lane"]) for row in rows if row["policy"] == name} for name in ("red", "blue")}
    assert lanes == {"red": {0, 1}, "blue": {0, 1, 2, 3}}
    assert {episode.policy for episode in run.episodes} == {"red", "blue"}
    for name in ("red/learner/q_mean", "blue/learner/approx_kl", "red/train/epsilon", "blue/train/ratio"):
        assert logged(run, name), name
    assert not logged(run, "blue/train/epsilon")
    assert logged(run, "red/train/epsilon")[-1] < 0.2  # the schedule's end, not another policy's number
    assert {"red/loss", "blue/loss"} <= watch.metrics.keys()
    assert logged(run, "red/train/return_mean")[-1] < 8 < logged(run, "blue/train/return_mean")[-1] + 4


def test_r93_stop_and_resume_equals_not_stopping(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", "sequential", settings={"checkpoint.replay": True})
    part = train(tmp_path / "part", "sequential", callbacks=[StopAt(301)], settings={"checkpoint.replay": True})
    assert part.result["steps"] < 320
    resumed = resume(part)
    assert_same(whole, resumed)
    assert part.returns + resumed.returns == whole.returns


def test_both_go_on_in_local(tmp_path: Path) -> None:
    settings = {"checkpoint.replay": True}
    part = train(tmp_path, "local", 1_000_000, callbacks=[At(300, lambda m: m.stop())], settings=settings)
    before = states(part, "local")
    weights = {name: run_weights(part, name) for name in POLICIES}
    steps = part.result["steps"] + 1000
    lr = {"red": 1e-9, "blue": 1e-9}

    class Freeze(freewheel.Callback):
        """Learning rates that move nothing: the weights at the end are those that it began with."""

        def on_step(self, moment: freewheel.Moment) -> None:
            for name, value in lr.items():
                moment.set("lr", value, name)

    again = resume(part, steps=steps, callbacks=[Freeze()])
    after = states(again, "local")
    for name in POLICIES:
        assert after[name]["updates"] > before[name]["updates"]
        assert after[name]["own_steps"] > before[name]["own_steps"]
        assert after[name]["dials"] == {"lr": 1e-9}
    told = again.result["policies"]
    assert sum(figures["steps"] for figures in told.values()) == again.result["steps"] >= steps
    for name, old in weights.items():
        moved = np.abs(run_weights(again, name) - old).mean()
        assert moved < 0.3 * np.abs(old).mean(), name  # the first updates may come before the dials are turned


def run_weights(run: freewheel.Run, name: str) -> Any:
    tensors = load_newest(run.folder / "checkpoints" / name).tensors
    return np.concatenate([tensor.numpy().ravel() for key, tensor in sorted(tensors.items()) if key.startswith("net.")])


@every_run
def test_each_is_loaded_by_its_name(runtime: str, tmp_path: Path) -> None:
    run = train(tmp_path, runtime)
    red, blue = run.policy("red"), freewheel.load(run.folder, name="blue")
    assert (red.config.algo, blue.config.algo) == ("dqn", "ppo")
    assert red.act(np.zeros(3, np.float32)) in (0, 1)
    assert blue.act(np.zeros((7, 5), np.float32)).shape == (7,)
    for name in ("", "green"):
        with pytest.raises(CheckpointError, match="has the policies red, blue; name one of them"):
            run.policy(name)


@every_run
def test_the_commands_take_such_a_run(runtime: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(tmp_path, runtime, settings={"eval_episodes": 4})
    cli_eval.main([str(run.folder), "--episodes", "4", "--json", "--quiet"])
    played = json.loads(capsys.readouterr().out.splitlines()[-1])["policies"]
    for name in POLICIES:
        assert played[name]["return_mean"] == run.result["policies"][name]["eval_return_mean"]
    cli_eval.main([str(run.folder), "--episodes", "4", "--quiet"])
    shown = capsys.readouterr().out
    assert "red" in shown
    assert "blue" in shown
    with pytest.raises(ConfigError, match="has several policies \\(red, blue\\), which act in one world"):
        cli_play.main([str(run.folder), "--quiet"])
    cli_runs.main(["--root", str(tmp_path), "--json"])
    (line,) = json.loads(capsys.readouterr().out.splitlines()[-1])["runs"]
    assert (line["algo"], line["steps"]) == ("dqn+ppo", run.result["steps"])


def test_a_learner_that_is_killed_goes_on_from_its_own_checkpoint(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = {"checkpoint.every_steps": 500}
    run = train(tmp_path, "local", 6000, is_quiet=False, callbacks=[At(900, kill("learner-blue"))], settings=settings)
    said = capfd.readouterr().err
    assert "learner-blue (pid " in said
    assert "learner-blue continues from step-" in said
    assert run.result["steps"] >= 6000


@pytest.mark.parametrize(
    ("policies", "settings", "message"),
    [
        ({"red": RED}, {}, "policies= has settings for red, but the world has the groups red, blue"),
        ({"red": RED, "blue": {**BLUE, "world.lanes": 4}}, {}, "world.lanes .* holds for the whole run"),
        ({"red": RED, "blue": {**BLUE, "replay.rows": 9}}, {}, "algo=ppo has no setting 'replay.rows'"),
        ({"red": RED, "blue": BLUE}, {"q.num_atoms": 7}, "q.num_atoms was given, but has no effect: no policy"),
        ({"red": RED, "blue": BLUE}, {"ppo.clipp": 7}, "ppo.clipp"),
        ({}, {}, "policies= is empty"),
    ],
)
@every_run
def test_what_cannot_work_is_refused(
    runtime: str, policies: Any, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    given = {**SETTINGS, "runtime": runtime, "log.folder": str(tmp_path), **settings}
    with pytest.raises(ConfigError, match=message):
        freewheel.train("quiz", steps=100, policies=policies, settings=given, preset="none")
    assert list(tmp_path.iterdir()) == []


def test_a_world_of_several_groups_needs_several_policies(tmp_path: Path) -> None:
    given = {**SETTINGS, "runtime": "sequential", "log.folder": str(tmp_path)}
    with pytest.raises(ConfigError, match="the world has the groups red, blue; each needs a policy"):
        freewheel.train("quiz", steps=100, settings=given, preset="none")


def test_a12_a_forged_policy_among_several_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each policy's settings are somebody else's, the others may be what they were."""
    folder = train(tmp_path / "runs", "sequential", 200).folder
    (tmp_path / "evil_pkg.py").write_text("import pathlib\npathlib.Path('it ran').touch()\nBody = print\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("red", "blue"):
        forged = Path(shutil.copytree(folder, tmp_path / f"forged-{name}"))
        config = json.loads((forged / "config.json").read_text())
        config["policies"][name]["net"]["body"] = "evil_pkg:Body"
        (forged / "config.json").write_text(json.dumps(config))
        (saved,) = (forged / "checkpoints").iterdir()
        state = json.loads((saved / "state.json").read_text())
        state["policies"][name]["config"]["net"]["body"] = "evil_pkg:Body"
        (saved / "state.json").write_text(json.dumps(state))
        files = sorted(path.name for path in saved.iterdir() if path.name != "manifest.json")
        manifest = checkpoint._manifest(saved, load_newest(folder / "checkpoints").step, files)
        (saved / "manifest.json").write_bytes(manifest)
        with pytest.raises(Untrusted, match="names code"):
            freewheel.train(resume=forged, steps=400, is_quiet=True)
        with pytest.raises(Untrusted, match="names code, net.body='evil_pkg:Body'"):
            freewheel.load(forged, name=name)
        freewheel.load(forged, name="blue" if name == "red" else "red")
    assert not (tmp_path / "it ran").exists()
