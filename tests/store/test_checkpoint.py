"""Checkpoints: what was saved comes back, old ones are rotated away, and a step that is saved again is replaced."""

from __future__ import annotations

import ctypes
import os
import stat
import subprocess
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from freewheel.errors import CheckpointError
from freewheel.store import checkpoint


def put(folder: Path, step: int, value: float = 1.0, keep: int = 3) -> Path:
    return checkpoint.save(folder, step, {"weights": torch.full((4,), value)}, {"value": value}, keep=keep)


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_everything_comes_back_exactly(tmp_path: Path) -> None:
    flat = torch.arange(12, dtype=torch.float32)
    tensors = {
        "views/a": flat[:8],  # shares memory with the next one
        "views/b": flat[4:],
        "transposed": torch.arange(6.0).reshape(2, 3).T,
        "needs.grad": torch.ones(2, requires_grad=True),
        "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        "rng": torch.get_rng_state(),
        "flag": torch.tensor(True),
        "empty": torch.zeros(0, 3),
        "numpy": np.arange(3, dtype=np.int64)[::-1],
        "frozen": np.broadcast_to(np.float64(0.1), (2,)),
    }
    state = {"float": 0.1 + 0.2, "nan": float("nan"), "int": 2**127 + 1, "list": [1, None, "é"], "nested": {"a": {}}}
    path = checkpoint.save(
        tmp_path / "deep" / "er", 7, tensors, state, {"replay.bin": lambda p: p.write_bytes(b"rows") and None}
    )
    found = checkpoint.load_newest(tmp_path / "deep" / "er")
    assert (found.path, found.step, found.warnings, list(found.files)) == (path, 7, (), ["replay.bin"])
    assert path.name == "step-000000007"
    assert set(found.tensors) == set(tensors)
    for name, value in tensors.items():
        expected = value if isinstance(value, torch.Tensor) else torch.tensor(value.copy())
        assert found.tensors[name].dtype == expected.dtype, name
        assert torch.equal(found.tensors[name], expected), name
    assert repr(found.state) == repr(state)
    assert found.files["replay.bin"].read_bytes() == b"rows"


def test_loaded_tensors_do_not_hang_on_the_file(tmp_path: Path) -> None:
    path = put(tmp_path, 1, 3.0)
    tensors = checkpoint.load(path).tensors
    (path / "tensors.safetensors").write_bytes(bytes(1000))
    assert tensors["weights"].tolist() == [3.0] * 4
    tensors["weights"].add_(1)
    assert "step-000000001" not in Path("/proc/self/maps").read_text()


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (1, 20, 300, 4_000, 1_000_000_000):
        put(tmp_path, step, float(step))
    assert names(tmp_path) == ["step-000000300", "step-000004000", "step-1000000000"]
    assert checkpoint.load_newest(tmp_path).step == 1_000_000_000


def test_a_checkpoint_beyond_the_saved_step_never_pushes_it_out(tmp_path: Path) -> None:
    for step in (7, 8, 9):
        put(tmp_path, step)
    put(tmp_path, 3, keep=1)
    assert names(tmp_path) == ["step-000000003"]


def test_a_step_can_be_saved_again(tmp_path: Path) -> None:
    put(tmp_path, 4, 1.0)
    put(tmp_path, 5, 1.0)
    put(tmp_path, 5, 2.0)
    assert names(tmp_path) == ["step-000000004", "step-000000005"]
    assert checkpoint.load_newest(tmp_path).state == {"value": 2.0}
    (tmp_path / "step-000000006").write_text("a file in its place")
    put(tmp_path, 6, 3.0)
    assert checkpoint.load_newest(tmp_path).state == {"value": 3.0}


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    path = put(tmp_path / "checkpoints", 1)
    for part in (path.parent, path, *path.iterdir()):
        assert stat.S_IMODE(part.stat().st_mode) & 0o077 == 0, part


def test_added_files_are_checked_only_when_they_are_wanted(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 1, {}, {}, {"replay.bin": lambda p: p.write_bytes(b"rows") and None})
    (path / "replay.bin").write_bytes(b"rowz")
    assert not checkpoint.load_newest(tmp_path, with_files=False).files
    with pytest.raises(CheckpointError, match=r"replay\.bin is damaged: its checksum is wrong"):
        checkpoint.load_newest(tmp_path)


def test_added_files_have_plain_names(tmp_path: Path) -> None:
    for name in ("../replay.bin", "/tmp/x", "", ".hidden", "a/b", "state.json", "manifest.json", "a\nb"):
        with pytest.raises(CheckpointError, match="cannot hold a file called"):
            checkpoint.save(tmp_path, 1, {}, {}, {name: lambda path: None})
    assert names(tmp_path) == []


def test_a_writer_that_writes_nothing_or_raises_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"replay\.bin is missing"):
        checkpoint.save(tmp_path, 1, {}, {}, {"replay.bin": lambda path: None})

    def interrupt(path: Path) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(tmp_path, 1, {}, {}, {"replay.bin": interrupt})
    assert names(tmp_path) == []


def test_what_could_not_be_read_back_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="Save long lists as tensors"):
        checkpoint.save(tmp_path, 1, {}, {"rows": [0] * 1_100_000})
    with pytest.raises(CheckpointError, match="more than a checkpoint holds"):
        checkpoint.save(tmp_path, 1, {f"{i:0120d}": torch.zeros(0) for i in range(9_000)}, {})
    with pytest.raises(CheckpointError, match="keep=0"):
        checkpoint.save(tmp_path, 1, {}, {}, keep=0)
    assert names(tmp_path) == []


def test_a_folder_without_checkpoints_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint"):
        checkpoint.load_newest(tmp_path)
    with pytest.raises(CheckpointError, match="No such file"):
        checkpoint.load_newest(tmp_path / "missing")
    with pytest.raises(CheckpointError, match=r"step-000000001.*No such file"):
        checkpoint.load(tmp_path / "step-000000001")


def test_the_sweep_takes_what_the_dead_left_and_nothing_else(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as alive, subprocess.Popen(["true"]) as gone:
        gone.wait()
        put(tmp_path, 1)
        stay = [f".tmp-{alive.pid}-0123abcd", ".tmp-notes", ".hidden", "step-000000001", "best"]
        go = [f".tmp-{gone.pid}-0123abcd", f".tmp-{os.getpid()}-0123abcd"]
        for name in {*stay, *go} - {"step-000000001"}:
            (tmp_path / name).mkdir()
            (tmp_path / name / "tensors.safetensors").write_text("half")
        checkpoint.sweep(tmp_path)
        assert names(tmp_path) == sorted(stay)
        alive.kill()


def test_a_replacement_that_was_cut_short_gives_the_old_one_back(tmp_path: Path) -> None:
    put(tmp_path, 4)
    aside = tmp_path / ".replaced-step-000000005"
    put(tmp_path, 5).rename(aside)
    assert checkpoint.load_newest(tmp_path).path == aside
    checkpoint.sweep(tmp_path)
    assert names(tmp_path) == ["step-000000004", "step-000000005"]
    put(tmp_path, 6).rename(tmp_path / ".replaced-step-000000005")
    assert checkpoint.load_newest(tmp_path).path.name == "step-000000005"
    checkpoint.sweep(tmp_path)
    assert names(tmp_path) == ["step-000000004", "step-000000005"]


def test_a01_a_folder_that_is_a_link_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="could not be saved: it is a link or a file"):
        checkpoint.save(tmp_path / "link", 1, {}, {})
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_saving_again_and_again_takes_no_more_memory() -> None:
    """Types that a library makes for each size stay for good, and what a world keeps has another size each time."""

    def tensors(size: int) -> dict[str, torch.Tensor]:
        return {"world.taken": torch.zeros(size), "half": torch.zeros(3, dtype=torch.float16)}

    checkpoint._encode_tensors(tensors(70_001))
    before = len(ctypes._pointer_type_cache)  # type: ignore[attr-defined]
    data = [checkpoint._encode_tensors(tensors(size)) for size in range(70_002, 70_012)]
    assert len(ctypes._pointer_type_cache) == before  # type: ignore[attr-defined]
    assert data[-1] == safetensors.torch.save(tensors(70_011))
    found = safetensors.torch.load(checkpoint._encode_tensors({"wide": torch.ones(2, dtype=torch.bfloat16)}))
    assert found["wide"].dtype == torch.bfloat16
