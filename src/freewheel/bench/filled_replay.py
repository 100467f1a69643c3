"""Our replay as the benchmark drives it: filled lanes, and calls with their arguments ready made."""

from __future__ import annotations

import gc
import itertools

import numpy as np
from gymnasium import spaces

from freewheel.bench.worker.rows import (
    ALPHA,
    BETA,
    EPISODE_ROWS,
    GAMMA,
    NUM_ACTIONS,
    Array,
    Obs,
    fresh_priorities,
    random_frames,
)
from freewheel.bench.worker.window import Call, resident_bytes
from freewheel.memory.lanes import Lanes, Writer
from freewheel.memory.replay import Replay
from freewheel.spec import RowSpec

# An episode's final observation is a row of its own, from which no transition starts; it is not counted.
STORED_ROWS = EPISODE_ROWS + 1
TRANSITION_SHARE = EPISODE_ROWS / STORED_ROWS


def open_lanes(obs: Obs, capacity: int, num_lanes: int) -> tuple[Lanes, Writer]:
    """Lanes of `capacity` rows in all, filled with episodes; of stacked observations the single frames."""
    shape = obs.shape[1:] if obs.is_stacked else obs.shape
    low, high = (0, 255) if obs.dtype == np.uint8 else (-np.inf, np.inf)
    box = spaces.Box(low, high, shape, obs.dtype)
    lanes = Lanes(RowSpec.of(box, spaces.Discrete(NUM_ACTIONS)), num_lanes, capacity // num_lanes)
    writer = lanes.writer()
    fields, reward, running, truncated = one_episode(obs)
    for lane in range(num_lanes):
        ids = np.full(STORED_ROWS, lane, np.int64)
        for start in range(0, lanes.lane_rows, STORED_ROWS):
            n = min(STORED_ROWS, lanes.lane_rows - start)
            rows = {name: values[:n] for name, values in fields.items()}
            writer.append(ids[:n], rows, reward[:n], running[:n], truncated[:n])
    return lanes, writer


def one_episode(obs: Obs) -> tuple[dict[str, Array], Array, Array, Array]:
    rng = np.random.default_rng(1)
    truncated = np.zeros(STORED_ROWS, np.bool_)
    truncated[-1] = True
    fields = {"obs": random_frames(obs, STORED_ROWS), "action": rng.integers(0, NUM_ACTIONS, STORED_ROWS)}
    reward = rng.standard_normal(STORED_ROWS, dtype=np.float32)
    return fields, reward, np.zeros(STORED_ROWS, np.bool_), truncated


def add_call(writer: Writer, obs: Obs, num_lanes: int) -> Call:
    """One row for every lane; all lanes end their episode at the same call, as the peers' envs do."""
    fields, reward, _, _ = one_episode(obs)
    ids = np.arange(num_lanes, dtype=np.int64)
    ended, running = np.ones(num_lanes, np.bool_), np.zeros(num_lanes, np.bool_)
    starts = itertools.cycle(range(0, STORED_ROWS - num_lanes, num_lanes))
    ready = []
    for step, start in zip(range(STORED_ROWS), starts, strict=False):
        rows = slice(start, start + num_lanes)
        truncated = ended if step == EPISODE_ROWS else running
        ready.append((ids, {n: v[rows] for n, v in fields.items()}, reward[rows], running, truncated))
    take = itertools.cycle(ready).__next__
    append = writer.append
    return lambda: append(*take())


def open_replay(lanes: Lanes, obs: Obs, batch: int, *, prioritized: bool) -> Replay:
    # No prefetching: a thread that draws while the clock stands still would measure nothing.
    stack = obs.shape[0] if obs.is_stacked else 1
    return Replay(lanes, batch, gamma=GAMMA, stack=stack, prioritized=prioritized, alpha=ALPHA, seed=0, prefetch=0)


def sample_call(replay: Replay) -> Call:
    """A batch with all the tensors a learner reads; prioritized, with the priorities given back."""
    if not replay.prioritized:

        def sample() -> None:
            batch = replay.sample()
            _ = batch.obs, batch.action, batch.reward, batch.next_obs, batch.discount

        return sample
    priorities, size = fresh_priorities(), replay.batch_size

    def sample_and_update() -> None:
        batch = replay.sample(BETA)
        _ = batch.obs, batch.action, batch.reward, batch.next_obs, batch.discount, batch.weight
        replay.update_priorities(batch, priorities(size))

    return sample_and_update


def bytes_per_transition(obs: Obs, capacity: int, num_lanes: int) -> float:
    """Memory of filled lanes and a replay on them, per transition that can be drawn."""
    gc.collect()
    before = resident_bytes()
    lanes, _ = open_lanes(obs, capacity, num_lanes)
    replay = open_replay(lanes, obs, 32, prioritized=False)
    replay.sample()
    taken = max(resident_bytes() - before, lanes.nbytes)
    replay.close()
    # The newest row of each lane has no successor yet.
    transitions = num_lanes * (lanes.lane_rows * TRANSITION_SHARE - 1)
    return taken / transitions
