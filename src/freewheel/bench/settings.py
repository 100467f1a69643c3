"""The settings of each benchmark; the sentence below a field is what `--help` says about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

OBS = ("f32[8]", "f32[171]", "u8[4,84,84]")
BATCHES = (32, 256, 1024, 4096)
SIZES = ("0.1M", "1.7M")
UPDATE_BATCHES = (128, 512)

VECTOR_ROWS, PIXEL_ROWS = 1_000_000, 100_000


def split_list(text: str) -> tuple[str, ...]:
    """`f32[8],u8[4,84,84]` as two names: commas inside brackets belong to a shape."""
    return tuple(part.strip() for part in re.split(r",(?![^\[]*\])", text) if part.strip())


def comma_list(metavar: str, item: Callable[[str], Any] = str) -> Any:
    """How tyro reads and shows a list that is written with commas; `all` is None."""

    def read(words: list[str]) -> tuple[Any, ...] | None:
        return None if words[0] == "all" else tuple(item(part) for part in split_list(words[0]))

    def show(value: Sequence[Any] | None) -> list[str]:
        return ["all" if value is None else ",".join(str(part) for part in value)]

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1, metavar=metavar, instance_from_str=read, is_instance=lambda _: True, str_from_instance=show
    )


@dataclass(frozen=True)
class ReplaySettings:
    """Adding rows to the replay and drawing batches from it, beside plain numpy arrays."""

    obs: Annotated[tuple[str, ...], comma_list("OBS,OBS")] = OBS
    """Observations, as dtype and shape; three dimensions are frames stacked along the first."""

    batches: Annotated[tuple[int, ...], comma_list("ROWS,ROWS", int)] = BATCHES
    """Batch sizes to draw."""

    capacity: int | None = None
    """Rows in each filled buffer; without it 1,000,000 for vectors and 100,000 for stacked frames."""

    rounds: int = 5
    """Rounds; a figure is the median over them."""

    seconds: float = 0.4
    """Length of each measurement in a round."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the result as a JSON object on the last line."""


@dataclass(frozen=True)
class WeightsSettings:
    """Publishing weights and fetching them, beside plain copies in one process."""

    against: Annotated[tuple[str, ...] | None, comma_list("WAY,WAY")] = None
    """Ways: two_copies, load_state_dict, clone_load_state_dict; none; or all."""

    sizes: Annotated[tuple[str, ...], comma_list("SIZE,SIZE")] = SIZES
    """Networks, by their number of parameters: 0.1M (an MLP), 1.7M (a CNN)."""

    rounds: int = 5
    """Rounds; a figure is the median over them."""

    seconds: float = 0.4
    """Length of each measurement in a round."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the result as a JSON object on the last line."""


@dataclass(frozen=True)
class LedgerSettings:
    """Marking a phase in the ledger, from Python and from the core, against a timer kept in a dict."""

    rounds: int = 5
    """Rounds; a figure is the median over them."""

    seconds: float = 0.2
    """Length of each measurement in a round."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the result as a JSON object on the last line."""


@dataclass(frozen=True)
class UpdateSettings:
    """One whole update on one core, eager and compiled: of DQN beside plain torch, or of any other algorithm alone."""

    algo: str = "dqn"
    """The algorithm: one of Freewheel's, or module:name."""

    env: str = "CartPole-v1"
    """The env whose spaces another algorithm than dqn is built for."""

    ours: Annotated[tuple[str, ...], comma_list("FORM,FORM")] = ("eager", "compiled")
    """Forms of ours: eager, compiled. Compiling takes half a minute or more for each batch size."""

    against: Annotated[tuple[str, ...] | None, comma_list("WAY,WAY")] = None
    """Ways of plain torch: eager, eager_fused, compile_module; none; or all. They make DQN's update."""

    batches: Annotated[tuple[int, ...], comma_list("ROWS,ROWS", int)] = UPDATE_BATCHES
    """Rows in a batch. Algorithms without a replay have the rows that their own settings say."""

    rounds: int = 7
    """Rounds; a figure is the median over them."""

    seconds: float = 0.5
    """Length of each measurement in a round."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the result as a JSON object on the last line."""


@dataclass(frozen=True)
class WorldsSettings:
    """Stepping many envs and nothing else: by inline, pool and vector worlds, and by what auto chooses."""

    envs: Annotated[tuple[str, ...] | None, comma_list("ENV,ENV")] = None
    """Envs: cartpole; sleep, busy (1 ms a step); heavy (mean 1 ms, one in 20 takes 10 ms); atari; or all."""

    lanes: Annotated[tuple[int, ...], comma_list("LANES,LANES", int)] = (8, 32, 128)
    """Numbers of lanes."""

    rounds: int = 15
    """Rounds; a figure is the median over them. Many short ones: what disturbs the machine for a moment then meets few of them."""

    seconds: float = 0.2
    """Length of each measurement in a round."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the result as a JSON object on the last line."""


@dataclass(frozen=True)
class SpeedupSettings:
    """The same training on CartPole-v1 in the sequential and in the local runtime, beside what Amdahl's law predicts.

    For several shares of time that training takes: one agent with several numbers of actors, and several agents that each have
    their own learner and actor.
    """

    shares: Annotated[tuple[float, ...], comma_list("SHARE,SHARE", float)] = (0.1, 0.3, 0.5, 0.7)
    """Shares of the sequential run's time that training is to take; the ratio is set so that it does."""

    actors: Annotated[tuple[int, ...], comma_list("N,N", int)] = (1, 2)
    """Numbers of actor processes of the local runtime, for one agent."""

    agents: Annotated[tuple[int, ...], comma_list("N,N", int)] = (2, 5, 10)
    """Numbers of agents, each with its own env, policy, learner and one actor."""

    lanes: int = 16
    """Envs of each agent."""

    form: Literal["eager", "compiled"] = "eager"
    """Form of the updates, in both runtimes."""

    rounds: int = 3
    """Rounds; a figure is the median over them."""

    seconds: float = 5.0
    """Length of each window; it opens when training is under way."""

    warm_s: float = 2.0
    """How long training has been under way when the window opens."""

    plot: Path = Path("bench-speedup.svg")
    """File that the plot is written to."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the result as a JSON object on the last line."""
