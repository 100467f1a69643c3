"""One training behind JSON lines: `python -m freewheel.bench.worker.train MODULE THREADS`; MODULE has a `train(meter, order)` and a `version()`.

{"op": "train", "warm_s": 4, "seconds": 20, "envs": 8, "threads": 1, ...}
    -> {"steps_per_s": ..., "updates_per_s": ..., "updates_per_step": ..., "seconds": ..., "startup_s": ...}
and whatever else `train` gives. `least_updates` says after how many updates training is under way, if it is not 64; `together` names a folder
by which several trainings open their windows at once.
"""

import importlib
import os
import sys

from .meter import Meter, Together
from .serve import Message, die_with_parent, serve


def main() -> None:
    die_with_parent()
    limit_xla(int(sys.argv[2]))
    side = importlib.import_module(sys.argv[1])

    def train(message: Message) -> Message:
        limit_torch(message["threads"])
        options: Message = {"least_updates": message["least_updates"]} if "least_updates" in message else {}
        if "together" in message:
            options["may_open"] = Together(**message["together"])
        meter = Meter(message["warm_s"], message["seconds"], **options)
        told = side.train(meter, message)
        return {**meter.figures(), **(told or {})}

    serve({"ready": sys.argv[1], "version": side.version()}, {"train": train})


def limit_torch(threads: int) -> None:
    importlib.import_module("torch").set_num_threads(threads)


def limit_xla(threads: int) -> None:
    """XLA reads this when it is loaded; with more than one thread it takes as many as there are cores."""
    if threads == 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ["JAX_PLATFORMS"] = "cpu"


if __name__ == "__main__":
    main()
