"""`freewheel bench NAME`: the benchmarks, with a typed flag for each setting."""

from __future__ import annotations

from collections.abc import Sequence

import tyro

from freewheel.bench.settings import LedgerSettings, ReplaySettings, WeightsSettings
from freewheel.run.threads import limit_threads


def main(arguments: Sequence[str]) -> None:
    settings = tyro.extras.subcommand_cli_from_dict(
        {"replay": ReplaySettings, "weights": WeightsSettings, "ledger": LedgerSettings},
        prog="freewheel bench",
        description="Measure our parts against other projects' parts, in interleaved rounds of one run.",
        args=list(arguments),
    )
    limit_threads(1)  # before torch is imported
    if isinstance(settings, ReplaySettings):
        from freewheel.bench import replay

        replay.run(settings)
    elif isinstance(settings, WeightsSettings):
        from freewheel.bench import weights

        weights.run(settings)
    else:
        from freewheel.bench import ledger

        ledger.run(settings)
