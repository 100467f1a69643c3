"""Compiled packages: made once for equal graphs, loaded from the disk, changing their arguments in place as the function does."""

from __future__ import annotations

import hmac
import io
import multiprocessing as mp
import os
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from freewheel.errors import ConfigError, FreewheelError
from freewheel.learners import package
from freewheel.memory.counter import Counters
from freewheel.store import disk, signature


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


# A library that makes a file when it is loaded, in the place of the one in a package.
CONSTRUCTOR = """
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void run(void) { close(open("MARKER", O_CREAT | O_WRONLY, 0600)); }
"""


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "it ran"


@pytest.fixture
def evil(tmp_path: Path, marker: Path) -> bytes:
    """A package as torch would load it, with that library."""
    library = tmp_path / "evil.so"
    compiler = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(compiler, input=CONSTRUCTOR.replace("MARKER", str(marker)).encode(), check=True)
    inner, packed = "evil/data/aotinductor/model/evil.wrapper", io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(f"{inner}.so", library.read_bytes())
        archive.writestr(f"{inner}.cpp", "")
        archive.writestr(f"{inner}_metadata.json", '{"AOTI_DEVICE_KEY": "cpu"}')
        archive.writestr("evil/archive_format", "pt2")
        archive.writestr("evil/archive_version", "0")
        archive.writestr("evil/byteorder", "little")
        archive.writestr("evil/.data/version", "6\n")
    return packed.getvalue()


def signed(path: Path, data: bytes) -> bytes:
    return signature.sign("package", package._content(path, data), package.cache_folder()).encode() + data


def put(path: Path, data: bytes) -> Path:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    path.chmod(0o600)
    return path


def test_a13_a_package_that_is_signed_is_loaded_so_what_it_holds_runs(evil: bytes, marker: Path) -> None:
    """So the tests below can fail."""
    path = package.folder() / "evil.pt2"
    with suppress(FreewheelError):  # it is no model
        package.load(put(path, signed(path, evil)))
    assert marker.exists()


def forged_packages(evil: bytes, folder: Path) -> Iterator[tuple[str, Path]]:
    """Files in the cache that must not be loaded, one after the other in the same place."""
    path = folder / "evil.pt2"
    good = signed(path, evil)
    of_another_key = hmac.new(bytes(32), b"package\0" + package._content(path, evil), "sha256").hexdigest().encode()
    changed = bytearray(good)
    changed[len(good) // 2] ^= 1
    contents = {
        "as torch made it": evil,
        "with no signature": b" " * 64 + evil,
        "with zeros": b"0" * 64 + evil,
        "signed by another key": of_another_key + evil,
        "signed for another name": signed(folder / "other.pt2", evil),
        "signed as a run": signature.sign("policy", package._content(path, evil)).encode() + evil,
        "changed": bytes(changed),
        "longer": good + b"x",
        "cut": good[:-1],
        "half a signature": good[:32],
        "empty": b"",
        "another package behind the signature": good[:64] + evil + evil,
    }
    for name, content in contents.items():
        yield name, put(path, content)
    for mode in (0o620, 0o602, 0o666, 0o777):
        put(path, good).chmod(mode)
        yield f"mode {mode:o}", path
    put(path, good).rename(folder / "elsewhere.pt2")
    path.symlink_to(folder / "elsewhere.pt2")
    yield "a link", path
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    yield "a pipe", path
    path.unlink(missing_ok=True)
    path.mkdir()
    yield "a folder", path


def test_a13_nothing_else_is_loaded(evil: bytes, marker: Path) -> None:
    count = 0
    for name, path in forged_packages(evil, package.folder()):
        with pytest.raises(FreewheelError, match=r"evil\.pt2 is not loaded: .*evil\.pt2"):
            package.load(path)
        assert not marker.exists(), name
        count += 1
    assert count >= 19


def test_a13_what_others_own_is_not_loaded(evil: bytes, marker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = package.folder() / "evil.pt2"
    put(path, signed(path, evil))
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    with pytest.raises(FreewheelError, match=f"belongs to user {uid}, not to you"):
        package.load(path)
    assert not marker.exists()


def test_a13_what_is_loaded_is_what_was_looked_at(
    evil: bytes, marker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, loaded = package.folder() / "mine.pt2", []

    def swap_and_load(copy: Path) -> Any:
        path.write_bytes(evil)  # by somebody who waited for the look
        loaded.append(copy.read_bytes())

    monkeypatch.setattr(package, "_loader", swap_and_load)
    package.load(put(path, signed(path, b"mine")))
    assert loaded == [b"mine"]


def test_a13_a_forged_package_is_compiled_anew_and_told_once(
    evil: bytes, marker: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, path = package._named(stepped, FIVES)
    monkeypatch.setattr(package, "_compile", lambda graph, args, path: put(path, signed(path, b"mine")))
    for name, forged in forged_packages(evil, package.folder()):
        package.disk.remove(path)
        forged.rename(path)
        assert package.find(stepped, FIVES) is None, name
        assert package.make(stepped, FIVES) == path
        assert "warning: compiling an update again: " in capsys.readouterr().err, name
        assert package.find(stepped, FIVES) == path
        package.make(stepped, FIVES)
        assert capsys.readouterr().err == ""
    assert not marker.exists()


FIVES = [torch.ones(5), torch.ones(5)]


def test_a13_the_folders_of_the_cache_are_closed_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "_compile", lambda graph, args, path: put(path, signed(path, b"mine")))
    package.folder().mkdir(parents=True)
    for folder in (package.cache_folder(), package.folder()):
        folder.chmod(0o777)
    package.make(stepped, FIVES)
    modes = [stat.S_IMODE(folder.stat().st_mode) for folder in (package.cache_folder(), package.folder())]
    assert modes == [0o700, 0o700]


def test_a13_a_cache_in_somebody_elses_hands_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    package.cache_folder().mkdir()
    package.folder().symlink_to(tmp_path / "elsewhere")
    with pytest.raises(
        ConfigError, match=r"is a link or no folder. Give XDG_CACHE_HOME a folder of your own, or train with"
    ):
        package.make(stepped, FIVES)


def test_a13_without_a_place_for_the_key_it_is_kept_in_the_cache(
    evil: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = signature.key_folder()
    signature.sign("package", b"")
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    path = package.folder() / "mine.pt2"
    put(path, signed(path, b"mine"))
    assert package._why_not(path) == ""
    assert (package.cache_folder() / "key").exists()
    # Beside a key of the user's own it does not count: who brings packages may bring a key for them.
    monkeypatch.setenv("XDG_CONFIG_HOME", str(key.parent))
    assert "its signature is not yours" in package._why_not(path)


@pytest.mark.parametrize("is_open", [False, True])
def test_a13_torchs_own_cache_is_used_only_if_nobody_else_writes_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_open: bool
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    from torch._inductor.runtime.cache_dir_utils import cache_dir, default_cache_dir

    default = Path(default_cache_dir())
    assert default.parent == tmp_path
    if is_open:
        default.mkdir()
        default.chmod(0o777)
    with package._compiler_cache(tmp_path / "temp") as settings:
        assert Path(cache_dir()) == (tmp_path / "temp" / "compiler" if is_open else default)
        assert set(settings.values()) == ({False} if is_open else set())
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
    assert is_open or stat.S_IMODE(default.stat().st_mode) == 0o700
