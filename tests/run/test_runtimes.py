"""What every runtime promises for every algorithm: the same parts, the same results to read, whichever way they run."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from run_cases import (
    A_ROLLOUT,
    FAMILIES,
    LANES,
    REPLAY,
    RUNTIMES,
    UPDATES_A_ROLLOUT,
    Watch,
    logged,
    resume,
    saved,
    train,
)

import freewheel
from freewheel import Callback, Moment
from freewheel.algos.make import seed_of
from freewheel.config import Config, find_algo
from freewheel.errors import ConfigError, EnvError
from freewheel.store.checkpoint import load_newest
from freewheel.worlds.seeds import episode_seed, lane_key

WARMUP = REPLAY["replay.warmup_rows"]
UPDATES_A_STEP = REPLAY["learner.ratio"] / REPLAY["learner.batch_size"]
# Metrics of a learner, as a callback sees them and as the log has them under learner/.
LEARNER = {"loss", "grad_norm", "lr"}
VALUES = {"q_mean", "q_min", "q_max", "td_abs"}
PPO = {"policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "clip", "epochs", "policy_lag", "lag"}
PPO |= {"stale_rows", "lost_rows", "overwritten_rows", "explained_variance"}
METRICS = {"dqn": VALUES, "rainbow": VALUES, "ppo": PPO, "appo": PPO}

every_run = pytest.mark.parametrize("runtime", RUNTIMES)
every_algo = pytest.mark.parametrize("algo", FAMILIES)


class Broken(gymnasium.Env[Any, Any]):
    """Shows a number that is none after some steps."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    left = 40

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return np.full(2, np.nan if self.left < 0 else 0.5, np.float32), 1.0, False, False, {}


class Lottery(gymnasium.Env[Any, Any]):
    """The seed of an episode decides its return. Ten steps."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left, self.prize = 10, int(self.np_random.integers(2**24))
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return np.zeros(2, np.float32), float(self.prize if not self.left else 0), not self.left, False, {}


def learns_from_rollouts(algo: str) -> bool:
    return find_algo(algo).rows_are == "rollout"


def check_updates(algo: str, run: freewheel.Run) -> None:
    """As many as belong to its steps, and its ratio says so."""
    steps, updates = run.result["steps"], run.result["updates"]
    if learns_from_rollouts(algo):
        rollout = saved(run)["rollout"]
        assert (rollout["overwritten"], rollout["lost"]) == (0, 0)
        assert updates == (steps - rollout["stale"]) // A_ROLLOUT * UPDATES_A_ROLLOUT
        assert run.result["ratio"] == pytest.approx(2.0, rel=0.1)  # epochs
    else:
        assert updates == pytest.approx((steps - WARMUP) * UPDATES_A_STEP, abs=1)
        assert run.result["ratio"] == pytest.approx(REPLAY["learner.ratio"], rel=0.05)


def check_episodes(run: freewheel.Run, watch: Watch) -> None:
    assert [e.ret for e in watch.episodes] == run.returns
    # CartPole gives 1 a step: what the episodes took and what runs still are all the steps there were.
    assert 0 <= run.result["steps"] - sum(e.length for e in watch.episodes) < 500
    assert all(e.ret == e.length for e in watch.episodes)
    assert {e.lane for e in watch.episodes} == set(range(LANES))
    with open(run.folder / "episodes.csv") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["return"]) for row in rows] == run.returns
    assert "policy" not in rows[0]  # there is one


@every_algo
@every_run
def test_a_run_is_whole(runtime: str, algo: str, tmp_path: Path) -> None:
    watch = Watch()
    settings = {"eval_episodes": 5, "checkpoint.every_steps": 400, "log.every_s": 0.0}
    run = train(tmp_path, algo, runtime, callbacks=[watch], settings=settings)
    result = run.result
    assert (result["runtime"], result["algo"]) == (runtime, algo)
    assert 1200 <= result["steps"] < 1200 + 2 * LANES
    check_updates(algo, run)
    assert result["eval_return_mean"] >= 8
    assert watch.steps == sorted(watch.steps)
    assert (watch.steps[-1], watch.updates[-1]) == (result["steps"], result["updates"])
    check_episodes(run, watch)
    checkpoint = load_newest(run.folder / "checkpoints")
    assert checkpoint.step == result["steps"]
    assert checkpoint.state["updates"] == result["updates"]
    assert watch.paths[-1] == checkpoint.path
    assert run.policy().act(np.zeros(4, np.float32)) in (0, 1)
    wanted = LEARNER | METRICS[algo]
    assert wanted <= watch.metrics.keys()
    for name in (*(f"learner/{name}" for name in wanted), "train/updates", "train/ratio", "train/return_mean"):
        assert logged(run, name), name
    assert bool(logged(run, "train/epsilon")) == ("epsilon" in find_algo(algo).dials)
    assert min(logged(run, "time/infer_ms")) > 0


@every_algo
@every_run
def test_every_second_of_every_role_is_accounted_for(runtime: str, algo: str, tmp_path: Path) -> None:
    run = train(tmp_path, algo, runtime, steps=3000)
    assert run.account is not None
    assert run.result["account"]["verdict"].endswith(".")
    roles = run.result["account"]["roles"]
    assert set(roles) >= ({"sequential"} if runtime == "sequential" else {"learner", "actor-0", "supervisor"})
    for name, role in roles.items():
        assert 0.98 <= role["closed"] <= 1.02, f"{name}: {role}"


@every_algo
@every_run
def test_a_resumed_run_counts_on(runtime: str, algo: str, tmp_path: Path) -> None:
    replay = {} if learns_from_rollouts(algo) else {"checkpoint.replay": True}
    first = train(tmp_path, algo, runtime, settings=replay)
    before = saved(first)
    again = resume(first, steps=2400)
    after = saved(again)
    assert again.result["steps"] >= 2400
    assert again.result["seconds"] > first.result["seconds"]
    assert after["episodes"]["num_finished"] == len(first.returns) + len(again.returns)
    if not learns_from_rollouts(algo):
        check_updates(algo, again)
        return
    rollouts = after["version"] - before["version"]
    assert after["updates"] - before["updates"] == rollouts * UPDATES_A_ROLLOUT
    if runtime == "sequential":
        assert after["version"] == again.result["steps"] // A_ROLLOUT
    else:  # the rows in hand when it stopped are collected anew
        assert 0 <= (again.result["steps"] - first.result["steps"]) // A_ROLLOUT - rollouts <= 2


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_episodes_are_those_of_their_lanes_and_never_those_of_the_run_before(algo: str, tmp_path: Path) -> None:
    runs = [train(tmp_path, algo, "local", Lottery, steps=400, settings={"local.actors": actors}) for actors in (1, 2)]
    keys = [lane_key(seed_of(Config("Lottery"), "world.0.0.0"), lane) for lane in range(LANES)]
    own = {np.random.default_rng(episode_seed(key, i)).integers(2**24) for key in keys for i in range(100)}
    for run in runs:
        assert len(run.returns) > 30
        assert set(run.returns) <= own
    again = freewheel.train(Lottery, resume=runs[0].folder, steps=800, is_quiet=True)
    assert len(again.returns) > 30
    assert not own & set(again.returns)


@every_run
def test_without_its_replay_a_resumed_run_warms_up_again(runtime: str, tmp_path: Path) -> None:
    first = train(tmp_path, "dqn", runtime)
    again = resume(first, steps=2400)
    trained = again.result["steps"] - first.result["steps"] - WARMUP
    made = again.result["updates"] - first.result["updates"]
    assert made == pytest.approx(trained * UPDATES_A_STEP, abs=1)


@every_algo
@every_run
def test_a_callback_may_stop_it_and_steer_it(runtime: str, algo: str, tmp_path: Path) -> None:
    class Steer(Callback):
        def on_update(self, moment: Moment) -> None:
            moment.set("lr", 0.125)
            if moment.step > 1000 and moment.metrics().get("lr") == 0.125:
                moment.stop()

    run = train(tmp_path, algo, runtime, steps=1_000_000, callbacks=[Steer()])
    assert 1000 < run.result["steps"] < 1_000_000
    checkpoint = load_newest(run.folder / "checkpoints")
    assert checkpoint.step == run.result["steps"]
    assert checkpoint.state["dials"] == {"lr": 0.125}


@every_algo
@every_run
def test_a_callback_that_fails_ends_it_with_a_checkpoint(runtime: str, algo: str, tmp_path: Path) -> None:
    class Fail(Callback):
        def on_step(self, moment: Moment) -> None:
            if moment.step > 300:
                raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        train(tmp_path, algo, runtime, steps=1_000_000, callbacks=[Fail()])
    (folder,) = tmp_path.iterdir()
    assert load_newest(folder / "checkpoints").step > 300
    assert '"status": "failed"' in (folder / "status.json").read_text()


@every_run
@pytest.mark.parametrize("algo", ["dqn", "appo"])
def test_f09_a_number_that_is_none_ends_it(runtime: str, algo: str, tmp_path: Path) -> None:
    with pytest.raises(EnvError, match="Broken.*NaN"):
        train(tmp_path, algo, runtime, Broken)


def broken() -> Any:
    raise RuntimeError("no such env today")


@every_run
def test_an_env_that_cannot_be_made_is_told(runtime: str, tmp_path: Path) -> None:
    with pytest.raises(EnvError, match="no such env today"):
        train(tmp_path, "appo", runtime, broken)
    assert list(tmp_path.iterdir()) == []


@every_run
def test_what_cannot_work_is_refused_before_anything_starts(runtime: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="replay.rows"):
        train(tmp_path, "dqn", runtime, settings={"replay.rows": 4_000_000_000})
    with pytest.raises(ConfigError, match="Discrete action space"):
        train(tmp_path, "dqn", runtime, "Pendulum-v1")
    with pytest.raises(ConfigError, match="its own loss"):
        train(tmp_path, "appo", runtime, loss=max)
    assert list(tmp_path.iterdir()) == []


def test_a_run_goes_on_in_its_own_runtime(tmp_path: Path) -> None:
    first = train(tmp_path, "dqn", "sequential", steps=200)
    with pytest.raises(ConfigError, match="runtime was given, but a resumed run keeps its own"):
        resume(first, steps=400, settings={"runtime": "local"})
