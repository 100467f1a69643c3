"""Compiled packages: made once for equal graphs, loaded from the disk, changing their arguments in place as the function does."""

from __future__ import annotations

import multiprocessing as mp
import os
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from torch import Tensor

from freewheel.errors import ConfigError
from freewheel.learners import package
from freewheel.memory.counter import Counters
from freewheel.store import disk


def stepped(weights: Tensor, gradient: Tensor) -> list[Tensor]:
    weights.sub_(0.5 * gradient)
    return [weights.square().sum()]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def key(function: package.Function, *args: Tensor) -> str:
    return package.key_of(package.trace(function, args), args)


def test_a_package_does_what_the_function_does_and_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, gradient = torch.arange(5.0), torch.ones(5)
    expected = weights.clone()
    (norm,) = stepped(expected, gradient)
    run, path = package.compiled(stepped, [weights, gradient])
    torch.testing.assert_close(weights, torch.arange(5.0))  # compiling carries nothing out
    (given,) = run(weights, gradient)
    torch.testing.assert_close(weights, expected)
    torch.testing.assert_close(given, norm)
    assert list(package.folder().iterdir()) == [path]
    assert library_of_the_package() == []  # what is loaded needs no file: none is left behind by a SIGKILL

    monkeypatch.setattr(package, "_compile", None)  # would fail if it were called
    again = package.load(package.make(stepped, [weights, gradient]))
    again(weights, gradient)
    torch.testing.assert_close(weights, expected - 0.5)


def library_of_the_package() -> list[str]:
    """Files of loaded packages that are still on the disk."""
    mapped = {
        line.split(None, 5)[5].strip() for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line
    }
    return [path for path in mapped if "aotinductor" in path and not path.endswith("(deleted)")]


def test_a_damaged_package_is_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_badly_once(graph: object, args: object, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"cut off")
        monkeypatch.setattr(package, "_compile", compile_well)

    compile_well = package._compile
    monkeypatch.setattr(package, "_compile", compile_badly_once)
    weights = torch.arange(3.0)
    run, _ = package.compiled(lambda x: [x + 1], [weights])
    torch.testing.assert_close(run(weights)[0], weights + 1)


def test_no_compiler_is_said_with_the_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from torch._inductor import cpp_builder

    monkeypatch.setenv("PATH", str(tmp_path))
    cpp_builder.cpp_compiler_search.cache_clear()
    try:
        with pytest.raises(ConfigError, match=r"no C\+\+ compiler found .*--compile off"):
            package.make(stepped, [torch.ones(5), torch.ones(5)])
    finally:
        cpp_builder.cpp_compiler_search.cache_clear()


def compile_here(cache: str, gate: Counters, answers: Connection) -> None:
    os.environ["XDG_CACHE_HOME"] = cache
    torch.set_num_threads(1)
    gate.wait(0, 1, 60)
    run, path = package.compiled(stepped, [torch.arange(5.0), torch.ones(5)])
    weights = torch.arange(5.0)
    run(weights, torch.ones(5))
    answers.send((path.name, weights.tolist(), len(list(Path(f"/proc/{os.getpid()}/task").iterdir()))))


def test_two_processes_that_compile_the_same_at_once_both_end_well(tmp_path: Path) -> None:
    gate, (ours, theirs) = Counters(1), mp.Pipe()
    context = mp.get_context("forkserver")
    both = [context.Process(target=compile_here, args=(str(tmp_path), gate, theirs)) for _ in range(2)]
    for process in both:
        process.start()
    gate.add(0)
    answers = [ours.recv() for _ in both if ours.poll(100)]
    for process in both:
        process.join(20)
        assert process.exitcode == 0
        process.close()
    ours.close()
    theirs.close()
    (name, weights, _), other = answers
    assert other[:2] == (name, weights)
    assert weights == [-0.5, 0.5, 1.5, 2.5, 3.5]
    assert [path.name for path in package.folder().iterdir()] == [name]


def test_what_changes_the_code_changes_the_key() -> None:
    five, constant = torch.ones(5), torch.ones(5)
    first = key(stepped, five, five)
    assert key(stepped, five, five) == first
    assert key(stepped, torch.ones(6), torch.ones(6)) != first
    assert key(stepped, five.double(), five.double()) != first
    assert key(lambda weights, gradient: [weights.sub_(0.25 * gradient)], five, five) != first

    def with_constant(weights: Tensor) -> list[Tensor]:
        return [weights * constant]

    held = key(with_constant, five)
    constant[0] = 2.0
    assert key(with_constant, five) != held


def test_the_least_recently_used_are_forgotten_and_rooms_of_the_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "MOST_KEPT", 2)
    package.folder().mkdir(parents=True)
    for age, name in enumerate(("new.pt2", "middle.pt2", "old.pt2")):
        path = package.folder() / name
        path.touch()
        os.utime(path, (10_000 - age, 10_000 - age))
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for pid in (dead.pid, os.getpid()):
        (package.folder() / f".tmp-{pid}-0123abcd").mkdir()
    package._forget_oldest()
    disk.sweep(package.folder())
    names = sorted(path.name for path in package.folder().iterdir())
    assert names == [f".tmp-{os.getpid()}-0123abcd", "middle.pt2", "new.pt2"]
