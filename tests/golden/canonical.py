"""Canonical values of a checkpoint: one hash per named value, whatever file and tensor names the checkpoint uses.

This is the only file of the golden tests that knows the layout on disk. When the layout changes, adapt `TENSOR_NAMES`,
`ROW_FILES` and `_sections` here; the names that they give, and so the recorded hashes, stay.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

Array = np.ndarray[Any, Any]
Fields = list[tuple[str, np.dtype[Any], tuple[int, ...]]]

# Prefix of a tensor on disk -> canonical prefix. A tensor that matches none keeps its name.
TENSOR_NAMES = {"net.": "weights."}
# File with rows -> whether all rows of it are values of the run. A rollout's rows are used once: what a lane keeps beyond
# the newest rollout depends on the size of the lane's ring alone.
ROW_FILES = {"replay.bin": True, "rollout.bin": False}
# Columns that on-policy actors write beside the fields of the spaces.
ROLLOUT_COLUMNS: Fields = [("log_prob", np.dtype("float32"), ()), ("value", np.dtype("float32"), ())]
# In state.json, but no value of the run: settings, wall time, how the spaces are described, and the signature of these.
NOT_VALUES = ("config", "seconds", "obs_space", "action_space", "signature", "loss", "dials")

HEADER_WORDS = LANE_WORDS = 8
META_WORDS = 4
LAST = 3  # terminated | truncated


def values_of(checkpoint: Path, num_lanes: int, newest_rows: int) -> dict[str, str]:
    """Hashes of everything the run continues from, by canonical name. Of a rollout, the newest rows of each lane count."""
    state = json.loads((checkpoint / "state.json").read_text())
    found = {_renamed(name): hash_of(array) for name, array in load_file(checkpoint / "tensors.safetensors").items()}
    found |= {name: hash_json(value) for name, value in _sections(state)}
    for file, is_whole in ROW_FILES.items():
        if (checkpoint / file).exists():
            fields = _fields(state, ROLLOUT_COLUMNS if file == "rollout.bin" else [])
            for lane, rows in enumerate(_lanes(checkpoint / file, fields, num_lanes)):
                if not is_whole:
                    # Nobody acts from a final observation. At the base a rollout's had version 0, since then it has the actor's.
                    rows["version"] = np.where(rows["flags"] & LAST, 0, rows["version"])
                kept = rows if is_whole else {name: column[-newest_rows:] for name, column in rows.items()}
                found |= {f"rows.lane{lane}.{name}": hash_of(column) for name, column in kept.items()}
    return dict(sorted(found.items()))


def newest(checkpoints: Path) -> Path:
    return max(path for path in checkpoints.iterdir() if re.fullmatch(r"step-\d+", path.name))


def hash_of(array: Array) -> str:
    head = f"{array.dtype.str} {array.shape} ".encode()
    return hashlib.sha256(head + np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def hash_json(value: Any) -> str:
    """JSON writes every float so that it reads back exactly."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _renamed(name: str) -> str:
    for prefix, canonical in TENSOR_NAMES.items():
        if name.startswith(prefix):
            return canonical + name.removeprefix(prefix)
    return name


def _sections(state: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The counters and the state of each part, two levels deep."""
    if "dials" in state and "rollout" not in state:  # what was told to policies that explore by epsilon
        yield "counter.epsilon_override", state["dials"].get("epsilon")
    for name, value in state.items():
        if name in NOT_VALUES:
            continue
        if isinstance(value, Mapping):
            yield from ((f"{name}.{inner}", part) for inner, part in value.items())
        else:
            yield f"counter.{name}", value


def _fields(state: Mapping[str, Any], extra: Fields) -> Fields:
    return [*_leaves("obs", state["obs_space"]), *_leaves("action", state["action_space"]), *extra]


def _leaves(name: str, space: Mapping[str, Any]) -> Fields:
    if space["kind"] in ("Dict", "Tuple"):
        parts = space["parts"]
        named = parts.items() if isinstance(parts, Mapping) else enumerate(parts)
        return [leaf for key, part in named for leaf in _leaves(f"{name}.{key}", part)]
    if space["kind"] == "Box":
        return [(name, np.dtype(space["dtype"]), tuple(space["shape"]))]
    if space["kind"] == "Discrete":
        return [(name, np.dtype(space["dtype"]), ())]
    raise ValueError(f"the golden cases have no space of kind {space['kind']}")


def _lanes(path: Path, fields: Fields, num_lanes: int) -> Iterator[dict[str, Array]]:
    """The rows of each lane in order, oldest first, as columns by name."""
    words = np.fromfile(path, np.uint64)
    sizes = [(int(dtype.itemsize * np.prod(shape, dtype=np.int64)) + 7) // 8 for _, dtype, shape in fields]
    width = META_WORDS + sum(sizes)
    begin = HEADER_WORDS + num_lanes * LANE_WORDS
    heads = words[HEADER_WORDS:begin].reshape(num_lanes, LANE_WORDS)
    written = (heads[:, 0] - heads[:, 2]).astype(np.int64)
    slots = _slots(written, (len(words) - begin) // width)
    for count in written.tolist():
        used = min(count, slots)
        rows = words[begin : begin + used * width].reshape(used, width)
        begin += used * width
        # The ring has one slot more than the rows it keeps: the oldest row of a full one counts as overwritten.
        order = np.arange(max(count - slots + 1, 0), count)
        yield _columns(rows[order % slots], order, fields, sizes)


def _slots(written: Array, stored: int) -> int:
    """Slots of each ring, from the rows that were written to the lanes and the rows that the file has."""
    totals = np.minimum(written[:, None], np.arange(written.max() + 2)).sum(0)
    return int(np.searchsorted(totals, stored)) if written.sum() > stored else int(written.max()) + 1


def _columns(rows: Array, numbers: Array, fields: Fields, sizes: list[int]) -> dict[str, Array]:
    meta = np.ascontiguousarray(rows[:, :META_WORDS])
    halves = meta.view(np.uint32).reshape(len(rows), META_WORDS, 2)
    is_last = (halves[:, 0, 1] & LAST) != 0
    tags = (numbers % 0xFFFFFFFF + 1).astype(np.uint32)
    priority = np.ascontiguousarray(halves[:, 3, 0]).view(np.float32)
    found = {
        "reward": np.ascontiguousarray(halves[:, 0, 0]).view(np.float32),
        "flags": halves[:, 0, 1],
        "step": meta[:, 1],
        "version": meta[:, 2],
        # A word whose tag is another row's is left over from the row that had the slot before.
        "priority": np.where(halves[:, 3, 1] == tags, priority, np.float32(-1)),
    }
    at = META_WORDS
    for (name, dtype, shape), size in zip(fields, sizes, strict=True):
        raw = np.ascontiguousarray(rows[:, at : at + size]).view(np.uint8).reshape(len(rows), -1)
        count = int(dtype.itemsize * np.prod(shape, dtype=np.int64))
        column = np.ascontiguousarray(raw[:, :count]).view(dtype).reshape(len(rows), *shape).copy()
        if not name.startswith("obs"):
            column[is_last] = 0  # not written with an episode's final observation
        found[name] = column
        at += size
    return found
