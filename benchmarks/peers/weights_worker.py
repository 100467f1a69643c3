"""Weights through a queue to another process, behind JSON lines: `python -m benchmarks.peers.weights_worker mp_queue`.

{"op": "open", "size": "0.1M"} -> {}; {"op": "send", "seconds": 0.4} -> {"us": ...}; {"op": "close"} -> {}
One send lasts from the learner's state_dict until the actor says that it has loaded it.
"""

import multiprocessing
import os
import queue
import sys
from multiprocessing.context import SpawnContext
from typing import Any

import torch
import torch.multiprocessing

from freewheel.bench.worker.serve import Message, die_with_parent, serve
from freewheel.bench.worker.weights_nets import make_net
from freewheel.bench.worker.window import measure_us

START_TIMEOUT_S = 120.0
SEND_TIMEOUT_S = 30.0


def act(size: str, weights: Any, loaded: Any) -> None:
    """The actor: loads what comes, says so, and ends at None."""
    die_with_parent()
    parent = multiprocessing.parent_process()
    if parent is None or os.getppid() != parent.pid:
        return  # it died while this process was importing, before it could be tied to it
    torch.set_num_threads(1)
    net = make_net(size)
    loaded.put("ready")
    while (state := weights.get()) is not None:
        net.load_state_dict({name: torch.as_tensor(values) for name, values in state.items()})
        loaded.put("loaded")


class Actor:
    """One actor process and the two queues to it."""

    def __init__(self, way: str, size: str) -> None:
        context: Any = _context(way)
        self.net, self.keeps_tensors = make_net(size), way == "torch_mp_queue"
        self.weights, self.loaded = context.Queue(), context.Queue()
        self.process = context.Process(target=act, args=(size, self.weights, self.loaded), daemon=True)
        self.process.start()
        self._wait(START_TIMEOUT_S)

    def send(self) -> None:
        state = self.net.state_dict()
        if self.keeps_tensors:  # a tensor goes by shared memory, so it must be a copy the learner leaves alone
            self.weights.put({name: tensor.clone() for name, tensor in state.items()})
        else:
            self.weights.put({name: tensor.numpy() for name, tensor in state.items()})
        self._wait(SEND_TIMEOUT_S)

    def close(self) -> None:
        self.weights.put(None)
        self.process.join(SEND_TIMEOUT_S)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        for channel in (self.weights, self.loaded):
            channel.close()
            channel.join_thread()

    def _wait(self, timeout_s: float) -> None:
        try:
            self.loaded.get(timeout=timeout_s)
        except queue.Empty:
            raise RuntimeError(f"the actor did not answer within {timeout_s:.0f} s") from None


def _context(way: str) -> SpawnContext:
    return (
        torch.multiprocessing.get_context("spawn") if way == "torch_mp_queue" else multiprocessing.get_context("spawn")
    )


def main() -> None:
    die_with_parent()
    way = sys.argv[1]
    torch.set_num_threads(1)
    actor: Actor | None = None

    def open_actor(message: Message) -> Message:
        nonlocal actor
        close_actor(message)
        actor = Actor(way, message["size"])
        return {}

    def close_actor(_: Message) -> Message:
        nonlocal actor
        if actor is not None:
            actor.close()
            actor = None
        return {}

    def send(message: Message) -> Message:
        if actor is None:
            raise RuntimeError("no actor is open")
        return {"us": measure_us(actor.send, message["seconds"])}

    try:
        serve({"ready": way}, {"open": open_actor, "close": close_actor, "send": send})
    finally:
        close_actor({})


if __name__ == "__main__":
    main()
