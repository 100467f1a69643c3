"""F14 and A01: a damaged, foreign or malicious checkpoint is named, nothing in it runs, and the previous one is used."""

from __future__ import annotations

import io
import json
import os
import pickle
import resource
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from freewheel.errors import CheckpointError
from freewheel.store import checkpoint

# `make fault` sets it: so many checkpoints, each with tensors of its own, are damaged.
TIMES = int(os.environ.get("FREEWHEEL_FAULT", "1"))
FILES = ("manifest.json", "replay.bin", "state.json", "tensors.safetensors")
parts = pytest.mark.parametrize("part", range(TIMES))


def two_checkpoints(folder: Path, part: int = 0) -> Path:
    """Steps 1 and 2; the path of the newer one."""
    for step in (1, 2):
        tensors = {"w": torch.arange(20.0 + part) * (step + part), "n": torch.tensor(step)}
        files = {"replay.bin": lambda path: path.write_bytes(bytes(range(100))) and None}
        path = checkpoint.save(folder, step, tensors, {"step": step, "list": [0.1, 2]}, files)
    return path


def assert_previous_is_used(newest: Path, what: object) -> None:
    found = checkpoint.load_newest(newest.parent)
    assert found.step == 1, what
    assert len(found.warnings) == 1, what
    assert str(newest) in found.warnings[0], what


@parts
def test_f14_every_flipped_bit_is_found(tmp_path: Path, part: int) -> None:
    newest = two_checkpoints(tmp_path, part)
    num_flips = 0
    for name in FILES:
        data = (newest / name).read_bytes()
        with open(newest / name, "r+b") as file:
            for bit in range(0, len(data) * 8, 2 if len(data) > 100 else 1):
                flipped = bytearray(data)
                flipped[bit // 8] ^= 1 << (bit + bit // 8) % 8
                os.pwrite(file.fileno(), flipped, 0)
                assert_previous_is_used(newest, (name, bit))
                num_flips += 1
            os.pwrite(file.fileno(), data, 0)
    assert checkpoint.load_newest(tmp_path).step == 2
    assert num_flips >= 2_000


@parts
def test_f14_every_cut_and_every_added_byte_is_found(tmp_path: Path, part: int) -> None:
    newest = two_checkpoints(tmp_path, part)
    for name in FILES:
        data = (newest / name).read_bytes()
        for size in range(len(data)):
            (newest / name).write_bytes(data[:size])
            assert_previous_is_used(newest, (name, size))
        (newest / name).write_bytes(data + b"\n")
        assert_previous_is_used(newest, name)
        (newest / name).unlink()
        assert_previous_is_used(newest, name)
        (newest / name).write_bytes(data)
    assert checkpoint.load_newest(tmp_path).step == 2


def test_f14_when_none_is_whole_all_are_named(tmp_path: Path) -> None:
    two_checkpoints(tmp_path)
    shutil.rmtree(tmp_path / "step-000000001")
    (tmp_path / "step-000000001").mkdir()
    (tmp_path / "step-000000002" / "state.json").write_text("{}")
    with pytest.raises(CheckpointError) as refused:
        checkpoint.load_newest(tmp_path)
    assert "step-000000001: manifest.json is missing." in str(refused.value)
    assert "step-000000002: state.json is damaged: its checksum is wrong." in str(refused.value)


def test_f14_a_checkpoint_under_another_step_is_refused(tmp_path: Path) -> None:
    newest = two_checkpoints(tmp_path)
    other = newest.rename(tmp_path / "step-000000003")
    assert_previous_is_used(other, "renamed")
    assert checkpoint.load(other.rename(tmp_path / "best")).step == 2


def test_a_newer_format_is_named_with_the_cure(tmp_path: Path) -> None:
    newest = two_checkpoints(tmp_path)
    (newest / "manifest.json").write_text(json.dumps({"format": 2, "freewheel": "9.1\x1b[2J", "whatever": []}))
    with pytest.raises(CheckpointError, match=r"format 2, written by freewheel '9\.1\\x1b\[2J'.*Install the newer one"):
        checkpoint.load(newest)


def header(entries: Any, body: bytes = b"", claimed: int | None = None) -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if claimed is None else claimed) + text + body


def tensor(shape: list[int], offsets: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


class Marker:
    """Makes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (self.path,)


def torch_zip(marker: str) -> bytes:
    file = io.BytesIO()
    torch.save(Marker(marker), file)
    return file.getvalue()


def tensor_files(marker: str) -> dict[str, bytes]:
    two = {"a": tensor([1], [0, 4]), "b": tensor([1], [0, 4])}
    return {
        "pickle": pickle.dumps(Marker(marker)),
        "torch zip": torch_zip(marker),
        "nothing": b"",
        "seven bytes": b"1234567",
        "header 2^63": header({}, claimed=2**63),
        "header 2^64-1": header({}, claimed=2**64 - 1),
        "header longer than the file": header({"a": tensor([1], [0, 4])}, b"1234", claimed=1_000),
        "header 0": header(b""),
        "100,000 entries": header({f"t{i}": tensor([0], [0, 0]) for i in range(100_000)}),
        "shape overflow": header({"a": tensor([2**62, 4], [0, 0])}),
        "shape too large": header({"a": tensor([2**40], [0, 4])}, b"1234"),
        "overlap": header(two, b"1234"),
        "gap": header({"a": tensor([1], [4, 8])}, b"12345678"),
        "not covered": header({"a": tensor([1], [0, 4])}, b"12345678"),
        "beyond the end": header({"a": tensor([2], [0, 8])}, b"1234"),
        "backwards": header({"a": tensor([1], [4, 0])}, b"1234"),
        "negative": header({"a": tensor([-1], [0, 4])}, b"1234"),
        "unknown dtype": header({"a": tensor([1], [0, 4], "X9")}, b"1234"),
        "escape codes": header({f"{i}\x1b[2J": tensor([1], [0, 4]) for i in range(2)}, b"1234"),
        "deep header": header(b'{"a":' * 100_000),
        "list for a header": header([1, 2]),
        "not UTF-8": header(b'{"\xff": 1}'),
    }


def state_files() -> dict[str, bytes]:
    return {
        "huge": b'{"a": "' + b"x" * (20 << 20) + b'"}',
        "many values": b"[" + b"[]," * 4_000_000 + b"[]]",
        "deep": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        "deep list": b"[" * 900_000,
        "a list": b"[1, 2]",
        "long number": b'{"a": ' + b"9" * 100_000 + b"}",
        "not UTF-8": b'{"a": "\xff\xfe"}',
        "not JSON": b"{a: 1}",
        "empty": b"",
    }


def manifest_of(files: Any, **changes: Any) -> bytes:
    """A manifest with the right checksum of its own."""
    entries = {"format": 1, "freewheel": "0.1.0", "step": 2, "files": files}
    return checkpoint._manifest_text(entries | changes)


def manifest_files(good: dict[str, Any]) -> dict[str, bytes]:
    files = good["files"]
    return {
        "upwards": manifest_of(files | {"../step-000000002/state.json": files["state.json"]}),
        "absolute": manifest_of(files | {"/etc/passwd": {"bytes": 1, "crc32": 1}}),
        "itself hidden": manifest_of(files | {".x": files["state.json"]}),
        "no tensors": manifest_of({"state.json": files["state.json"]}),
        "a file that is not there": manifest_of(files | {"more.bin": files["state.json"]}),
        "list of files": manifest_of([1]),
        "true for a size": manifest_of(files | {"state.json": {"bytes": True, "crc32": 1}}),
        "text for a size": manifest_of(files | {"state.json": {"bytes": "1", "crc32": 1}}),
        "more in an entry": manifest_of(files | {"state.json": files["state.json"] | {"x": 1}}),
        "step as text": manifest_of(files, step="2"),
        "another step": manifest_of(files, step=7),
        "format as text": manifest_of(files, format="1"),
        "format 0": manifest_of(files, format=0),
        "wrong sum of its own": manifest_of(files).replace(b'"crc32"', b'"crc33"', 1),
        "huge": b" " * 1_000_000,
        "deep": b"[" * 60_000,
        "null": b"null",
        "pickle": pickle.dumps({"format": 1}),
    }


def in_place(kind: str, path: Path, elsewhere: Path) -> None:
    """Puts something that is no regular file in a file's place."""
    path.rename(elsewhere)
    if kind == "symlink":
        path.symlink_to(elsewhere)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(os.path.relpath(path))
    elif kind == "sparse":
        with open(path, "wb") as file:
            file.truncate(1 << 40)


def instead_of_folder(kind: str, path: Path) -> None:
    moved = path.rename(path.with_name("moved"))
    if kind == "symlink":
        path.symlink_to(moved)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.write_text("a file")


def make_corpus(root: Path, marker: str) -> list[Path]:
    """Folders with one whole checkpoint and one that must be refused."""
    cases: list[Path] = []

    def case(change: Callable[[Path], None]) -> None:
        cases.append(root / f"{len(cases):03d}")
        change(two_checkpoints(cases[-1]))

    def rewrite(name: str, data: bytes) -> Callable[[Path], None]:
        def change(path: Path) -> None:
            (path / name).write_bytes(data)
            if name != "manifest.json":  # a foe makes the checksums right
                (path / "manifest.json").unlink()
                (path / "manifest.json").write_bytes(checkpoint._manifest(path, 2, sorted(os.listdir(path))))

        return change

    for data in tensor_files(marker).values():
        case(rewrite("tensors.safetensors", data))
    for data in state_files().values():
        case(rewrite("state.json", data))
    good = json.loads((two_checkpoints(root / "good") / "manifest.json").read_text())
    for data in manifest_files(good).values():
        case(rewrite("manifest.json", data))
    for kind in ("symlink", "fifo", "folder", "socket", "sparse"):
        for name in FILES:
            case(lambda path, kind=kind, name=name: in_place(kind, path / name, path / "elsewhere"))  # type: ignore[misc]
    for kind in ("symlink", "fifo", "file"):
        case(lambda path, kind=kind: instead_of_folder(kind, path))  # type: ignore[misc]
    return cases


def test_a01_only_regular_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    reasons = {"symlink": "cannot be read", "fifo": "not a regular file", "folder": "not a regular file"}
    for kind, reason in reasons.items():
        for name in FILES:
            path = two_checkpoints(tmp_path / kind / name)
            in_place(kind, path / name, path / "elsewhere")
            with pytest.raises(CheckpointError, match=f"{name} {'is ' * reason.startswith('not')}{reason}"):
                checkpoint.load(path)


def load_corpus(root: str) -> None:
    """In a child: prints what each case took, and how much memory all took together."""
    checkpoint.load_newest(Path(root) / "good")  # what loading itself imports is no case's fault
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for case in sorted(Path(root).glob("[0-9]*")):
        start = time.process_time()  # of this process alone: the machine may be busy with others
        found = checkpoint.load_newest(case)
        seconds = time.process_time() - start
        print(json.dumps([case.name, found.step, list(found.warnings), seconds]))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


def test_a01_a_malicious_checkpoint_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    marker = tmp_path / "it ran"
    cases = make_corpus(tmp_path / "corpus", str(marker))
    assert len(cases) >= 70
    child = [sys.executable, "-W", "error", __file__, str(tmp_path / "corpus")]
    done = subprocess.run(child, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    *lines, kilobytes = done.stdout.splitlines()
    assert len(lines) == len(cases)
    for name, step, warnings, seconds in map(json.loads, lines):
        assert step == 1, (name, warnings)
        assert len(warnings) == 1
        assert "step-000000002" in warnings[0]
        assert warnings[0].isprintable()
        assert len(warnings[0]) < 600
        assert seconds < 1.0, (name, warnings)
    assert int(kilobytes) < 100_000
    assert not marker.exists()


if __name__ == "__main__":
    load_corpus(sys.argv[1])
