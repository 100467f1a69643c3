"""`bench pixels`: its plan, its refusals, its sides on tiny work, and updates that are the same in every way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from benchmarks.peers import pixels_cleanrl_style, pixels_nets, pixels_plain, pixels_settings
from benchmarks.peers.frames_env import Frames
from benchmarks.peers.pixels_settings import BUFFER, MARIO_PARTS
from benchmarks.pixels import bench as pixels
from benchmarks.pixels import bounds, limit, mario, plan, training
from benchmarks.pixels.settings import PixelsSettings
from freewheel.bench import trainings
from freewheel.bench.harness import OURS
from freewheel.errors import ConfigError
from freewheel.memory.lanes import Lanes
from freewheel.spec import RowSpec


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """More than one spin while they wait, and stop each other where tests share a core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"cases": ("atarri",)}, "Did you mean 'atari'"),
        ({"cases": ("none",)}, "leaves nothing to measure"),
        ({"forms": ("none",)}, "leaves nothing to compare"),
        ({"envs": (3,)}, "cannot make one update per 4 steps"),
        ({"rows": 10}, "multiple of 4"),
        ({"threads": (0,)}, "--threads 0"),
        ({"seconds": 0.0}, "--seconds"),
    ],
)
def test_what_cannot_be_measured_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan.check(PixelsSettings(**wrong))


def test_the_plan_has_every_form_and_layout() -> None:
    settings = PixelsSettings(against=("cleanrl-style",), env="frames", threads=(1, 2), lanes=(4, 8))
    env, everybody = plan.plan(settings)
    assert env == "frames"
    assert sorted(c.name for c in everybody if c.side == OURS) == [
        "compiled, 4 lanes",
        "compiled, 8 lanes",
        "eager, 4 lanes",
        "eager, 8 lanes",
        "mixed, 4 lanes",
        "mixed, 8 lanes",
    ]
    assert sorted(c.name for c in everybody if c.side == "cleanrl-style") == ["1 env, 1 thread", "1 env, 2 threads"]
    assert {c.pace.ratio for c in everybody} == {8.0}


def test_a_game_that_is_missing_is_named_or_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "absent", lambda python, modules: ["cv2"])
    sides = {"sb3": (Path("/venv/bin/python"), "benchmarks.peers.pixels_sb3")}
    assert plan.choose_env("auto", sides) == "frames"
    with pytest.raises(ConfigError, match="--env pong needs .*cv2 in /venv"):
        plan.choose_env("pong", sides)


def test_the_frames_env_keeps_gymnasiums_contract() -> None:
    env = Frames()
    obs, _ = env.reset(seed=3)
    again, _ = Frames().reset(seed=3)
    assert (obs == again).all()
    assert env.observation_space.contains(obs)
    following, reward, terminated, truncated, _ = env.step(0)  # type: ignore[arg-type]
    assert env.observation_space.contains(following)
    assert reward in (0.0, 1.0)
    assert not terminated
    assert not truncated


def test_the_loops_ring_gives_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixels_cleanrl_style, "BUFFER", 16)
    ring = pixels_cleanrl_style.Ring()
    assert len(ring.obs) == 16 < BUFFER
    frames = [torch.full((4, 84, 84), i, dtype=torch.uint8).numpy() for i in range(41)]
    for i in range(40):
        ring.add(frames[i], i, float(i), frames[i + 1], False)
    obs, next_obs, action, reward, _ = ring.sample()
    assert torch.equal(obs[:, 0, 0, 0].long(), action)
    assert torch.equal(next_obs[:, 0, 0, 0].long(), action + 1)
    assert torch.equal(reward.long(), action)
    assert int(action.min()) >= 25  # the newest 15: the place after the head is being written


def test_every_way_to_update_gives_the_same_loss_and_weights() -> None:
    batch = pixels_plain.make_batch(MARIO_PARTS)
    ways = [pixels_plain.make_update(batch), mario.ours(batch, "channels_last")]
    plain, own = ([float(way()) for _ in range(2)] for way in ways)
    assert own == pytest.approx(plain, rel=1e-3)
    assert plain[0] != pytest.approx(plain[1], rel=1e-3)  # it learns
    with pytest.raises(Exception, match="do not make the same update"):
        mario._check_same({"a": 1.0, "b": float("nan")})


def test_the_networks_have_the_size_that_was_published() -> None:
    assert sum(p.numel() for p in pixels_nets.mario().parameters()) == 4_811_596


def test_the_case_tells_what_each_step_gave() -> None:
    figures = {("plain", 1): [1.0], ("plain", 2): [2.0], ("eager", 2): [3.0], ("compiled", 2): [5.0]}
    case = mario._case(2048, figures, {}, 1.8)
    record = case.record()
    assert (record["case"], record["baseline"], record["ratio"]) == ("pixels/mario/2048", "plain/2", 2.5)
    assert record["times_the_plain_loop"] == {"plain/1": 0.5, "plain/2": 1.0, "eager/2": 1.5, "compiled/2": 2.5}
    assert record["best"] == "compiled/2"


def test_the_image_path_is_that_since_training_got_under_way() -> None:
    def line(seconds: float, updates: int, **shares: float) -> dict[str, str]:
        named = {f"account/learner/{name}": str(share) for name, share in shares.items()}
        return {"train/seconds": str(seconds), "train/updates": str(updates), **named}

    warm = line(10, 64, start=0.1, wait_data=0.8, sample=0.0, compute=0.1, useful=0.1)
    end = line(20, 900, start=0.05, wait_data=0.4, sample=0.05, compute=0.5, useful=0.5)
    assert training.image_path([line(1, 0, wait_data=1.0), warm, end]) == pytest.approx(0.1)  # 1 s of 10
    assert training.image_path([end]) is None
    assert training.dropped([{"train/dropped_rows": "2", "train/dropped_logs": ""}]) == 2


def test_a_replay_keeps_each_frame_once() -> None:
    assert 0.82 < bounds.replay_gb(50_000, 128) < 0.9
    assert 7.05 < bounds.replay_gb(1_000_000, 84) < 7.5


def test_a_replay_takes_what_its_case_says() -> None:
    spec = RowSpec.of(spaces.Box(0, 255, (84, 84), np.uint8), spaces.Discrete(pixels_settings.ACTIONS))
    lanes = Lanes(spec, 8, 50)
    assert lanes.nbytes / 1e9 == bounds.replay_gb(400, 84)


def test_the_bounds_are_cases_of_their_own() -> None:
    def window(path: float | None, closed: float, drops: int) -> dict[str, Any]:
        account = {"closed": closed}
        figures = {"steps_per_s": 200.0, "updates_per_step": 0.25, "seconds": 1.0}
        return {**figures, "image_path": path, "drops": drops, "account": account}

    def sides(*windows: dict[str, Any]) -> list[Any]:
        best = trainings.Configuration(plan.ATARI, OURS, "a", Path(), "m", {}, list(windows))
        other = trainings.Configuration(plan.ATARI, OURS, "b", Path(), "m", {}, [window(None, 0.5, 3)])
        peer = trainings.Configuration(plan.ATARI, "sb3", "c", Path(), "m", {}, [{"steps_per_s": 1.0}])
        return [best, other, peer]

    everybody = sides(window(0.01, 0.999, 0), window(0.02, 0.97, 0), window(0.09, 0.999, 0))
    path, drops, account = bounds.training_cases(everybody[0], everybody, convert_s=4e-4)
    record = path.record()  # 50 updates a second of 0.4 ms each are 2 %
    assert (record["case"], record["ours"], record["unit"], record["goal"]) == ("pixels/path/32", 4.0, "%", 1.0)
    assert record["ratio"] == 1.25
    assert record["spread"]["ours"] == [3.0, 11.0]
    assert (drops.record()["ours"], drops.record()["ratio"]) == (3.0, 0.0)  # of any of our windows
    assert account.record()["ours"] == 97.0  # the worst window
    assert account.record()["ratio"] < account.record()["goal"]
    everybody = sides(window(None, 0.999, 0))[:1]
    drops, account = bounds.training_cases(everybody[0], everybody, convert_s=4e-4)
    assert (drops.record()["ratio"], drops.record()["goal"]) == (1.0, 1.0)
    assert account.record()["ratio"] > 1.0
    small, large = (case.record() for case in bounds.replay_cases())
    assert (small["case"], large["case"]) == ("pixels/replay/50000x8x128x128", "pixels/replay/1000000x4x84x84")
    assert (small["baselines"], large["baselines"]) == ({"bound": 0.9}, {"bound": 7.5})
    assert min(small["ratio"], large["ratio"]) >= 1.0


def test_a_disturbed_block_does_not_tell_what_a_conversion_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = iter([6.5e-3, 3.5e-4, 3.6e-4, 9e-3, 3.4e-4])
    monkeypatch.setattr(limit, "_best", lambda calls, before: (("contiguous", 1), next(taken)))
    monkeypatch.setattr(limit, "PAUSE_S", 0.0)
    seconds, each = limit.convert_s(2)
    assert seconds == 3.6e-4
    assert each == [6.5e-3, 3.5e-4, 3.6e-4, 9e-3, 3.4e-4]
    taken = iter([2.0, 1.5, 1.0, 1.5, 3.0])  # of the arithmetic the fastest: it is the limit that ours is held against
    assert limit.arithmetic_s(2)[0] == 1.0


def test_the_arithmetic_alone_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit, "ROUNDS", 1)
    monkeypatch.setattr(limit, "CALLS", 1)
    monkeypatch.setattr(limit, "BATCH", 2)
    monkeypatch.setattr(limit, "BLOCKS", 1)
    seconds, form = limit.arithmetic_s(1)
    assert 0 < seconds < 10
    assert form.endswith("1 threads")
    assert limit.convert_s(1)[0] > 0
    assert limit.counts_of((2, 4), 1) == [1]


def test_a_conversion_is_timed_as_the_form_of_ours_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def compiled(function: Any, args: Any) -> Any:
        made.append(function(*args))
        return function, Path()

    for name, value in {"ROUNDS": 1, "CALLS": 1, "BATCH": 2, "BLOCKS": 1}.items():
        monkeypatch.setattr(limit, name, value)
    monkeypatch.setattr(limit.package, "compiled", compiled)
    assert limit.convert_s(1)[0] > 0
    assert not made
    assert limit.convert_s(1, "compiled")[0] > 0
    assert [one.shape for one in made[0]] == [(2, 4, 84, 84)] * 2
    assert all(one.is_contiguous(memory_format=torch.channels_last) for one in made[0])


def test_what_comes_before_a_call_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    clock = iter(range(100))
    monkeypatch.setattr(limit.time, "perf_counter", lambda: said.append("look") or next(clock))
    limit._seconds(lambda: said.append("call"), lambda: said.append("before"))
    assert said == ["before", "look", "call", "look"] * limit.CALLS


@pytest.mark.slow
def test_ours_and_a_plain_loop_from_end_to_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(plan, "LEAST_UPDATES", 2)
    monkeypatch.setattr(trainings, "RATIO_TOLERANCE", 10.0)  # of a window with a handful of updates
    monkeypatch.setattr(limit, "ROUNDS", 1)
    monkeypatch.setattr(limit, "CALLS", 1)
    monkeypatch.setattr(limit, "BLOCKS", 1)
    settings = PixelsSettings(
        against=("cleanrl-style",),
        cases=("atari",),
        env="frames",
        forms=("eager",),
        lanes=(4,),
        threads=(1,),
        rounds=1,
        seconds=0.5,
        warm_s=0.0,
        json=True,
    )
    first, second, *bounds = pixels.run(settings)
    assert first.name == "pixels/atari/32"
    assert set(first.peers) == {"cleanrl-style"}
    names = [case.name for case in bounds]
    assert names[-4:-2] == ["pixels/drops/32", "pixels/account/32"]
    assert names[-2:] == ["pixels/replay/50000x8x128x128", "pixels/replay/1000000x4x84x84"]
    assert {case.name: case.ratio for case in bounds}["pixels/drops/32"] == 1.0
    assert second.baseline == "limit"
    assert second.ratio is not None
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [case["case"] for case in last["cases"]] == ["pixels/atari/32", "pixels/arithmetic/32", *names]
    assert all(case["goal"] for case in last["cases"])
