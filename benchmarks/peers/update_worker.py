"""DQN updates in JAX behind JSON lines: `python -m benchmarks.peers.update_worker`.

{"op": "open", "way": "jax_jit", "rows": 128} -> {"loss": ..., "first_s": ...} after 32 updates, and of the first call
{"op": "measure", "way": "jax_jit", "rows": 128, "seconds": 0.4} -> {"us": ...} per update
"""

import importlib.metadata
import time
from collections.abc import Callable

from freewheel.bench.worker.serve import Message, die_with_parent, serve
from freewheel.bench.worker.update_data import NUM_BATCHES
from freewheel.bench.worker.window import measure_us

from .update_jax import UPDATES, make_call


def main() -> None:
    die_with_parent()
    calls: dict[tuple[str, int], Callable[[], float]] = {}

    def open_way(message: Message) -> Message:
        way, rows = message["way"], message["rows"]
        call = calls[way, rows] = make_call(way, rows)
        start = time.perf_counter()
        loss = call()
        first_s = time.perf_counter() - start
        for _ in range(NUM_BATCHES // UPDATES[way] - 1):
            loss = call()
        return {"loss": loss, "first_s": first_s}

    def measure(message: Message) -> Message:
        way = message["way"]
        return {"us": measure_us(calls[way, message["rows"]], message["seconds"]) / UPDATES[way]}

    serve({"ready": "jax", "version": importlib.metadata.version("jax")}, {"open": open_way, "measure": measure})


if __name__ == "__main__":
    main()
