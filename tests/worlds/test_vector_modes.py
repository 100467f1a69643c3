"""A vector env that resets in another way than it says is refused: its rows would be of the wrong episodes."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from counting import SCRIPTS, Counting, Script, play
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from sole import recv, send

from freewheel.errors import EnvError
from freewheel.worlds.vector import VectorWorld

ALL_AT_ONCE: list[Script] = [[(2, "terminated")]] * 2


def same_step(scripts: list[Script], is_nested: bool, said: AutoresetMode) -> SyncVectorEnv:
    makes = [partial(Counting, lane, script, is_nested=is_nested) for lane, script in enumerate(scripts)]
    env = SyncVectorEnv(makes, autoreset_mode=AutoresetMode.SAME_STEP)
    env.metadata = {**env.metadata, "autoreset_mode": said}
    return env


@pytest.mark.parametrize("said", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
@pytest.mark.parametrize("scripts", [SCRIPTS, ALL_AT_ONCE], ids=["some", "all"])
@pytest.mark.parametrize("is_nested", [False, True], ids=["plain", "nested"])
def test_a_mode_that_the_steps_belie_is_refused(said: AutoresetMode, scripts: list[Script], is_nested: bool) -> None:
    world = VectorWorld(same_step(scripts, is_nested, said), 3, "Counting")
    message = rf"info\['final_obs'\].*is AutoresetMode\.{said.name}.*Set it to AutoresetMode\.SAME_STEP"
    with pytest.raises(EnvError, match=message):
        play(world, 10)
    world.close()


class Masked(gymnasium.vector.VectorWrapper):
    """Tells which lanes have a final observation, and nothing else."""

    def step(self, actions: Any) -> Any:
        *given, info = self.env.step(actions)
        return *given, {"_final_obs": np.ones(len(actions), np.bool_)} if info else {}


def test_the_mask_alone_tells_it_too() -> None:
    world = VectorWorld(Masked(same_step(SCRIPTS, False, AutoresetMode.NEXT_STEP)), 3, "Counting")
    with pytest.raises(EnvError, match="SAME_STEP"):
        play(world, 10)
    world.close()


@pytest.mark.parametrize("mode", AutoresetMode)
def test_other_things_in_info_are_not_looked_at(mode: AutoresetMode) -> None:
    env = SyncVectorEnv([partial(gymnasium.make, "CartPole-v1")] * 2, autoreset_mode=mode)
    world = VectorWorld(gymnasium.wrappers.vector.RecordEpisodeStatistics(env), 3, "CartPole-v1")
    ends = 0
    for _ in range(40):
        ready = recv(world)
        ends += 0 if ready.ended is None else len(ready.ended.lanes)
        send(world, ready.lanes, np.ones(len(ready.lanes), np.int64))
    assert ends > 4
    world.close()
