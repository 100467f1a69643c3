"""The names of the random streams are frozen: a stream that is renamed draws other numbers, and every run changes with it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_cases import CASES
from golden_run import train_case

import freewheel
from freewheel.algos.make import seed_of
from freewheel.config import assemble

SOURCE = Path(freewheel.__file__).parent
SEED = 3
# The stream of each name for seed 3. Actors of the local runtime add the number of their life and of the step at which the
# run was resumed, and to worlds the number of the world.
FROZEN = {
    "act": 1690666871456809381,
    "eval": 4967377766366075296,
    "explore": 184451414574680211,
    "learner": 9002997845195400822,
    "net": 4327597725583462742,
    "noise": 5953812359265316100,
    "probe": 5566873770584967019,
    "process": 8294216013260623489,
    "replay": 8031021998863586686,
    "world": 282490463063819820,
    "act.0.0": 5971004080454291971,
    "explore.0.0": 1827323680318280388,
    "noise.0.0": 1239678313363155588,
    "world.0.0.0": 1690697085530859349,
    "process.actor-0.0.0": 283080566841757217,
}
# Names as they stand in the source; {} is a part that is filled in.
WRITTEN = {"act", "eval", "explore", "learner", "net", "noise", "probe", "replay", "world", "world.{}"}
# What a process shares with the libraries in it: of its role, its life, and the step at which the run was resumed.
WRITTEN |= {"process", "process.{}.{}.{}"}
WRITTEN |= {"{}.{}"}  # a policy's own, where there are several
WRITTEN |= {
    "{}.{}.{}"
}  # an actor's own in the local runtime: of its life, and of the step at which the run was resumed
MAKERS = ("seed_of", "stream_seed", "seed", "_seed", "_stream")
SEQUENTIAL = {
    "dqn": {"world", "net", "replay", "noise", "explore", "learner", "process", "process.sequential.0.0"},
    "ppo": {"world", "net", "act", "learner", "process", "process.sequential.0.0"},
}


@pytest.mark.parametrize("name", FROZEN)
def test_a_stream_has_the_seed_it_always_had(name: str) -> None:
    assert seed_of(assemble("CartPole-v1", {"seed": SEED}), name) == FROZEN[name]


def test_no_stream_is_renamed_added_or_gone() -> None:
    found = {name for path in sorted(SOURCE.rglob("*.py")) for name in seed_names(path.read_text())}
    assert found == WRITTEN


def test_a_renamed_stream_is_seen() -> None:
    assert set(seed_names('seed_of(config, "chance")')) == {"chance"}
    assert set(seed_names('self._stream(f"world.{n}")')) == {"world.{}"}
    assert set(seed_names('seed_of(config, f"{a}.{b}" if a else "chance")')) == {"{}.{}", "chance"}


@pytest.mark.parametrize("algo", SEQUENTIAL)
def test_a_sequential_run_draws_from_these_streams(algo: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn: list[Any] = []
    make = np.random.SeedSequence
    monkeypatch.setattr(
        np.random, "SeedSequence", lambda entropy=None, **more: drawn.append(entropy) or make(entropy, **more)
    )
    train_case(CASES[algo], str(tmp_path), [Soon()], 0)
    # A name has two letters or more; a lane's own stream is made of the seed, the lane and a block.
    named = [entropy for entropy in drawn if isinstance(entropy, list) and entropy[0] == CASES[algo].seed]
    assert {bytes(entropy[1:]).decode() for entropy in named} == SEQUENTIAL[algo]


class Soon(freewheel.Callback):
    def on_step(self, moment: freewheel.Moment) -> None:
        moment.stop()


def seed_names(source: str) -> Iterator[str]:
    """The names that are given to functions that make a seed."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in MAKERS:
            for given in node.args:
                for part in (given.body, given.orelse) if isinstance(given, ast.IfExp) else (given,):
                    yield from written(part)


def written(part: ast.expr) -> Iterator[str]:
    if isinstance(part, ast.Constant) and isinstance(part.value, str):
        yield part.value
    elif isinstance(part, ast.JoinedStr):
        yield "".join(str(each.value) if isinstance(each, ast.Constant) else "{}" for each in part.values)
