"""One peer's replay buffer behind JSON lines: `python -m benchmarks.peers.replay_worker cpprb`."""

import sys

from freewheel.bench.worker.replay_buffer import serve_buffer

from .buffers import OPENERS
from .packages import PACKAGES

if __name__ == "__main__":
    peer = sys.argv[1]
    serve_buffer(peer, PACKAGES[peer].module, PACKAGES[peer].distribution, OPENERS[peer])
