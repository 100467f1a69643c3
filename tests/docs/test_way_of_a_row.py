"""docs/how-it-works.md lists the files that a row passes through, as a traced run shows them.

`python tests/docs/test_way_of_a_row.py` writes the list.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from row_trace import traced

from freewheel.config import assemble
from freewheel.run.layout import choose
from freewheel.run.plan import Setup
from freewheel.run.runtime import make_sequential

PAGE = Path(__file__).parents[2] / "docs" / "how-it-works.md"
BEGIN, END = "<!-- way of a row: begin -->\n", "<!-- way of a row: end -->"
MOST_FILES = 10
# Sizes that nothing else in the run has: see row_trace.Trace.
LANES, BATCH = 5, 22
COMMON = {
    "runtime": "sequential",
    "world.lanes": LANES,
    "learner.compile": "off",
    "learner.device": "cpu",
    "net.hidden": (16,),
}
REPLAY = {"learner.batch_size": BATCH, "replay.warmup_rows": 60, "learner.ratio": 4.4}
VALUES = {**REPLAY, "explore.override": 0.1}  # most lanes ask the network
ROLLOUTS = {"rollout.rows": BATCH, "ppo.minibatches": 5}
ALGOS: dict[str, dict[str, Any]] = {
    "dqn": VALUES,
    "c51": VALUES,
    "rainbow": VALUES,
    "qrdqn": VALUES,
    "iqn": {**VALUES, "q.num_taus": 8, "q.num_target_taus": 8},
    "sac": REPLAY,
    "ppo": ROLLOUTS,
    "appo": ROLLOUTS,
}


def way(algo: str) -> list[str]:
    """The files in the order of a step, from the env to the optimiser: one turn to the next lesson, and that lesson."""
    env = "Pendulum-v1" if algo == "sac" else "CartPole-v1"
    config = assemble(env, {"algo": algo, **COMMON, **ALGOS[algo]}, "none")
    runtime = make_sequential(Setup(config, env, choose(config, 1)))
    (learner,) = runtime.learners

    def until_learned() -> None:
        for _ in range(200):
            runtime.actor.turn()
            if learner.turn():
                return
        raise AssertionError("nothing was learned")

    try:
        until_learned()
        runtime.actor.turn()  # sends what is owed, so that the trace begins with the env
        return list(traced(until_learned, {LANES, BATCH, LANES * BATCH}))
    finally:
        learner.close()
        runtime.close()


def written(ways: dict[str, list[str]]) -> str:
    """A table in the order of the first algorithm; files of other algorithms are inserted where they come."""
    order: list[str] = []
    for files in ways.values():
        at = 0
        for file in files:
            if file in order:
                at = order.index(file) + 1
            else:
                order.insert(at, file)
                at += 1
    lines = [f"| file | {' | '.join(ways)} |", f"|---|{'---|' * len(ways)}"]
    for file in order:
        marks = (str(files.index(file) + 1) if file in files else "" for files in ways.values())
        lines.append(f"| `src/freewheel/{file}` | {' | '.join(marks)} |")
    lines.append(f"| files | {' | '.join(str(len(files)) for files in ways.values())} |")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def ways() -> dict[str, list[str]]:
    return {algo: way(algo) for algo in ALGOS}


def test_the_page_lists_them(ways: dict[str, list[str]]) -> None:
    assert PAGE.read_text().partition(BEGIN)[2].partition(END)[0] == written(ways), (
        "docs/how-it-works.md is stale: python tests/docs/test_way_of_a_row.py"
    )


@pytest.mark.xfail(strict=True, reason="13 to 16 files: memory and learner take up to 9 of them")
@pytest.mark.parametrize("algo", ALGOS)
def test_they_are_few(ways: dict[str, list[str]], algo: str) -> None:
    assert len(ways[algo]) <= MOST_FILES


def test_a_function_that_takes_rows_is_seen() -> None:
    from freewheel.actors.actor import learned
    from freewheel.config import WorldConfig

    rows, others = np.zeros(LANES, np.float32), np.zeros(3, np.float32)
    assert traced(lambda: learned(rows, WorldConfig()), {LANES}) == {"actors/actor.py": ["learned"]}
    assert traced(lambda: learned(others, WorldConfig()), {LANES}) == {}


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGIN)
    table = written({algo: way(algo) for algo in ALGOS})
    PAGE.write_text(before + BEGIN + table + END + rest.partition(END)[2])
