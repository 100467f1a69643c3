"""Envs in PufferLib's form: an agent is a lane, and an episode that ended shows what was seen last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from puffer_env import Counts, Masked, of_two_agents
from sole import recv, send

import freewheel
from freewheel.config import WorldConfig
from freewheel.errors import ConfigError, EnvError
from freewheel.worlds.make import make_world
from freewheel.worlds.puffer import is_puffer


@pytest.mark.parametrize("env", [Counts, "puffer_env:Counts", lambda num_envs: Counts(num_envs)])
def test_rows_of_each_agent(env: Any) -> None:
    """Worked out by hand: agent 0 ends after 2 steps (terminated), agent 1 after 3 (truncated), agent 2 after 4 (terminated)."""
    world = make_world(env, WorldConfig(lanes=3), 0)
    seen: list[Any] = []
    for turn in range(5):
        ready = recv(world)
        if ready.ended is not None:
            for i, lane in enumerate(ready.ended.lanes.tolist()):
                ended = ready.ended
                flags = bool(ended.terminated[i]), bool(ended.truncated[i])
                seen.append((turn, lane, ended.obs["obs"][i].tolist(), float(ended.reward[i]), *flags))
        assert ready.lanes.tolist() == [0, 1, 2]
        assert ready.obs["obs"][:, 1].tolist() == [turn % 2, turn % 3, turn % 4]
        assert ready.first.tolist() == [turn % 2 == 0, turn % 3 == 0, turn % 4 == 0]
        assert ready.reward.tolist() == [float(not begins) for begins in ready.first]
        send(world, ready.lanes, np.ones(3, np.int64))
    assert seen == [
        (2, 0, [0, 1], 1.0, True, False),
        (3, 1, [1, 2], 1.0, False, True),
        (4, 0, [0, 1], 1.0, True, False),
        (4, 2, [2, 3], 1.0, True, False),
    ]
    inner: Any = world._envs[0]  # type: ignore[attr-defined]
    world.close()
    assert inner._env.is_closed


def test_agents_that_pause_are_refused() -> None:
    world = make_world(Masked, WorldConfig(lanes=3), 0)
    send(world, recv(world).lanes, np.zeros(3, np.int64))
    with pytest.raises(EnvError, match=r"agents \[1\] are masked out"):
        recv(world)
    world.close()


def test_lanes_are_agents() -> None:
    with pytest.raises(ConfigError, match=r"made 8 .* world.lanes=4"):
        make_world(of_two_agents, WorldConfig(lanes=4), 0)


def test_only_that_form_is_taken_for_it() -> None:
    assert is_puffer(Counts())
    assert not is_puffer(object())
    with pytest.raises(ConfigError, match="is not an env"):
        freewheel.train(Counts(), steps=10)


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_a_run_trains_and_evaluates_on_it(tmp_path: Path, algo: str) -> None:
    settings = {"log.folder": str(tmp_path), "world.lanes": 4, "runtime": "sequential", "eval_episodes": 4}
    run = freewheel.train(Counts, algo=algo, steps=600, settings=settings, is_quiet=True)
    assert run.result["steps"] >= 600
    assert run.result["eval_return_mean"] >= 0
    assert {episode.length for episode in run.episodes} == {2, 3, 4, 5}
