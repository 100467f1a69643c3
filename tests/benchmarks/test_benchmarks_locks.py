"""`benchmarks locks`: the designs are what they say, and what they get wrong is seen. Nothing here asserts a speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.installed import ROOT
from benchmarks.locks import bench as locks
from benchmarks.locks import owner
from benchmarks.locks import threads as thread_designs
from benchmarks.locks.bench import Figures, make_cases, measure, watch
from benchmarks.locks.net import Adam, Net, Rows, first_weights, gradients_of, lengths, loss_of
from benchmarks.locks.threads import COUNTERS, PHASES, ReadWriteLock
from benchmarks.settings import LocksSettings
from freewheel.report.ledger import Ledger, Page

OBS = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def page_of(ledger: Ledger, role: int) -> Page:
    page = ledger.page(role)
    page.start(0)
    return page


def test_every_step_moves_all_stamps_and_the_weights() -> None:
    flat = first_weights()
    net, adam = Net(flat), Adam(flat)
    before = flat.clone()
    for done in range(1, 4):
        adam.step(gradients_of(net, loss_of(net, Net(first_weights()), Rows(0).sample())))
        assert set(net.versions().tolist()) == {float(done)}
        assert net.version() == done
    assert (flat != before).float().mean() > 0.9


def test_the_written_out_adam_is_torchs() -> None:
    flat = first_weights()
    net, adam, target = Net(flat), Adam(flat), Net(first_weights())
    theirs = first_weights().requires_grad_()
    optimizer = torch.optim.Adam([theirs], lr=1e-4, eps=1e-8)
    rows = Rows(0)
    for _ in range(5):
        gradients = gradients_of(net, loss_of(net, target, rows.sample()))
        theirs.grad = torch.cat(gradients)
        adam.step(gradients)
        optimizer.step()
    at = torch.ones(len(flat), dtype=torch.bool)
    at[net._stamps] = False
    torch.testing.assert_close(flat[at], theirs.detach()[at], rtol=1e-4, atol=1e-6)


def test_training_lowers_the_loss() -> None:
    flat, rows = first_weights(), Rows(0)
    net, adam, target = Net(flat), Adam(flat), Net(first_weights())
    batch = rows.sample()
    losses = []
    for _ in range(60):
        loss = loss_of(net, target, batch)
        losses.append(loss.item())
        adam.step(gradients_of(net, loss))
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("place", range(6))
def test_weights_of_two_versions_are_seen(place: int) -> None:
    flat = first_weights()
    net = Net(flat)
    assert net.act(OBS)[1] is False
    flat[net._stamps[place]] += 1  # one layer's write has begun or ended, the others have not
    assert net.act(OBS)[1] is True


def test_a_step_while_the_network_is_read_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    flat = first_weights()
    net, adam = Net(flat), Adam(flat)
    gradients = gradients_of(net, loss_of(net, net, Rows(0).sample()))
    forward = Net.forward

    def slow(self: Net, x: torch.Tensor) -> torch.Tensor:
        adam.step(gradients)
        return forward(self, x)

    monkeypatch.setattr(Net, "forward", slow)
    assert net.act(OBS)[1] is True  # all stamps agree before and after, but not with each other


def test_a_step_between_forward_and_backward_is_stale() -> None:
    shared, ledger = thread_designs.Shared(), Ledger(1, PHASES, COUNTERS)
    page, net = page_of(ledger, 0), Net(shared.flat)
    gradients = gradients_of(net, loss_of(net, shared.target, Rows(0).sample()))
    shared.step(page, gradients, 0, net)
    assert ledger.snapshot(0).counters["stale"] == 0
    shared.step(page, gradients, 0, net)
    assert ledger.snapshot(0).counters["stale"] == 1


def test_readers_read_together_and_a_writer_is_alone() -> None:
    lock, ledger = ReadWriteLock(), Ledger(4, PHASES, COUNTERS)
    inside, both = threading.Event(), threading.Barrier(2)
    seen: list[str] = []

    def read(role: int) -> None:
        with lock.reading(page_of(ledger, role)):
            both.wait(10)  # passes only when two readers are inside at once
            inside.set()
            seen.append("read")

    def write() -> None:
        inside.wait(10)
        with lock.writing(page_of(ledger, 2)):
            seen.append("write")

    threads = [threading.Thread(target=read, args=(role,)) for role in (0, 1)] + [threading.Thread(target=write)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert seen == ["read", "read", "write"]


def test_a_waiting_writer_goes_before_readers_that_come_later() -> None:
    lock, ledger = ReadWriteLock(), Ledger(3, PHASES, COUNTERS)
    seen: list[str] = []

    def write() -> None:
        with lock.writing(page_of(ledger, 1)):
            seen.append("write")

    def read() -> None:
        with lock.reading(page_of(ledger, 2)):
            seen.append("late read")

    threads = [threading.Thread(target=write), threading.Thread(target=read)]
    waits = threading.Event()
    with lock.reading(page_of(ledger, 0)):
        threads[0].start()
        while not lock._writers_waiting:
            waits.wait(0.001)
        threads[1].start()
        waits.wait(0.05)
        assert seen == []
    for thread in threads:
        thread.join(20)
    assert seen == ["write", "late read"]


def test_a_wait_for_a_lost_lock_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_designs, "LOCK_TIMEOUT_S", 0.05)
    lock, ledger = ReadWriteLock(), Ledger(2, PHASES, COUNTERS)
    with (
        lock.writing(page_of(ledger, 0)),
        pytest.raises(Exception, match="waited 0 s for the reader/writer lock"),
        lock.reading(page_of(ledger, 1)),
    ):
        pass


def test_many_readers_and_writers_never_mix_nor_hang() -> None:
    """A lost wake-up would hang here, a hole in the lock would show two versions."""
    lock, ledger = ReadWriteLock(), Ledger(6, PHASES, COUNTERS)
    pair, mixed = [0, 0], []

    def write(role: int) -> None:
        page = page_of(ledger, role)
        for _ in range(300):
            with lock.writing(page):
                pair[0] += 1
                pair[1] += 1

    def read(role: int) -> None:
        page = page_of(ledger, role)
        for _ in range(300):
            with lock.reading(page):
                if pair[0] != pair[1]:
                    mixed.append(role)

    threads = [threading.Thread(target=(write, read)[role % 2], args=(role,)) for role in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (pair, mixed) == ([900, 900], [])


@pytest.mark.parametrize("design", ["one_lock", "small_lock", "rw_lock"])
def test_threads_train_and_act(design: str) -> None:
    figures = measure(design, 2, 0.2)
    assert figures.updates > 0
    assert 0 <= figures.wait_share <= 1
    if design != "small_lock":
        assert figures.torn == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_one_owner_trains_and_publishes(workers: int) -> None:
    figures = measure("ours", workers, 0.3)
    assert figures.updates > 0
    assert figures.acts > 0
    assert (figures.torn, figures.stale) == (0, 0)
    assert figures.act_wait_share == 0


def test_shares_of_a_batch_give_the_gradient_of_the_whole() -> None:
    net, target, batch = Net(first_weights()), Net(first_weights()), Rows(0).sample()
    whole = torch.cat(gradients_of(net, loss_of(net, target, batch)))
    halves = [
        type(batch)(*(getattr(batch, name)[rows] for name in ("obs", "action", "reward", "next_obs")))
        for rows in (slice(0, 64), slice(64, 128))
    ]
    summed = sum(torch.cat(gradients_of(net, loss_of(net, target, half))) for half in halves)
    torch.testing.assert_close(whole, summed / 2, rtol=1e-4, atol=1e-6)
    assert len(whole) == sum(lengths())


KILLED = """
import multiprocessing, time
from benchmarks.locks import owner, threads
from freewheel.report.ledger import Ledger

if __name__ == "__main__":
    with owner.running(1, Ledger(2, threads.PHASES, threads.COUNTERS)):
        print(multiprocessing.active_children()[0].pid, flush=True)
        time.sleep(60)
"""


def test_processes_of_a_bench_that_is_killed_end_too(tmp_path: Path) -> None:
    script = tmp_path / "bench.py"
    script.write_text(KILLED)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, env=environment, text=True) as bench:
        assert bench.stdout is not None
        actor = Path("/proc") / bench.stdout.readline().strip()
        assert actor.exists()
        bench.kill()
    deadline = time.monotonic() + 30
    while actor.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not actor.exists()


class Once(threading.Event):
    """Lets a loop go round once."""

    def is_set(self) -> bool:
        was_asked, self.was_asked = getattr(self, "was_asked", False), True
        return was_asked


def test_the_owner_steps_by_the_mean_of_all_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = owner.Shared.make(2, Ledger(3, PHASES, COUNTERS))
    part, stepped = torch.randn(sum(lengths())), []
    shared.gradients[0].publish(part)
    monkeypatch.setattr(Adam, "step", lambda self, gradients: stepped.append(torch.cat(list(gradients))))
    owner.own(shared, Once())
    net = Net(first_weights())
    mine = torch.cat(gradients_of(net, loss_of(net, Net(first_weights()), Rows(0).sample(64))))
    torch.testing.assert_close(stepped, [(mine + part) / 2])
    assert shared.weights.version == 1


def test_a_worker_that_fails_ends_the_measurement() -> None:
    stop = threading.Event()

    def fail() -> None:
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        watch([fail, lambda: stop.wait(30) and None], stop, Ledger(2, PHASES, COUNTERS), 10.0)
    assert stop.is_set()


def figures(updates_per_s: float, torn: int = 0) -> Figures:
    return Figures(updates_per_s, 100.0, 0.1, 0.2, torn, 0, 1000, 200, 0.0)


def test_each_design_is_compared_with_the_same_workers_and_at_its_best() -> None:
    measured = {
        ("ours", 1): [figures(1000.0)],
        ("one_lock", 1): [figures(300.0)],
        ("rw_lock", 1): [figures(250.0)],
        ("ours", 2): [figures(600.0)],
        ("one_lock", 2): [figures(500.0, torn=7)],
        ("rw_lock", 2): [figures(400.0)],
    }
    first, second, best = (case.record() for case in make_cases(measured))
    assert (first["case"], first["ratio"]) == ("locks/1", pytest.approx(3.333, rel=1e-3))
    assert (second["case"], second["ratio"]) == ("locks/2", 1.2)
    assert (best["case"], best["ratio"]) == ("locks/best", 2.0)
    assert best["workers"] == {"ours": 1, "one_lock": 2, "rw_lock": 2}
    assert second["designs"]["one_lock"]["torn"] == 7
    assert second["designs"]["one_lock"]["torn_share"] == 0.035


def test_the_whole_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "locks.svg"
    settings = LocksSettings(workers=(1,), against=("one_lock",), rounds=1, seconds=0.2, plot=path, json=True)
    locks.run(settings)
    out = capsys.readouterr().out
    line = json.loads(out.splitlines()[-1])
    assert line["bench"] == "locks"
    assert [case["case"] for case in line["cases"]] == ["locks/1", "locks/best"]
    assert all(case["ratio"] > 0 for case in line["cases"])
    assert "one lock around everything" in out
    ET.fromstring(path.read_text())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--against", "one_lok"], "Did you mean 'one_lock'"),
        (["--workers", "3"], "--workers 3 must divide a batch of 128"),
        (["--workers", "0"], "--workers 0 must be"),
        (["--plot", "nowhere/plot.svg"], "--plot nowhere/plot.svg: there is no folder"),
    ],
)
def test_settings_that_cannot_work_end_with_2(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the command sets it: have it put back
    assert main(["locks", *words]) == 2
    assert says in capsys.readouterr().err
