"""Envs that break their contract: each breach names env, lane, seed, step, value and cure."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from sole import recv, send

from freewheel.config import WorldConfig
from freewheel.errors import ConfigError, EnvError
from freewheel.worlds.inline import InlineWorld
from freewheel.worlds.make import make_world
from freewheel.worlds.vector import VectorWorld
from freewheel.worlds.world import World

ZEROS = np.zeros(3, np.float32)


class Faulty(gymnasium.Env[Any, Any]):
    """Two good steps, then what it is told to give; or it fails where it is told to."""

    def __init__(self, observation_space: Any = None, good: Any = ZEROS, **faults: Any) -> None:
        self.observation_space = observation_space or spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.good, self.faults, self.count = good, faults, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.count = 0
        if "reset" in self.faults:
            return self.give(self.faults["reset"])
        return self.good, {}

    def step(self, action: Any) -> Any:
        self.count += 1
        if self.count < 3:
            return self.good, 0.0, False, False, {}
        f = self.faults
        if "step" in f:
            return self.give(f["step"])
        return f.get("obs", self.good), f.get("reward", 0.0), f.get("terminated", False), f.get("truncated", False), {}

    def close(self) -> None:
        if "close" in self.faults:
            self.give(self.faults["close"])

    def give(self, fault: Any) -> Any:
        if isinstance(fault, BaseException):
            raise fault
        return fault


def run(fault: dict[str, Any], lanes: int = 3, at: int = 1, **options: Any) -> None:
    """Lane `at` of them has the fault."""
    envs = [Faulty(**options, **(fault if lane == at else {})) for lane in range(lanes)]
    steps(InlineWorld(envs, 5, "Faulty-v0"))


def steps(world: World, num_recvs: int = 5) -> None:
    for _ in range(num_recvs):
        ready = recv(world)
        send(world, ready.lanes, np.zeros(len(ready.lanes), np.int64))


def fail_and_close(world: World) -> None:
    try:
        raise KeyError("the first error")
    finally:
        world.close()


def with_value(value: Any, at: int = 2) -> np.ndarray[Any, Any]:
    obs = ZEROS.copy()
    obs[at] = value
    return obs


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"obs": with_value(np.nan)}, r"gave NaN in obs\[2\] at step 3"),
    ({"obs": with_value(-np.inf, 0)}, r"gave -inf in obs\[0\] at step 3"),
    ({"obs": np.zeros(4, np.float32)}, r"obs of shape \(4,\), and its space says \(3,\), at step 3"),
    ({"obs": np.zeros((3, 1), np.float32)}, r"obs of shape \(3, 1\)"),
    (
        {"obs": np.zeros(3)},
        r"dtype float64, and its space says float32.*astype\(np.float32\), or declare dtype float64",
    ),
    ({"obs": [0.0, 0.0, 0.0]}, r"obs as list .*np.array\(obs, dtype=np.float32\)"),
    ({"obs": None}, r"obs as NoneType"),
    ({"reward": np.nan}, r"gave the reward nan at step 3"),
    ({"reward": float("inf")}, r"gave the reward inf"),
    ({"reward": 1e39}, r"gave the reward 1e\+39"),
    ({"reward": 10**400}, r"gave the reward 1000"),
    ({"reward": True}, r"gave True \(bool\) as reward.*one number"),
    ({"reward": None}, r"gave None \(NoneType\) as reward"),
    ({"reward": "1"}, r"gave '1' \(str\) as reward"),
    ({"reward": np.ones(2)}, r"the array of shape \(2,\) \(ndarray\) as reward"),
    ({"terminated": "no"}, r"gave 'no' \(str\) as terminated.*as a bool"),
    ({"truncated": 0.5}, r"gave 0.5 \(float\) as truncated"),
    (
        {"step": (ZEROS, 0.0, False, {})},
        r"a tuple of 4 \(ndarray, float, bool, dict\) from step\(\).*terminated, trunc",
    ),
    ({"step": None}, r"returned NoneType None from step"),
    ({"step": RuntimeError("motor broke")}, r"raised RuntimeError: motor broke in step\(\) at step 3"),
    ({"reset": ZEROS}, r"returned an array of shape \(3,\).* from reset\(\) at the reset.*\(obs, info\)"),
    ({"reset": (ZEROS, None)}, r"from reset\(\)"),
    ({"reset": (np.zeros(3), {})}, r"dtype float64.*at the reset of the episode"),
    ({"reset": OSError("no simulator")}, r"raised OSError: no simulator in reset\(\)"),
]


def test_each_breach_says_who_where_what_and_the_cure() -> None:
    for fault, message in FAULTS:
        with pytest.raises(EnvError, match=message) as caught:
            run(fault)
        text = str(caught.value)
        assert text.startswith("Faulty-v0 (lane 1) "), text
        assert "of the episode with seed " in text, text
        assert text.endswith("."), text


def test_the_cause_is_chained() -> None:
    cause = RuntimeError("motor broke")
    with pytest.raises(EnvError) as caught:
        run({"step": cause})
    assert caught.value.__cause__ is cause


def test_harmless_variety_is_taken() -> None:
    for fault in [
        {"reward": 1},
        {"reward": np.float16(1)},
        {"reward": np.int8(1)},
        {"reward": np.ones((1,))},
        {"reward": np.array(2.0)},
        {"terminated": np.bool_(True)},
        {"truncated": np.array(True)},
        {"terminated": 1},
        {"obs": np.zeros((3, 2), np.float32)[:, 0]},  # not contiguous
    ]:
        run(fault)


def test_scalar_and_nested_observations() -> None:
    five = {"observation_space": spaces.Discrete(5), "good": 4}
    run({"obs": np.int32(3)}, **five)
    run({"obs": np.array(3)}, **five)
    for obs, message in [
        (5, r"gave 5 in obs, which is not in Discrete\(5\)"),
        (-1, "gave -1"),
        (2.0, "obs as float 2.0"),
        (10**30, "not in"),
    ]:
        with pytest.raises(EnvError, match=message):
            run({"obs": obs}, **five)
    space = spaces.Dict(pos=spaces.Box(-1, 1, (3,), np.float32), bag=spaces.Tuple([spaces.MultiDiscrete([3, 4])]))
    good = {"pos": ZEROS, "bag": (np.array([2, 3]),)}
    for obs, message in [
        ({"pos": ZEROS}, r"without obs.bag.0, a dict of pos,"),
        ({"pos": with_value(np.nan), "bag": good["bag"]}, r"NaN in obs.pos\[2\]"),
        ({"pos": ZEROS, "bag": (np.array([2, 4]),)}, r"gave 4 in obs.bag.0\[1\]"),
        ({"pos": ZEROS, "bag": ()}, r"without obs.bag.0"),
        (ZEROS, r"without obs.pos, an array of shape \(3,\)"),
    ]:
        with pytest.raises(EnvError, match=message):
            run({"obs": obs}, observation_space=space, good=good)


def test_spaces_that_rows_cannot_hold_are_refused_before_anything_starts() -> None:
    for kind, space in [
        ("observation_space", spaces.Text(5)),
        ("observation_space", spaces.Dict(a=spaces.Sequence(spaces.Discrete(2)))),
        ("action_space", spaces.Dict(a=spaces.Text(2))),
    ]:
        env = Faulty()
        setattr(env, kind, space)
        with pytest.raises(ConfigError, match="Faulty-v0.*Wrap the env"):
            InlineWorld([env], 0, "Faulty-v0")


def test_lanes_must_be_alike_and_apart() -> None:
    env = Faulty()
    with pytest.raises(ConfigError, match="the same env for two lanes"):
        make_world(lambda: env, WorldConfig(lanes=2), 0)
    with pytest.raises(ConfigError, match=r"lane 1 has the observation_space .* lane 0 has"):
        InlineWorld([env, Faulty(spaces.Box(-2, 1, (3,), np.float32))], 0, "Faulty-v0")


def test_close_closes_every_lane_and_then_tells(capsys: pytest.CaptureFixture[str]) -> None:
    closed: list[int] = []

    class Closing(Faulty):
        def close(self) -> None:
            closed.append(self.faults["lane"])
            super().close()

    def make() -> InlineWorld:
        closed.clear()
        faults: list[dict[str, Any]] = [{}, {"close": OSError("port in use")}, {}]
        return InlineWorld([Closing(lane=lane, **fault) for lane, fault in enumerate(faults)], 0, "Faulty-v0")

    with pytest.raises(EnvError, match=r"\(lane 1\) raised OSError: port in use in close"):
        make().close()
    assert closed == [0, 1, 2]
    world = make()
    with pytest.raises(KeyError, match="the first error"):
        fail_and_close(world)
    assert closed == [0, 1, 2]
    assert "port in use" in capsys.readouterr().err
    world.close()


class FaultyVector(VectorEnv[Any, Any, Any]):
    """Three lanes; the second step gives what it is told to."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, **faults: Any) -> None:
        self.num_envs = 3
        self.single_observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, 3)
        self.action_space = batch_space(self.single_action_space, 3)
        self.faults, self.count = faults, 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if "reset" in self.faults:
            raise self.faults["reset"]
        return np.zeros((3, 2), np.float32), {}

    def close(self, **given: Any) -> None:
        if "close" in self.faults:
            raise self.faults["close"]

    def step(self, actions: Any) -> Any:
        self.count += 1
        given: dict[str, Any] = {
            "obs": np.zeros((3, 2), np.float32),
            "reward": np.zeros(3),
            "terminated": np.zeros(3, np.bool_),
            "truncated": np.zeros(3, np.bool_),
            "info": {},
        }
        if self.count == 2:
            if isinstance(self.faults.get("step"), BaseException):
                raise self.faults["step"]
            given |= {name: value for name, value in self.faults.items() if name != "close"}
        return tuple(given.values())


def test_a_vector_env_is_held_to_the_same_contract() -> None:
    nan = np.zeros((3, 2), np.float32)
    nan[2, 1] = np.nan
    faults: list[tuple[dict[str, Any], str]] = [
        ({"obs": nan}, r"\(lane 2\) gave NaN in obs\[1\] at step 2"),
        ({"obs": np.zeros((3, 2))}, r"dtype float64, and its space says float32"),
        ({"obs": np.zeros((2, 2), np.float32)}, r"shape \(2, 2\) instead of \(3, 2\)"),
        ({"reward": np.array([0, np.inf, 0])}, r"\(lane 1\) gave the reward inf at step 2"),
        ({"reward": [0.0] * 3}, r"reward as list"),
        ({"reward": np.array(["a"] * 3)}, r"rewards of dtype"),
        ({"terminated": np.zeros(3)}, r"terminated of dtype float64"),
        ({"terminated": np.ones(3, np.bool_)}, r"without info\['final_obs'\]"),
        ({"step": ValueError("gone")}, r"\(all lanes\) raised ValueError: gone in step"),
        ({"extra": 1}, r"a tuple of 6"),
    ]
    for fault, message in faults:
        world = VectorWorld(FaultyVector(**fault), 0, "Faulty-v0")
        with pytest.raises(EnvError, match=message):
            steps(world)
        world.close()


class Sloppy(FaultyVector):
    """Lane 0 ends at every second step; its reset keeps the last reward and flag; actions are written over."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def step(self, actions: Any) -> Any:
        assert self.action_space.contains(actions), actions
        actions[:] = -1
        obs, reward, terminated, truncated, info = super().step(actions)
        terminated[0] = self.count % 3 in (2, 0)
        reward[0] = 7
        if self.count == 7:
            obs[0, 0] = np.nan
        return obs, reward, terminated, truncated, info


def test_leftovers_of_an_episode_do_not_reach_the_next() -> None:
    world = VectorWorld(Sloppy(), 0, "Sloppy-v0")
    seen = []
    for _ in range(7):
        ready = recv(world)
        send(world, ready.lanes, np.zeros(len(ready.lanes), np.int64))
        if ready.ended is not None:
            seen.append((ready.ended.lanes.tolist(), "ended"))
        seen += [(float(ready.reward[0]), bool(ready.first[0]))] if ready.lanes[0] == 0 else []
    episode = [(0.0, True), (7.0, False), ([0], "ended")]
    assert seen == [*episode, *episode, (0.0, True)]
    with pytest.raises(EnvError, match=r"\(lane 0\) gave NaN in obs\[0\] at step 1 of the episode"):
        recv(world)
    world.close()


def test_a_vector_env_must_say_how_it_begins_again() -> None:
    for metadata in ({}, {"autoreset_mode": "sometimes"}):
        env = FaultyVector()
        env.metadata = metadata
        with pytest.raises(ConfigError, match=r"autoreset_mode.*AutoresetMode.NEXT_STEP"):
            VectorWorld(env, 0, "Faulty-v0")


def test_an_error_inside_a_vector_env_keeps_its_cause() -> None:
    world = VectorWorld(SyncVectorEnv([lambda: Faulty(step=RuntimeError("motor broke"))]), 0, "Faulty-v0")
    with pytest.raises(EnvError, match="motor broke") as caught:
        steps(world)
    assert isinstance(caught.value.__cause__, RuntimeError)
    world.close()


@pytest.mark.parametrize("where", ["step", "reset", "close", "make"])
@pytest.mark.parametrize("kind", ["inline", "vector"])
def test_f23_sys_exit_in_an_env_is_its_error(kind: str, where: str) -> None:
    def make(num_envs: int = 1) -> Any:
        if where == "make":
            raise SystemExit(0)
        return FaultyVector(**fault) if kind == "vector" else Faulty(**fault)

    def make_one() -> Any:
        return make()

    def play_all() -> None:
        world = make_world(make if kind == "vector" else make_one, WorldConfig(lanes=3), 0)
        steps(world, 4)
        world.close()

    fault = {where: SystemExit(0)}
    with pytest.raises(EnvError, match=r"raised SystemExit"):
        play_all()
