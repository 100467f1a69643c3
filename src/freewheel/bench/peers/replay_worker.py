"""One peer's replay buffer behind JSON lines: `python -m peers.replay_worker cpprb`.

{"op": "open", "obs": "f32[8]", "capacity": 9999, "lanes": 1, "prioritized": false, "small": false}
    -> {"bytes": ...} of the filled buffer
{"op": "add", "seconds": 0.4} -> {"us": ...} per call of one row per lane
{"op": "uniform", "batch": 256, "seconds": 0.4} -> {"us": ...} per batch
{"op": "prioritized", "batch": 256, "seconds": 0.4} -> {"us": ...} per draw, gather and update
{"op": "close"} -> {}
"""

import gc
import importlib
import importlib.metadata
import sys

from .buffers import OPENERS, Opened, Order
from .lines import Message, die_with_parent, serve
from .packages import PACKAGES
from .rows import episode, parse_obs
from .window import keep_freed_memory, measure_us, resident_bytes


def main() -> None:
    die_with_parent()
    peer = sys.argv[1]
    keep_freed_memory()
    importlib.import_module(PACKAGES[peer].module)
    opened: Opened | None = None

    def current() -> Opened:
        if opened is None:
            raise RuntimeError("no buffer is open")
        return opened

    def open_buffer(message: Message) -> Message:
        nonlocal opened
        close_buffer(message)
        obs = parse_obs(message["obs"])
        order = Order(obs, message["capacity"], message["lanes"], message["prioritized"], message["small"])
        episode(obs)  # the rows to fill with are no part of the buffer's memory
        before = resident_bytes()
        opened = OPENERS[peer](order)
        gc.collect()
        return {"bytes": resident_bytes() - before}

    def close_buffer(_: Message) -> Message:
        nonlocal opened
        opened = None
        gc.collect()
        return {}

    def add(message: Message) -> Message:
        return {"us": measure_us(current().add, message["seconds"])}

    def sample(message: Message) -> Message:
        draw, batch = current().sample, message["batch"]
        return {"us": measure_us(lambda: draw(batch), message["seconds"])}

    handlers = {
        "open": open_buffer,
        "close": close_buffer,
        "add": add,
        "uniform": sample,
        "prioritized": sample,
    }
    serve({"ready": peer, "version": importlib.metadata.version(PACKAGES[peer].distribution)}, handlers)


if __name__ == "__main__":
    main()
