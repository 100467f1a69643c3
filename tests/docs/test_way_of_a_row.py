"""docs/how-it-works.md lists the files that a row passes through, as a traced run shows them.

`python tests/docs/test_way_of_a_row.py` writes the list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from row_trace import traced

from freewheel.config import Config, assemble
from freewheel.run.actor_process import ActorProcess
from freewheel.run.channel import Channel, pair
from freewheel.run.layout import choose
from freewheel.run.learner_process import LearnerProcess
from freewheel.run.plan import Setup
from freewheel.run.runtime import make_sequential, plan_local

PAGE = Path(__file__).parents[2] / "docs" / "how-it-works.md"
BEGIN, END = "<!-- way of a row: begin -->\n", "<!-- way of a row: end -->"
MOST_FILES = {"sequential": 10, "local": 13}
# Numbers that nothing else in the run has: see row_trace.Trace.
LANES, BATCH = 5, 22
COMMON = {
    "world.kind": "inline",
    "world.lanes": LANES,
    "learner.device": "cpu",
    "learner.workers": 1,
    "local.actors": 1,
    "net.hidden": (16,),
}
REPLAY = {"learner.batch_size": BATCH, "replay.warmup_rows": 60, "learner.ratio": 4.4}
Q = {**REPLAY, "explore.override": 0.5}  # half of the actions explore, half are the network's
ROLLOUT = {"rollout.rows": BATCH, "ppo.minibatches": 5}
ALGOS: dict[str, dict[str, Any]] = {
    "dqn": Q,
    "qrdqn": Q,
    "c51": Q,
    "iqn": {**Q, "q.num_taus": 8, "q.num_target_taus": 8},
    "rainbow": REPLAY,
    "sac": REPLAY,
    "ppo": ROLLOUT,
    "appo": ROLLOUT,
}
ENVS = {"sac": "Pendulum-v1"}  # the others play CartPole-v1


Turn = Callable[[], Any]


@contextmanager
def sequential(config: Config) -> Iterator[tuple[Turn, Turn]]:
    """The turns of an actor and a learner."""
    runtime = make_sequential(Setup(config, config.env, choose(config, 1)))
    (learner,) = runtime.learners
    try:
        yield runtime.actor.turn, learner.turn
    finally:
        learner.close()
        runtime.close()


@contextmanager
def local(config: Config) -> Iterator[tuple[Turn, Turn]]:
    """The same of the local runtime's roles, which share the memory of its plan; here in one process, where both are traced."""
    plan = plan_local(Setup(config, config.env, choose(config, 2)))
    ours, theirs = pair()
    with ours, theirs:
        acting = ActorProcess(plan, 0, 0, Channel(theirs))
        learning = LearnerProcess(plan, plan.policies[0], 0, Channel(theirs))
        learning.learner.begin(is_again=False)
        acting.policies = [acting._act_for(policy) for policy in plan.policies]
        actor = acting._begin()
        try:
            yield lambda: acting._turn(actor), learning.learner.turn
        finally:
            actor.end()
            learning.learner.close()
            learning.saver.close()


RUNTIMES = {"sequential": sequential, "local": local}


def way(algo: str, runtime: str) -> list[str]:
    """The files in the order of a step, from the env to the optimiser: one turn to the next lesson, and that lesson."""
    env = ENVS.get(algo, "CartPole-v1")
    config = assemble(env, {"algo": algo, "runtime": runtime, **COMMON, **ALGOS[algo]}, "none")
    with RUNTIMES[runtime](config) as (act, learn):

        def until_learned() -> None:
            for _ in range(200):
                act()
                if learn():
                    return
            raise AssertionError("nothing was learned")

        until_learned()
        act()  # an answer that was owed: what is traced begins with the env
        return list(traced(until_learned, {LANES, BATCH, LANES * BATCH}))


def written(ways: dict[str, list[str]]) -> str:
    """A table in the order of the first algorithm, with what only others have where they have it."""
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


def all_ways(runtime: str) -> dict[str, list[str]]:
    return {algo: way(algo, runtime) for algo in ALGOS}


@pytest.fixture(scope="module")
def ways() -> dict[str, dict[str, list[str]]]:
    return {runtime: all_ways(runtime) for runtime in RUNTIMES}


def test_the_page_lists_them(ways: dict[str, dict[str, list[str]]]) -> None:
    listed = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    assert listed == written(ways["sequential"]), (
        "docs/how-it-works.md is stale: python tests/docs/test_way_of_a_row.py"
    )


def test_the_page_names_what_the_local_runtime_adds(ways: dict[str, dict[str, list[str]]]) -> None:
    after = PAGE.read_text().partition(END)[2].partition("\n## ")[0]
    added = {file for algo in ALGOS for file in set(ways["local"][algo]) - set(ways["sequential"][algo])}
    assert added <= set(re.findall("`src/freewheel/(.*?)`", after))
    assert all(set(ways["sequential"][algo]) <= set(ways["local"][algo]) for algo in ALGOS)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("algo", ALGOS)
def test_they_are_few(ways: dict[str, dict[str, list[str]]], algo: str, runtime: str) -> None:
    assert len(ways[runtime][algo]) <= MOST_FILES[runtime]


def test_a_function_that_takes_rows_is_seen() -> None:
    from freewheel.actors.actor import learned
    from freewheel.config import WorldConfig

    rows, others = np.zeros(LANES, np.float32), np.zeros(3, np.float32)
    assert traced(lambda: learned(rows, WorldConfig()), {LANES}) == {"actors/actor.py": ["learned"]}
    assert traced(lambda: learned(others, WorldConfig()), {LANES}) == {}


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + written(all_ways("sequential")) + END + rest.partition(END)[2])
