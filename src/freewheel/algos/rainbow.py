"""Rainbow: C51 with double, dueling and noisy networks, prioritized replay and three steps of reward."""

from __future__ import annotations

from freewheel.algos import c51


class Algorithm(c51.Algorithm):
    name = "rainbow"
    defaults = {  # noqa: RUF012
        "q.double": True,
        "q.dueling": True,
        "q.noisy": True,
        "q.n_step": 3,
        "replay.prioritized": True,
    }
