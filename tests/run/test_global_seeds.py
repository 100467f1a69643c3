"""What envs and networks draw from the generators that libraries share: each process its own, the same in the next run."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from run_cases import train

from freewheel.machine.global_seeds import globals_seeded, seed_globals
from freewheel.worlds.pool import PoolWorld

DRAWS = 3


def drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.random()), float(torch.rand(()))


class Shaken(gymnasium.Env[Any, Any]):
    """Shows what it draws; an episode is one step, whose reward is the sum."""

    observation_space = spaces.Box(0, 3, (DRAWS,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.array(drawn(), np.float32), {}

    def step(self, action: Any) -> Any:
        obs = np.array(drawn(), np.float32)
        return obs, float(obs.sum()), True, False, {}


def test_a_seed_gives_the_same_numbers_and_the_caller_keeps_his() -> None:
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]
    found = []
    for seed in (2**40 + 1, 2**40 + 1, 2):
        with globals_seeded(seed):
            found.append(drawn())
    assert found[0] == found[1]
    assert not set(found[0]) & set(found[2])
    with pytest.raises(ValueError, match="stop"), globals_seeded(1):
        raise ValueError("stop")
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]
    assert after == before


def first_rows(seed: int, first_lane: int = 0, kill: bool = False) -> list[tuple[float, ...]]:
    """What the first rows of two workers show; with `kill` those of the worker that replaces the first one."""
    world = PoolWorld([Shaken, Shaken], seed, "Shaken", 2, first_lane=first_lane, min_ready=2)
    try:
        (ready,) = world.recv()
        if kill:
            os.kill(world.pids[0], signal.SIGKILL)
            world.send(0, ready.lanes, {"action": np.zeros(2, np.int64)})
            (ready,) = world.recv()
        return [tuple(row) for row in ready.obs["obs"].tolist()]
    finally:
        world.close()


def test_each_worker_of_a_pool_draws_its_own_numbers_and_the_same_in_the_next_run() -> None:
    found = first_rows(5)
    assert all(one != two for one, two in zip(*found, strict=True))
    assert first_rows(5) == found
    others = [*first_rows(6), *first_rows(5, first_lane=2), first_rows(5, kill=True)[0]]
    assert len({*found, *others}) == 7, "another run, another actor or another life draws the same"


LATE = """
import sys

import gymnasium
import numpy as np
from gymnasium import spaces


class Late(gymnasium.Env):
    observation_space, action_space = spaces.Box(0, 2, (2,), np.float32), spaces.Discrete(2)

    def __init__(self):
        self.was_late = "torch" not in sys.modules
        import torch

        self.torch = torch

    def reset(self, *, seed=None, options=None):
        return np.array([self.torch.rand(()), self.was_late], np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, True, False, {}
"""


def test_a_worker_whose_env_loads_torch_late_draws_the_same_in_the_next_run(tmp_path: Path) -> None:
    """In a script of its own, whose forkserver has loaded no torch."""
    (tmp_path / "late.py").write_text(LATE)
    script = """
import numpy as np
from freewheel.worlds.pool import PoolWorld
from late import Late

if __name__ == "__main__":
    for seed in (5, 5, 6):
        world = PoolWorld([Late, Late], seed, "Late", 2, min_ready=2)
        (ready,) = world.recv()
        print(*ready.obs["obs"].ravel().tolist())
        world.close()
"""
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    one, again, other = ([float(word) for word in line.split()] for line in done.stdout.splitlines())
    assert one == again
    assert len({one[0], one[2], other[0], other[2]}) == 4
    assert [one[1], one[3]] == [1, 1], "torch was there before the env"


def returns(folder: Path, runtime: str, seed: int) -> dict[int, float]:
    """The first return of each lane."""
    settings = {"world.kind": "inline", "log.every_s": 0.0}
    if runtime == "local":
        settings |= {"local.actors": 2, "world.lanes": 2}
    run = train(folder, "dqn", runtime, Shaken, steps=300, seed=seed, settings=settings)
    found: dict[int, float] = {}
    for episode in run.episodes:
        found.setdefault(episode.lane, episode.ret)
    return found


@pytest.mark.parametrize("runtime", ["sequential", "local"])
def test_a_run_is_repeated_and_every_actor_draws_its_own_numbers(tmp_path: Path, runtime: str) -> None:
    seed_globals(1)
    before = random.getstate()
    one = returns(tmp_path, runtime, 3)
    assert random.getstate() == before
    seed_globals(2)
    assert returns(tmp_path, runtime, 3) == one
    assert len(set(one.values())) == len(one) > 1
    if runtime == "sequential":
        assert not set(returns(tmp_path, runtime, 4).values()) & set(one.values())
