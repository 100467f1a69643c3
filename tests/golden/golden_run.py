"""Runs the golden cases with whichever freewheel is on the path, through its public API: `golden_run.py OUT [CASE ...]`."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from canonical import hash_json, newest, values_of
from golden_cases import CASES, Case

import freewheel

EVERY_STEP = 1


class Watch(freewheel.Callback):
    """Stops where it should; keeps the episodes, and the values of each checkpoint from `first` on."""

    def __init__(self, case: Case, stop_at: int | None = None, first: int = 0) -> None:
        self.case, self.stop_at, self.first = case, stop_at, first
        self.episodes: list[Any] = []
        self.trace: dict[int, dict[str, str]] = {}

    def on_step(self, moment: freewheel.Moment) -> None:
        if self.stop_at is not None and moment.step >= self.stop_at:
            moment.stop()

    def on_episode(self, moment: freewheel.Moment, episode: Any) -> None:
        self.episodes.append(episode)

    def on_checkpoint(self, moment: freewheel.Moment, path: Path) -> None:
        if moment.step >= self.first:
            self.trace[moment.step] = values_of(path, self.case.num_lanes, self.case.newest_rows)


def whole(case: Case) -> dict[str, Any]:
    """The run without a stop: its values at the end, and a digest of all values at every `trace_every` steps."""
    watch = Watch(case)
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        run = train_case(case, folder, [watch], case.trace_every)
        values = _values(case, run.folder, watch.episodes)
    return {"values": values, "trace": {str(step): hash_json(found) for step, found in watch.trace.items()}}


def resumed(case: Case) -> dict[str, str]:
    """The values at the end of the run that was stopped midway and resumed."""
    before, after = Watch(case, stop_at=case.stop_at), Watch(case)
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        part = train_case(case, folder, [before], case.trace_every)
        if not case.stop_at <= part.result["steps"] < case.steps:
            raise RuntimeError(f"the run stopped at step {part.result['steps']}, not at {case.stop_at}")
        run = freewheel.train(case.env, resume=part.folder, callbacks=[after], is_quiet=True)
        return _values(case, run.folder, before.episodes + after.episodes)


def every_turn(case: Case, first: int, last: int) -> dict[str, dict[str, str]]:
    """All values after each turn from step `first` to step `last`."""
    watch = Watch(case, stop_at=last, first=first)
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        train_case(case, folder, [watch], EVERY_STEP)
    return {str(step): found for step, found in watch.trace.items()}


def train_case(case: Case, folder: str, callbacks: Sequence[freewheel.Callback], save_every: int) -> freewheel.Run:
    return freewheel.train(
        case.env,
        algo=case.algo,
        steps=case.steps,
        seed=case.seed,
        preset="none",
        settings={**case.settings, "log.folder": folder, "checkpoint.every_steps": save_every},
        callbacks=callbacks,
        is_quiet=True,
    )


def _values(case: Case, folder: Path, episodes: Sequence[Any]) -> dict[str, str]:
    found = values_of(newest(folder / "checkpoints"), case.num_lanes, case.newest_rows)
    for name, key in {"return": "ret", "length": "length", "lane": "lane", "step": "step"}.items():
        found[f"finished.{name}"] = hash_json([getattr(episode, key) for episode in episodes])
    found["finished.count"] = str(len(episodes))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes the values of golden cases to a JSON file.")
    parser.add_argument("out", type=Path)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"all, or some of: {', '.join(CASES)}")
    parser.add_argument("--window", nargs=2, type=int, help="all values after each turn between these two steps")
    given = parser.parse_args()
    names = given.cases or list(CASES)
    made = {name: every_turn(CASES[name], *given.window) if given.window else whole(CASES[name]) for name in names}
    given.out.write_text(json.dumps({"freewheel": freewheel.__file__, "cases": made}) + "\n")


if __name__ == "__main__":
    main()
