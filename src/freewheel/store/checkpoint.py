"""Checkpoints: folders that are complete or absent. Files are never trusted when read.

`checkpoints/step-000050000/` holds tensors.safetensors, state.json, added files (a replay), and manifest.json with the size and
checksum of each. One process saves into a folder at a time (see `RunFolder.lock`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

from freewheel.contracts import Array
from freewheel.errors import CheckpointError
from freewheel.machine.fault_points import reach
from freewheel.store import disk

FORMAT = 1
TENSORS, STATE, MANIFEST = "tensors.safetensors", "state.json", "manifest.json"

# Limits for reading: a hostile file must cost neither time nor memory. The header has space for ten thousand named tensors.
MOST_TENSOR_BYTES = 4 << 30
MOST_HEADER_BYTES = 1 << 20
MOST_STATE_BYTES = 16 << 20
MOST_MANIFEST_BYTES = 64 << 10

VISIBLE = re.compile(r"step-(\d{9,18})")
# The old checkpoint's name while a new one of the same step replaces it. It counts if the new one never arrives.
REPLACED = re.compile(r"\.replaced-step-(\d{9,18})")
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")

WriteFile = Callable[[Path], None]


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint. `warnings` says which newer ones are damaged, and why. `files` are the added files by name,
    whose checksums were right when it was loaded."""

    path: Path
    step: int
    tensors: dict[str, torch.Tensor]
    state: dict[str, Any]
    files: dict[str, Path]
    warnings: tuple[str, ...] = ()


def save(
    folder: Path,
    step: int,
    tensors: Mapping[str, torch.Tensor | Array],
    state: Mapping[str, Any],
    files: Mapping[str, WriteFile] | None = None,
    keep: int = 3,
) -> Path:
    """Saves a checkpoint into `folder`, then removes all but the newest `keep`.

    Each of `files` is a function that writes to a path. A failure leaves nothing behind and does not touch older checkpoints.
    """
    _check_names(files or {}, step, keep)
    final = folder / f"step-{step:09d}"
    blobs = {TENSORS: _encode_tensors(tensors), STATE: _encode_state(state)}
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with disk.open_folder(folder):  # refuses a link before anything is written through it
            sweep(folder)
        with disk.temp_folder(folder) as temp:
            for name, data in blobs.items():
                disk.write_new(temp / name, data)
                reach("ckpt-write")
            for name, write in (files or {}).items():
                write(temp / name)
            disk.write_new(temp / MANIFEST, _manifest(temp, step, [*blobs, *(files or {})]))
            reach("ckpt-fsync")
            disk.sync_folder(temp)
            _put_in_place(temp, final)
        reach("ckpt-dirsync")
        disk.sync_folder(folder)
    except (OSError, CheckpointError) as error:
        raise CheckpointError(_why_not_saved(final, error)) from error
    _rotate(folder, step, keep)
    return final


def load_newest(folder: Path, with_files: bool = True) -> Checkpoint:
    """The newest complete checkpoint of a folder. Its `warnings` name newer ones that are damaged.

    Without `with_files` the added files are neither checked nor listed: a policy does not need its replay.
    """
    warnings: list[str] = []
    for path in list_checkpoints(folder):
        try:
            return replace(load(path, with_files), warnings=tuple(warnings))
        except CheckpointError as error:
            warnings.append(str(error))
    if not warnings:
        raise CheckpointError(
            f"{folder} has no checkpoint (a folder such as step-000050000): it is not a run's, or the run ended before it saved one."
        )
    lines = "\n".join(f"  {line}" for line in warnings)
    raise CheckpointError(f"{folder} has no complete checkpoint:\n{lines}\nStart a new run, or restore a copy.")


def load(path: Path, with_files: bool = True) -> Checkpoint:
    """One checkpoint, if it is complete. The error says what is wrong with it."""
    try:
        with disk.open_folder(path) as fd:
            return _load(path, fd, with_files)
    except CheckpointError as error:
        raise CheckpointError(f"checkpoint {path}: {error}") from None
    except OSError as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error.strerror or error}.") from error


def list_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints of a folder by name, newest first. Some may be damaged."""
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise CheckpointError(f"there are no checkpoints in {folder}: {error.strerror}.") from error
    found = {int(match[1]): name for name in names if (match := REPLACED.fullmatch(name))}
    found |= {int(match[1]): name for name in names if (match := VISIBLE.fullmatch(name))}
    return [folder / found[step] for step in sorted(found, reverse=True)]


def sweep(folder: Path) -> None:
    """Removes what dead or failed writers left in a folder."""
    for name in os.listdir(folder):
        if (match := REPLACED.fullmatch(name)) and not os.path.lexists(folder / f"step-{match[1]}"):
            os.rename(folder / name, folder / f"step-{match[1]}")
        elif match:
            disk.remove(folder / name)
    disk.sweep(folder, own=True)


def _check_names(files: Mapping[str, WriteFile], step: int, keep: int) -> None:
    if not 0 <= step < 10**18 or keep < 1:
        raise CheckpointError(f"a checkpoint needs step >= 0 and keep >= 1, not step={step} and keep={keep}.")
    for name in files:
        if not FILE_NAME.fullmatch(name) or name in (TENSORS, STATE, MANIFEST):
            raise CheckpointError(
                f"a checkpoint cannot hold a file called {name!r}; use a plain name such as replay.bin."
            )


def _encode_tensors(tensors: Mapping[str, torch.Tensor | Array]) -> bytes:
    plain, data = {name: _plain(value) for name, value in tensors.items()}, b""
    try:
        # Of tensors every new size would leave types behind for good (numpy's ctypeslib), and what a world keeps grows.
        data = safetensors.numpy.save({name: tensor.numpy() for name, tensor in plain.items()})
    except TypeError:  # numpy has no bfloat16
        data = safetensors.torch.save(plain)
    header_bytes = int.from_bytes(data[:8], "little")
    if header_bytes > MOST_HEADER_BYTES or len(data) > MOST_TENSOR_BYTES:
        raise CheckpointError(
            f"{len(tensors):,} tensors of {len(data):,} bytes are more than a checkpoint holds "
            f"({MOST_TENSOR_BYTES:,} bytes, {MOST_HEADER_BYTES:,} for names). Save the large ones as added files."
        )
    return data


def _plain(value: torch.Tensor | Array) -> torch.Tensor:
    """A copy: the format refuses tensors that share memory, and parameters are views into one flat vector."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True).contiguous()
    return torch.from_numpy(np.array(value, order="C"))


def _encode_state(state: Mapping[str, Any]) -> bytes:
    data = json.dumps(dict(state), separators=(",", ":")).encode()
    if len(data) > MOST_STATE_BYTES or disk.count_values(data) > disk.MOST_VALUES:
        raise CheckpointError(
            f"the state has {len(data):,} bytes and about {disk.count_values(data):,} values; a checkpoint holds "
            f"{MOST_STATE_BYTES:,} and {disk.MOST_VALUES:,}. Save long lists as tensors or added files."
        )
    return data


def _manifest(folder: Path, step: int, names: list[str]) -> bytes:
    """The manifest of files in `folder`. Also flushes each file to disk."""
    sums = {}
    with disk.open_folder(folder) as folder_fd:
        for name in names:
            with disk.open_file(name, folder_fd) as (fd, size):
                os.fsync(fd)
                sums[name] = {"bytes": size, "crc32": disk.checksum(fd)}
    return _manifest_text({"format": FORMAT, "freewheel": version("freewheel"), "step": step, "files": sums})


def _manifest_text(manifest: Mapping[str, Any]) -> bytes:
    """The only form of a manifest: reading compares the bytes, so it detects any change."""
    body = {key: manifest[key] for key in ("format", "freewheel", "step", "files")}
    text = json.dumps(body, sort_keys=True)
    return json.dumps(body | {"crc32": zlib.crc32(text.encode())}, indent=1, sort_keys=True).encode()


def _put_in_place(temp: Path, final: Path) -> None:
    if not os.path.lexists(final):
        reach("ckpt-rename")
        os.rename(temp, final)
        return
    # A folder cannot be renamed over another one. The old checkpoint counts under its other name until the new one is there.
    aside = final.with_name(f".replaced-{final.name}")
    os.rename(final, aside)
    reach("ckpt-rename")
    try:
        os.rename(temp, final)
    except BaseException:
        os.rename(aside, final)
        raise
    disk.sync_folder(final.parent)
    disk.remove(aside)


def _rotate(folder: Path, step: int, keep: int) -> None:
    # Checkpoints of later steps are damaged, or from before the run went back. They must not displace the new one.
    ours = folder / f"step-{step:09d}"
    found = list_checkpoints(folder)
    first = found.index(ours)
    for path in (found[first:] + found[:first])[keep:]:
        # Renamed first: a crash during the removal must not leave a partial checkpoint that counts.
        away = disk.temp_in(folder)
        try:
            os.rename(path, away)
        except OSError as error:
            raise CheckpointError(
                f"the checkpoint was saved, but the old {path} cannot be removed: {error.strerror}. Remove it by hand."
            ) from error
        disk.remove(away)


def _why_not_saved(final: Path, error: OSError | CheckpointError) -> str:
    why = (error.strerror if isinstance(error, OSError) else None) or str(error).rstrip(".")
    try:
        free = f" ({shutil.disk_usage(final.parent).free / 1e6:,.1f} MB are free there)"
    except OSError:
        free = ""
    return (
        f"checkpoint {final} could not be saved: {why}. The older checkpoints are untouched. "
        f"Make room or allow writing there{free}."
    )


def _load(path: Path, folder_fd: int, with_files: bool) -> Checkpoint:
    manifest = _read_manifest(folder_fd)
    step = manifest["step"]
    if (match := VISIBLE.fullmatch(path.name)) and int(match[1]) != step:
        raise CheckpointError(f"{MANIFEST} belongs to step {step}, not to this folder.")
    added = sorted(set(manifest["files"]) - {TENSORS, STATE}) if with_files else []
    tensors = _read_tensors(folder_fd, manifest["files"][TENSORS])
    data = disk.read_bytes(STATE, folder_fd, MOST_STATE_BYTES)
    if {"bytes": len(data), "crc32": zlib.crc32(data)} != manifest["files"][STATE]:
        raise CheckpointError(f"{STATE} is damaged: its checksum is wrong.")
    state = disk.parse_json(STATE, data)
    for name in added:
        with disk.open_file(name, folder_fd) as (fd, size):
            _check_sum(name, fd, size, manifest["files"][name])
    return Checkpoint(path, step, tensors, state, {name: path / name for name in added})


def _read_manifest(folder_fd: int) -> dict[str, Any]:
    data = disk.read_bytes(MANIFEST, folder_fd, MOST_MANIFEST_BYTES)
    manifest = disk.parse_json(MANIFEST, data)
    if type(manifest.get("format")) is not int or manifest["format"] < 1:
        raise CheckpointError(f"{MANIFEST} does not belong to a checkpoint.")
    if manifest["format"] > FORMAT:
        raise CheckpointError(
            f"it is in format {manifest['format']}, written by freewheel {str(manifest.get('freewheel'))[:40]!r}; this "
            f"is freewheel {version('freewheel')}, which reads format {FORMAT}. Install the newer one."
        )
    if not _is_manifest(manifest) or _manifest_text(manifest) != data:
        raise CheckpointError(f"{MANIFEST} is damaged or foreign.")
    return manifest


def _is_manifest(manifest: dict[str, Any]) -> bool:
    files = manifest.get("files")
    if type(manifest.get("step")) is not int or type(manifest.get("freewheel")) is not str or type(files) is not dict:
        return False
    return {TENSORS, STATE} <= set(files) and all(
        FILE_NAME.fullmatch(name)
        and type(entry) is dict
        and set(entry) == {"bytes", "crc32"}
        and all(type(value) is int for value in entry.values())
        for name, entry in files.items()
    )


def _read_tensors(folder_fd: int, entry: Mapping[str, int]) -> dict[str, torch.Tensor]:
    with disk.open_file(TENSORS, folder_fd) as (fd, size):
        header_bytes = int.from_bytes(os.pread(fd, 8, 0), "little")
        if not 0 < header_bytes <= min(size - 8, MOST_HEADER_BYTES) or size > MOST_TENSOR_BYTES:
            raise CheckpointError(f"{TENSORS} has {size:,} bytes and a header of {header_bytes:,}: damaged or foreign.")
        _check_sum(TENSORS, fd, size, entry)
        try:
            # By descriptor: reads the file that was checked.
            with safetensors.safe_open(f"/dev/fd/{fd}", framework="pt") as file:
                # Cloned: otherwise the tensors are views into the mapped file, which may change or vanish.
                return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        except (safetensors.SafetensorError, RuntimeError, ValueError, TypeError, OverflowError) as error:
            shown = str(error)[:200].encode("unicode_escape").decode()  # it may quote names, with escape codes in them
            raise CheckpointError(f"{TENSORS} is damaged or foreign: {shown}.") from error


def _check_sum(name: str, fd: int, size: int, entry: Mapping[str, int]) -> None:
    if size != entry["bytes"]:
        raise CheckpointError(f"{name} has {size:,} bytes, not the {entry['bytes']:,} that were written.")
    if disk.checksum(fd) != entry["crc32"]:
        raise CheckpointError(f"{name} is damaged: its checksum is wrong.")
