"""Other projects' ways to step many envs, behind JSON lines: `python -m benchmarks.peers.worlds_worker gym-async`.

{"op": "open", "env": "cartpole", "lanes": 128} -> {}
{"op": "step", "seconds": 0.5} -> {"rows_per_s": ...}
{"op": "close"} -> {}
"""

import importlib
import importlib.metadata
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from freewheel.bench.worker.serve import Message, die_with_parent, serve
from freewheel.bench.worker.window import measure_us
from freewheel.bench.worker.world_envs import IDS, maker, register_atari

# The pictures that our worlds ask of ale-py, so that the same work is done on both sides.
AS_OURS: dict[str, Any] = {
    "stack_num": 1,
    "noop_max": 0,
    "use_fire_reset": False,
    "reward_clipping": False,
    "autoreset_mode": "SameStep",
}


def gym_sync(env: str, lanes: int) -> Any:
    return gymnasium.vector.SyncVectorEnv([maker(env)] * lanes)


def gym_async(env: str, lanes: int) -> Any:
    return gymnasium.vector.AsyncVectorEnv([maker(env)] * lanes)


def gym_vector(env: str, lanes: int) -> Any:
    if env == "atari":
        register_atari()
    given = AS_OURS if env == "atari" else {}
    return gymnasium.make_vec(IDS[env], lanes, gymnasium.VectorizeMode.VECTOR_ENTRY_POINT, **given)


def sb3_dummy(env: str, lanes: int) -> Any:
    return importlib.import_module("stable_baselines3.common.vec_env").DummyVecEnv([maker(env)] * lanes)


def sb3_subproc(env: str, lanes: int) -> Any:
    return importlib.import_module("stable_baselines3.common.vec_env").SubprocVecEnv(
        [maker(env)] * lanes, start_method="fork"
    )


def envpool(env: str, lanes: int) -> Any:
    name = {"cartpole": "CartPole-v1", "atari": "Pong-v5"}[env]
    return importlib.import_module("envpool").make(name, env_type="gymnasium", num_envs=lanes)


def puffer(env: str, lanes: int) -> Any:
    emulation: Any = importlib.import_module("pufferlib.emulation")
    vector: Any = importlib.import_module("pufferlib.vector")

    def make(*_: Any, **given: Any) -> Any:
        return emulation.GymnasiumPufferEnv(env_creator=maker(env), **given)

    return vector.make(make, num_envs=lanes, backend=vector.Serial)


OPENERS: dict[str, Callable[[str, int], Any]] = {
    "gym-sync": gym_sync,
    "gym-async": gym_async,
    "gym-vector": gym_vector,
    "sb3-dummy": sb3_dummy,
    "sb3-subproc": sb3_subproc,
    "envpool": envpool,
    "puffer": puffer,
}
PACKAGE = {"gym": "gymnasium", "sb3": "stable-baselines3", "envpool": "envpool", "puffer": "pufferlib"}


def row_share(env: Any, actions: Any) -> float:
    """The share of a lane's steps that are rows: where the step after an end is nothing but a reset, that one is none."""
    mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
    if getattr(mode, "name", "") != "NEXT_STEP":
        return 1.0
    ends = 0
    for row in actions:
        _, _, terminated, truncated, _ = env.step(row)
        ends += int(np.count_nonzero(terminated | truncated))
    return 1 - ends / int(actions.size)


def main() -> None:
    die_with_parent()
    peer = sys.argv[1]
    opened: Any = None
    lanes = 0

    def open_envs(message: Message) -> Message:
        nonlocal opened, lanes
        lanes = message["lanes"]
        opened = OPENERS[peer](message["env"], lanes)
        opened.reset()
        return {}

    def step(message: Message) -> Message:
        space = opened.action_space if peer.startswith("sb3") else opened.single_action_space
        actions = np.random.default_rng(0).integers(0, space.n, (64, lanes))
        count = 0

        def call() -> None:
            nonlocal count
            opened.step(actions[count % 64])
            count += 1

        us = measure_us(call, message["seconds"])
        return {"rows_per_s": lanes * row_share(opened, actions) * 1e6 / us}

    def close(_: Message) -> Message:
        nonlocal opened
        if opened is not None:
            opened.close()
        opened = None
        return {}

    version = importlib.metadata.version(PACKAGE[peer.split("-")[0]])
    serve({"ready": peer, "version": version}, {"open": open_envs, "step": step, "close": close})


if __name__ == "__main__":
    main()
