"""The knobs of `benchmarks pixels`; a field's comment is what `--help` says about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from freewheel.bench.settings import comma_list


@dataclass(frozen=True)
class PixelsSettings:
    """Learning from images: training on Atari from end to end against other projects, and one update of a large image network."""

    against: Annotated[tuple[str, ...] | None, comma_list("PEER,PEER")] = None
    """Peers to run: sb3, cleanrl-style; none; or all that 'make peers' has installed."""

    cases: Annotated[tuple[str, ...] | None, comma_list("CASE,CASE")] = None
    """Cases: atari (a training), mario (an update of 4 x 512 rows); or all."""

    env: Literal["auto", "pong", "frames"] = "auto"
    """pong: the game by ale-py; frames: an env of the same shape and cost; auto: the game where all sides have it."""

    forms: Annotated[tuple[str, ...], comma_list("FORM,FORM")] = ("mixed", "compiled", "eager")
    """Forms of our training: compiled, eager; mixed: compiled, in the precision that is the fastest here (--precision auto)."""

    lanes: Annotated[tuple[int, ...], comma_list("LANES,LANES", int)] = (8, 32)
    """Numbers of envs that ours is tried with."""

    envs: Annotated[tuple[int, ...], comma_list("ENVS,ENVS", int)] = (1, 8)
    """Numbers of envs that sb3 is tried with; the other loop has one."""

    threads: Annotated[tuple[int, ...], comma_list("THREADS,THREADS", int)] = (1, 2)
    """Numbers of threads that a peer, and the plain loop of mario, is tried with."""

    rounds: int = 3
    """Rounds; the first tries every configuration, the others repeat the two best of each side."""

    seconds: float = 20.0
    """Length of each window of a training; it opens when training is under way."""

    warm_s: float = 4.0
    """How long training has been under way when the window opens."""

    rows: int = 2_048
    """mario: rows in a batch; it is worked off in 4 parts."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the result as a JSON object on the last line."""
