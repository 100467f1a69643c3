"""`freewheel bench NAME`: the benchmarks, with a typed flag for each setting."""

from __future__ import annotations

import os
from collections.abc import Sequence

import tyro

from freewheel.bench.settings import ReplaySettings, WeightsSettings


def main(arguments: Sequence[str]) -> None:
    settings = tyro.extras.subcommand_cli_from_dict(
        {"replay": ReplaySettings, "weights": WeightsSettings},
        prog="freewheel bench",
        description="Measure our parts against other projects' parts, in interleaved rounds of one run.",
        args=list(arguments),
    )
    # Before torch is imported: its thread pools read these once.
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    if isinstance(settings, ReplaySettings):
        from freewheel.bench import replay

        replay.run(settings)
    else:
        from freewheel.bench import weights

        weights.run(settings)
