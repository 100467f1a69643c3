"""Each peer's replay buffer at its fair best: filled to capacity, and its calls with arguments ready made.

"Fair best" was measured, not guessed; benchmarks/README.md says what was tried and which form won.
"""

import importlib
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from freewheel.bench.worker.replay_buffer import Opened, Order
from freewheel.bench.worker.rows import ALPHA, BETA, NUM_ACTIONS, Block, episode, fresh_priorities, steps


def open_sb3(order: Order) -> Opened:
    spaces: Any = importlib.import_module("gymnasium.spaces")
    buffers: Any = importlib.import_module("stable_baselines3.common.buffers")
    obs, block = order.obs, episode(order.obs)
    low, high = (0, 255) if obs.dtype == np.uint8 else (-np.inf, np.inf)
    # Time limits are handled by default; the small form cannot do that and SB3 refuses the pair.
    replay = buffers.ReplayBuffer(
        order.capacity,
        spaces.Box(low, high, obs.shape, obs.dtype),
        spaces.Discrete(NUM_ACTIONS),
        device="cpu",
        n_envs=order.lanes,
        optimize_memory_usage=order.small,
        handle_timeout_termination=not order.small,
    )
    for start in range(0, replay.buffer_size, len(block)):
        rows = slice(start, min(start + len(block), replay.buffer_size))
        count = rows.stop - rows.start
        replay.observations[rows] = block.obs[:count, None]
        if not order.small:
            replay.next_observations[rows] = block.next_obs[:count, None]
        replay.actions[rows] = block.action[:count, None, None]
        replay.rewards[rows] = block.reward[:count, None]
        replay.dones[rows] = replay.timeouts[rows] = block.truncated[:count, None]
    replay.full = True
    ready = [
        (
            s.obs,
            s.next_obs,
            s.action,
            s.reward,
            s.truncated,
            [{"TimeLimit.truncated": bool(t)} for t in s.truncated],
        )
        for s in steps(block, order.lanes)
    ]
    take = itertools.cycle(ready).__next__
    return Opened(lambda: replay.add(*take()), replay.sample)


def open_cpprb(order: Order) -> Opened:
    cpprb: Any = importlib.import_module("cpprb")
    obs, block = order.obs, episode(order.obs)
    columns: dict[str, dict[str, Any]] = {"act": {"dtype": np.int64}, "rew": {}, "done": {}}
    options: dict[str, Any] = {}
    if order.small:
        # Stores each frame once; wants the stack as the last axis and rows of one env in order.
        columns["obs"] = {
            "shape": (*obs.shape[1:], obs.shape[0]) if obs.is_stacked else obs.shape,
            "dtype": obs.dtype,
        }
        options = {"next_of": "obs", "stack_compress": "obs"} if obs.is_stacked else {"next_of": "obs"}
    else:
        columns["obs"] = columns["next_obs"] = {"shape": obs.shape, "dtype": obs.dtype}
    if order.prioritized:
        replay = cpprb.PrioritizedReplayBuffer(order.capacity, columns, alpha=ALPHA, **options)
    else:
        replay = cpprb.ReplayBuffer(order.capacity, columns, **options)

    def as_columns(rows: Block) -> dict[str, Any]:
        before, after = rows.obs, rows.next_obs
        if order.small and obs.is_stacked:
            before, after = np.moveaxis(before, 1, -1), np.moveaxis(after, 1, -1)
        done = rows.terminated.astype(np.float32)
        return {"obs": before, "next_obs": after, "act": rows.action, "rew": rows.reward, "done": done}

    whole, priorities = as_columns(block), fresh_priorities()
    for _ in range(0, order.capacity, len(block)):
        more = {"priorities": priorities(len(block))} if order.prioritized else {}
        replay.add(**whole, **more)
        replay.on_episode_end()
    take = itertools.cycle([as_columns(s) for s in steps(block, order.lanes)]).__next__

    def sample_and_update(batch: int) -> None:
        rows = replay.sample(batch, beta=BETA)
        replay.update_priorities(rows["indexes"], priorities(batch))

    return Opened(lambda: replay.add(**take()), sample_and_update if order.prioritized else replay.sample)


def open_torchrl(order: Order) -> Opened:
    torch: Any = importlib.import_module("torch")
    data: Any = importlib.import_module("torchrl.data")
    tensordict: Any = importlib.import_module("tensordict")
    block = episode(order.obs)

    def as_tensordict(rows: Block) -> Any:
        after = {
            "observation": torch.from_numpy(rows.next_obs),
            "reward": torch.from_numpy(rows.reward)[:, None],
            "terminated": torch.from_numpy(rows.terminated)[:, None],
            "done": torch.from_numpy(rows.truncated)[:, None],
        }
        before = {
            "observation": torch.from_numpy(rows.obs),
            "action": torch.from_numpy(rows.action),
            "next": after,
        }
        return tensordict.TensorDict(before, [len(rows)])

    # The plain buffer samples in 3/4 of the time of TensorDictReplayBuffer, which also writes an index key.
    replay = data.ReplayBuffer(storage=data.LazyTensorStorage(order.capacity))
    whole = as_tensordict(block)
    for _ in range(0, order.capacity, len(block)):
        replay.extend(whole)
    if order.lanes == 1:  # add() of a single row is faster than extend() by one
        single = itertools.cycle([as_tensordict(s)[0] for s in steps(block, 1)]).__next__
        return Opened(lambda: replay.add(single()), replay.sample)
    take = itertools.cycle([as_tensordict(s) for s in steps(block, order.lanes)]).__next__
    return Opened(lambda: replay.extend(take()), replay.sample)


def open_tianshou(order: Order) -> Opened:
    data: Any = importlib.import_module("tianshou.data")
    block = episode(order.obs)
    size, options = order.capacity, {}
    if order.small and order.obs.is_stacked:
        options = {"stack_num": order.obs.shape[0], "save_only_last_obs": True, "ignore_obs_next": True}
    elif order.small:
        options = {"ignore_obs_next": True}
    # Sampling from one plain buffer is faster than from a vector buffer, which asks each lane in Python.
    if order.prioritized:
        replay = data.PrioritizedReplayBuffer(size, ALPHA, BETA, **options)
    elif order.lanes == 1:
        replay = data.ReplayBuffer(size, **options)
    else:
        replay = data.VectorReplayBuffer(size, order.lanes, **options)

    def as_batch(rows: Block, at: Any) -> Any:
        return data.Batch(
            obs=rows.obs[at],
            act=rows.action[at],
            rew=rows.reward[at],
            terminated=rows.terminated[at],
            truncated=rows.truncated[at],
            obs_next=rows.next_obs[at],
        )

    at = 0 if order.lanes == 1 else slice(None)
    ready = [as_batch(s, at) for s in steps(block, order.lanes)]
    replay.add(ready[0])  # allocates the columns
    fill_tianshou(replay, block)
    priorities = fresh_priorities()
    if order.prioritized:
        replay.update_weight(np.arange(size), priorities(size))
    take = itertools.cycle(ready).__next__

    def sample_and_update(batch: int) -> None:
        _, index = replay.sample(batch)
        replay.update_weight(index, priorities(batch))

    return Opened(lambda: replay.add(take()), sample_and_update if order.prioritized else replay.sample)


def fill_tianshou(replay: Any, block: Block) -> None:
    """Write the columns directly: row by row through add() a million rows take a minute."""
    columns, size = replay._meta, replay.maxsize
    for start in range(0, size, len(block)):
        rows = slice(start, min(start + len(block), size))
        count = rows.stop - rows.start
        only_last = columns.obs.ndim < block.obs.ndim
        columns.obs[rows] = block.obs[:count, -1] if only_last else block.obs[:count]
        if "obs_next" in columns.get_keys():
            columns.obs_next[rows] = block.next_obs[:count]
        columns.act[rows], columns.rew[rows] = block.action[:count], block.reward[:count]
        columns.terminated[rows] = False
        columns.truncated[rows] = columns.done[rows] = block.truncated[:count]
    lanes = getattr(replay, "buffers", [replay])
    for lane in lanes:
        lane._size, lane._insertion_idx, lane._ep_start_idx = lane.maxsize, 0, 0
    if len(lanes) > 1:
        replay._lengths[:] = [lane.maxsize for lane in lanes]


OPENERS: dict[str, Callable[[Order], Opened]] = {
    "cpprb": open_cpprb,
    "sb3": open_sb3,
    "torchrl": open_torchrl,
    "tianshou": open_tianshou,
}
