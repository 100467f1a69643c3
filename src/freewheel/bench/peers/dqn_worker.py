"""One DQN training behind JSON lines: `python -m peers.dqn_worker MODULE`, which has a `train(meter, order)` and a `version()`.

{"op": "train", "warm_s": 4, "seconds": 20, "envs": 8, "threads": 1, ...}
    -> {"steps_per_s": ..., "updates_per_s": ..., "updates_per_step": ..., "seconds": ..., "startup_s": ...}
"""

import importlib
import sys

import torch

from .lines import Message, die_with_parent, serve
from .meter import Meter


def main() -> None:
    die_with_parent()
    side = importlib.import_module(sys.argv[1])

    def train(message: Message) -> Message:
        torch.set_num_threads(message["threads"])
        meter = Meter(message["warm_s"], message["seconds"])
        side.train(meter, message)
        return meter.figures()

    serve({"ready": sys.argv[1], "version": side.version()}, {"train": train})


if __name__ == "__main__":
    main()
