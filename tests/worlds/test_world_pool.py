"""The pool: nobody is held by the slowest, and what dies, hangs or breaks its contract is replaced or told of."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pool_envs import Told
from sole import recv, send

from freewheel.config import WorldConfig
from freewheel.errors import ConfigError, EnvError
from freewheel.worlds.inline import InlineWorld
from freewheel.worlds.make import make_env, make_world
from freewheel.worlds.pool import PoolWorld
from freewheel.worlds.world import Ready, World

Make = Callable[[], Any]
# Turns that a sound worker's lanes may take while another one dies and is started again, on a busy machine.
LONG = 1_000_000


def pool(makes: list[Make], workers: int, **options: Any) -> PoolWorld:
    return PoolWorld(makes, 5, "Told-v0", workers, **{"min_ready": 1, "ready_wait_s": 0.01, **options})


def answer(world: World, ready: Ready) -> None:
    send(world, ready.lanes, np.ones(len(ready.lanes), np.int64))


def steps(world: World, num_recvs: int) -> list[int]:
    """How often each lane came."""
    count = [0] * world.num_lanes
    for _ in range(num_recvs):
        ready = recv(world)
        for lane in ready.lanes.tolist():
            count[lane] += 1
        answer(world, ready)
    return count


def play(world: World, done: Callable[[list[int]], bool], seconds: float = 30.0) -> list[int]:
    """Plays on until the lanes came often enough."""
    count, end = [0] * world.num_lanes, time.monotonic() + seconds
    while not done(count):
        assert time.monotonic() < end, count
        for lane, more in enumerate(steps(world, 1)):
            count[lane] += more
    return count


def until(world: PoolWorld, done: Callable[[Ready], bool], seconds: float = 30.0) -> Ready:
    """Plays on until recv gives what is looked for; it is not answered."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ready = recv(world)
        if done(ready):
            return ready
        answer(world, ready)
    raise AssertionError("it never came")


@pytest.mark.parametrize(("workers", "threads"), [(4, 1), (2, 2)])
def test_a_slow_lane_holds_nobody(tmp_path: Path, workers: int, threads: int) -> None:
    go = tmp_path / "go"
    waits = partial(Told, "wait", once=str(go))
    world = pool([Told, waits, Told, Told], workers, threads=threads)
    play(world, lambda count: count[1] == 3)  # its reset and two steps
    assert play(world, lambda count: min(count[0], count[2], count[3]) > 30)[1] == 0
    go.touch()
    until(world, lambda ready: 1 in ready.lanes)
    world.close()


def test_lanes_that_are_done_do_not_wait_for_a_slow_one_of_the_same_worker(tmp_path: Path) -> None:
    go = tmp_path / "go"
    world = pool([Told, Told, partial(Told, "wait", 1, str(go))], 1)
    seen: set[int] = set()
    ready = recv(world)
    while len(seen | set(ready.lanes.tolist())) < 3:  # resets may come one by one
        seen |= set(ready.lanes.tolist())
        ready = recv(world)
    send(world, np.arange(3), np.ones(3, np.int64))
    done: set[int] = set()
    while done != {0, 1}:
        done |= set(recv(world).lanes.tolist())
    go.touch()
    assert recv(world).lanes.tolist() == [2]
    world.close()


def test_a_slow_reset_holds_nobody(tmp_path: Path) -> None:
    go = tmp_path / "go"
    slow = partial(Told, "slow reset", 1, str(go), length=2)  # its second reset waits
    world = pool([slow, Told, Told], 3)
    play(world, lambda count: count[0] == 2)  # the first row and one step; the end comes with the next beginning
    assert play(world, lambda count: min(count[1:]) > 30)[0] == 0
    go.touch()
    ready = until(world, lambda ready: 0 in ready.lanes)
    assert ready.ended is not None
    assert ready.ended.lanes.tolist() == [0]
    assert ready.ended.obs["obs"][0, 1] == 2
    assert ready.first[ready.lanes.tolist().index(0)]
    world.close()


def test_fewer_lanes_come_when_the_time_for_more_is_over(tmp_path: Path) -> None:
    go = tmp_path / "go"
    waits = partial(Told, "wait", 1, str(go))
    world = pool([Told, waits, waits], 3, min_ready=2)
    steps(world, 1)
    ready = until(world, lambda ready: not ready.first.any())
    assert ready.lanes.tolist() == [0]
    go.touch()
    world.close()


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("min_ready", [0, 5])
def test_rows_do_not_depend_on_who_steps_them(workers: int, min_ready: int) -> None:
    make = partial(make_env, "CartPole-v1", WorldConfig(max_episode_steps=9))

    def rows(world: World) -> list[list[bytes]]:
        found: list[list[bytes]] = [[] for _ in range(5)]
        while min(map(len, found)) < 30:
            ready = recv(world)
            if ready.ended is not None:
                for i, lane in enumerate(ready.ended.lanes.tolist()):
                    found[lane].append(ready.ended.obs["obs"][i].tobytes())
            for i, lane in enumerate(ready.lanes.tolist()):
                found[lane].append(ready.obs["obs"][i].tobytes() + bytes([int(ready.first[i])]))
            send(world, ready.lanes, np.array([len(found[lane]) % 2 for lane in ready.lanes]))
        world.close()
        return [lane[:30] for lane in found]

    inline = rows(InlineWorld([make() for _ in range(5)], 7, "CartPole-v1"))
    assert rows(PoolWorld([make] * 5, 7, "CartPole-v1", workers, min_ready=min_ready)) == inline


def cut_in(ready: Ready, begun: set[int]) -> set[int]:
    """Lanes that begin again although their episode has not ended: nothing is said of what their last action did."""
    over = set() if ready.ended is None else set(ready.ended.lanes.tolist())
    cut = (set(ready.lanes[ready.first].tolist()) & begun) - over
    for lane in cut:
        assert ready.obs["obs"][ready.lanes.tolist().index(lane), 1] == 0
    return cut


@pytest.mark.parametrize("is_in_flight", [True, False])
def test_a_killed_worker_is_replaced_and_its_lanes_are_cut(is_in_flight: bool) -> None:
    world = pool([Told] * 4, 2, min_ready=4)
    for _ in range(5):
        answer(world, recv(world))
    before = world.pids
    if not is_in_flight:
        ready = recv(world)
    os.kill(before[1], signal.SIGKILL)
    if not is_in_flight:
        answer(world, ready)
    cut: set[int] = set()
    while cut != {2, 3}:
        ready = recv(world)
        assert ready.ended is None, "an end that no env gave"
        cut |= cut_in(ready, {0, 1, 2, 3})
        assert cut <= {2, 3}
        answer(world, ready)
    assert (world.num_restarts, world.num_truncated) == (1, 2)
    assert world.pids[0] == before[0]
    assert world.pids[1] != before[1]
    (note,) = world.take_notes()
    assert f"worker 1 (pid {before[1]}, lanes 2-3) died by SIGKILL" in note
    assert "restart 1 of 3" in note
    play(world, lambda count: min(count) > 5)
    world.close()


@pytest.mark.parametrize("fault", ["die", "hang"])
def test_a_worker_that_dies_or_hangs_in_a_step_is_replaced(tmp_path: Path, fault: str) -> None:
    sick = partial(Told, fault, once=str(tmp_path / "done"))
    world = pool([Told, sick, Told, Told], 2, step_timeout_s=0.5, first_lane=40)
    begun, cut = set[int](), set[int]()

    def has_cut(ready: Ready) -> bool:
        assert ready.ended is None, "an end that no env gave"
        cut.update(cut_in(ready, begun))
        begun.update(ready.lanes.tolist())
        return bool(cut)

    ready = until(world, has_cut)
    assert cut <= {0, 1}
    (note,) = world.take_notes()
    assert ", lanes 40-41) " in note  # as the run numbers them
    assert ("died by SIGKILL" if fault == "die" else "finished none of lanes 4") in note
    answer(world, ready)
    until(world, lambda ready: 1 in ready.lanes and bool(ready.obs["obs"][ready.lanes.tolist().index(1), 1] > 5))
    assert world.num_restarts == 1
    world.close()


def test_new_episodes_are_not_those_that_a_worker_died_of() -> None:
    world = pool([Told], 1)
    first = recv(world)
    seen = first.obs["obs"].copy()
    os.kill(world.pids[0], signal.SIGKILL)
    answer(world, first)
    again = until(world, lambda ready: bool(ready.first.any()))
    assert seen[0, 0] != again.obs["obs"][0, 0]
    world.close()


def test_a_worker_that_dies_again_and_again_ends_the_pool() -> None:
    world = pool([Told, partial(Told, "die")], 2, restarts=2)
    with pytest.raises(EnvError, match=r"worker 1 .* died by SIGKILL.*death 3 .*and at most 2 are replaced") as caught:
        steps(world, LONG)
    assert caught.value.__cause__ is not None  # the env broke no contract: another start may help
    assert world.num_restarts == 2
    world.close()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("exit 0", r"worker 1 .* ended with exit code 0\. That was death 1"),
        ("sys.exit", r"Told-v0 \(lane 1\) raised SystemExit: 0 in step"),
    ],
)
def test_f23_a_worker_that_leaves_without_an_error_has_died(fault: str, message: str) -> None:
    world = pool([Told, partial(Told, fault)], 2, restarts=0)
    with pytest.raises(EnvError, match=message):
        steps(world, LONG)
    world.close()


def test_a_worker_that_leaves_is_told_of() -> None:
    world = pool([Told, partial(Told, "exit")], 2, restarts=0)
    with pytest.raises(EnvError, match=r"worker 1 .* ended with exit code 7"):
        steps(world, LONG)
    world.close()


@pytest.mark.parametrize("fault", ["raise", "shape", "missing"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_breach_is_told_in_the_words_of_an_inline_world(fault: str, threads: int) -> None:
    good = partial(Told, "missing", 10_000) if fault == "missing" else Told
    makes: list[Make] = [good, good, partial(Told, fault), good]
    inline = InlineWorld([make() for make in makes], 5, "Told-v0")
    with pytest.raises(EnvError) as theirs:
        steps(inline, 10)
    world = pool(makes, 2, threads=threads)
    with pytest.raises(EnvError) as ours:
        steps(world, 10_000)
    assert str(ours.value) == str(theirs.value)
    assert "(lane 2)" in str(ours.value)
    assert (ours.value.__cause__ is None) == (theirs.value.__cause__ is None)
    if fault == "raise":
        assert 'raise RuntimeError("motor broke")' in str(ours.value.__cause__)
    world.close()


def test_what_fails_when_it_is_made_or_closed_is_told() -> None:
    with pytest.raises(ValueError, match="no such map"):
        pool([partial(Told, "unmade")], 1)
    world = pool([Told, partial(Told, "unmade")], 2)
    with pytest.raises(EnvError, match="no such map") as caught:
        steps(world, 10_000)
    assert "no such map" in str(caught.value.__cause__)
    world.close()
    world = pool([Told, partial(Told, "close")], 2)
    steps(world, 3)
    with pytest.raises(EnvError, match=r"\(lane 1\) raised OSError: port in use in close"):
        world.close()


def test_what_cannot_be_sent_to_a_worker_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"cannot be sent to the workers.*module:function; or set world.kind to inline"
    ):
        pool([lambda: Told()], 1)
    with pytest.raises(ConfigError, match=r"cannot be sent to the workers"):
        make_world(lambda: Told(), WorldConfig(lanes=2, kind="pool"), 0)


def test_all_lanes_must_have_the_same_spaces() -> None:
    world = pool([Told, partial(Told, "missing")], 2)
    with pytest.raises(EnvError, match=r"has the spaces .* in a worker, and .* in the pool"):
        steps(world, 10_000)
    world.close()


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def is_gone(pid: int) -> bool:
    end = time.monotonic() + 10
    while is_there(pid) and time.monotonic() < end:
        time.sleep(0.01)
    return not is_there(pid)


def test_a_hung_worker_does_not_hold_close_and_its_helper_goes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("freewheel.worlds.pool_member.CLOSE_S", 0.3)
    noted = tmp_path / "pid"
    world = pool([partial(Told, "hang", 1), partial(Told, "helper", once=str(noted))], 2)
    until(world, lambda ready: noted.exists() and 1 in ready.lanes)
    hung, helping = world.pids
    os.kill(helping, signal.SIGSTOP)
    helper = int(noted.read_text())
    world.close()
    assert is_gone(hung)
    assert is_gone(helper)
    world.close()


def test_a_pool_that_is_forgotten_ends_its_workers() -> None:
    world = pool([Told, Told], 2)
    recv(world)
    pids = world.pids
    del world
    assert all(is_gone(pid) for pid in pids)


SCRIPT = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from functools import partial
from pool_envs import Told
from freewheel.worlds.pool import PoolWorld
if __name__ == "__main__":
    world = PoolWorld([Told, partial(Told, "hang", 1)], 0, "Told-v0", 2, min_ready=2)
    (ready,) = world.recv()
    world.send(0, ready.lanes, {{"action": ready.lanes * 0}})
    print(*world.pids, flush=True)
    {end}
"""


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "sys.exit(3)"])
def test_workers_go_with_the_process_of_the_pool(tmp_path: Path, end: str) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.format(tests=str(Path(__file__).parent), end=end))
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=60)
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2, done.stderr
    assert all(is_gone(pid) for pid in pids)


def test_calls_out_of_turn_are_refused() -> None:
    world = pool([Told, Told], 2, min_ready=2)
    ready = recv(world)
    with pytest.raises(ValueError, match="no lane to wait for"):
        recv(world)
    send(world, ready.lanes[:1], np.ones(1, np.int64))
    with pytest.raises(ValueError, match="does not wait"):
        send(world, ready.lanes, np.ones(2, np.int64))
    assert recv(world).lanes.tolist() == [0]  # the other may rest
    assert world.state() is None
    world.close()
