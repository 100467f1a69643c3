"""The knobs of each benchmark; a field's comment is what `--help` says about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from freewheel.errors import ConfigError

OBS = ("f32[8]", "f32[171]", "u8[4,84,84]")
BATCHES = (32, 256, 1024, 4096)
SIZES = ("0.1M", "1.7M")
UPDATE_BATCHES = (128, 512)

NUM_LANES = 64
VECTOR_ROWS, PIXEL_ROWS = 1_000_000, 100_000
# Fewer rows would leave a lane with hardly anything to sample from.
LEAST_LANE_ROWS = 8


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
    """Adding rows and drawing batches, ours against other projects' replay buffers in the same rounds."""

    against: Annotated[tuple[str, ...] | None, comma_list("PEER,PEER")] = None
    """Peers to run: cpprb, sb3, torchrl, tianshou; none; or all that 'make peers' has installed."""

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
    """Publishing weights and fetching them, ours against other ways to bring them to an actor."""

    against: Annotated[tuple[str, ...] | None, comma_list("WAY,WAY")] = None
    """Ways: two_copies, load_state_dict, clone_load_state_dict, mp_queue, torch_mp_queue; none; or all."""

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
    """One whole DQN update on one core, ours eager and compiled, against plain torch and JAX."""

    ours: Annotated[tuple[str, ...], comma_list("FORM,FORM")] = ("eager", "compiled")
    """Forms of ours: eager, compiled. Compiling takes half a minute or more for each batch size."""

    against: Annotated[tuple[str, ...] | None, comma_list("WAY,WAY")] = None
    """Ways: eager, eager_fused, compile_module, jax_jit, jax_scan32; none; or all."""

    batches: Annotated[tuple[int, ...], comma_list("ROWS,ROWS", int)] = UPDATE_BATCHES
    """Rows in a batch."""

    rounds: int = 7
    """Rounds; a figure is the median over them."""

    seconds: float = 0.5
    """Length of each measurement in a round."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the result as a JSON object on the last line."""


@dataclass(frozen=True)
class DqnSettings:
    """Training on CartPole-v1 from end to end at one ratio: ours against other projects', with PER against without, IQN against a plain loop."""

    against: Annotated[tuple[str, ...] | None, comma_list("PEER,PEER")] = None
    """Peers to run: sb3, sbx, cleanrl-style; none; or all that 'make peers' has installed."""

    cases: Annotated[tuple[str, ...] | None, comma_list("CASE,CASE")] = None
    """Cases: dqn (against the peers), per (against our own uniform), iqn (against a plain loop); or all."""

    runtime: Literal["local", "sequential"] = "local"
    """Runtime of ours."""

    lanes: Annotated[tuple[int, ...], comma_list("LANES,LANES", int)] = (16, 32)
    """Numbers of envs that ours is tried with."""

    forms: Annotated[tuple[str, ...], comma_list("FORM,FORM")] = ("compiled", "eager", "sequential")
    """Forms of ours: compiled, eager; sequential (compiled, in one process) is shown beside them and does not count."""

    envs: Annotated[tuple[int, ...], comma_list("ENVS,ENVS", int)] = (1, 8)
    """Numbers of envs that a peer is tried with."""

    threads: Annotated[tuple[int, ...], comma_list("THREADS,THREADS", int)] = (1, 2)
    """Numbers of threads that a peer is tried with."""

    rounds: int = 3
    """Rounds; the first tries every configuration, the others repeat the two best of each side."""

    seconds: float = 20.0
    """Length of each window; it opens when training is under way."""

    warm_s: float = 4.0
    """How long training has been under way when the window opens."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the result as a JSON object on the last line."""


@dataclass(frozen=True)
class PpoSettings:
    """Training by PPO from end to end: on CartPole-v1 ours against other projects' and APPO against PPO; on slow envs against their limit."""

    against: Annotated[tuple[str, ...] | None, comma_list("PEER,PEER")] = None
    """Peers to run: sb3, sbx, pufferlib, sample-factory, cleanrl-style; none; or all that 'make peers' has installed."""

    cases: Annotated[tuple[str, ...] | None, comma_list("CASE,CASE")] = None
    """Cases: ppo (against the peers), appo (against our own ppo), slow (2.4 ms a step, while PPO trains); or all."""

    lanes: Annotated[tuple[int, ...], comma_list("LANES,LANES", int)] = (8, 64)
    """Numbers of CartPole envs, for ours and for the peers."""

    forms: Annotated[tuple[str, ...], comma_list("FORM,FORM")] = ("compiled", "eager")
    """Forms of ours: compiled, eager."""

    runtimes: Annotated[tuple[str, ...], comma_list("RUNTIME,RUNTIME")] = ("sequential", "local")
    """Runtimes that our ppo is tried in; appo and the slow envs have local."""

    worlds: Annotated[tuple[str, ...], comma_list("WORLD,WORLD")] = ("inline", "vector")
    """Worlds that ours is tried with: inline, vector; the slow envs have auto."""

    threads: Annotated[tuple[int, ...], comma_list("THREADS,THREADS", int)] = (1, 2)
    """Numbers of threads that a peer is tried with."""

    slow: Annotated[tuple[str, ...], comma_list("KIND,KIND")] = ("busy", "sleep")
    """Slow envs: busy (computes), sleep (waits)."""

    slow_lanes: Annotated[tuple[int, ...], comma_list("LANES,LANES", int)] = (25, 100, 200)
    """Numbers of slow envs."""

    rounds: int = 3
    """Rounds; the first tries every configuration, the others repeat the two best of each side."""

    seconds: float = 20.0
    """Least length of each window; it begins and ends where a rollout was learned from."""

    warm_s: float = 4.0
    """How long training has been under way when the window opens."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the result as a JSON object on the last line."""


@dataclass(frozen=True)
class WorldsSettings:
    """Stepping many envs and nothing else: inline, pool, vector and auto against other projects' vector envs."""

    against: Annotated[tuple[str, ...] | None, comma_list("PEER,PEER")] = None
    """Peers to run: gymnasium, sb3, envpool, pufferlib; none; or all that are installed."""

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
class LocksSettings:
    """Training workers and an acting reader that share one network: by one lock, by a small one, by a reader/writer lock, and by one owner who publishes."""

    workers: Annotated[tuple[int, ...], comma_list("N,N", int)] = (1, 2, 4)
    """Numbers of training workers."""

    against: Annotated[tuple[str, ...] | None, comma_list("DESIGN,DESIGN")] = None
    """Other designs: one_lock, small_lock, rw_lock; none; or all."""

    rounds: int = 3
    """Rounds; a figure is the median over them."""

    seconds: float = 2.0
    """Length of each window."""

    plot: Path = Path("bench-locks.svg")
    """File that the plot is written to."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the result as a JSON object on the last line."""


@dataclass(frozen=True)
class SpeedupSettings:
    """The same training on CartPole-v1 in turn and with free-running roles, measured beside what Amdahl's law predicts.

    For several shares of time that training takes: one agent with several numbers of actors, and several agents that learn each for
    itself, one process in turn against one learner and one actor for each.
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


@dataclass(frozen=True)
class LearnSettings:
    """Train the table of envs and algorithms, and hold each median return against its published figure."""

    only: Annotated[tuple[str, ...] | None, comma_list("NAME,NAME")] = None
    """Rows of the table by name (CartPole-v1/dqn), by env or by algorithm; or all."""

    seeds: Annotated[tuple[int, ...], comma_list("SEED,SEED", int)] = (0, 1, 2)
    """A row's figure is the median over these."""

    runtime: Literal["local", "sequential"] = "sequential"
    """Runtime of the trainings; local takes more than one process for each of them."""

    jobs: int = 2
    """Trainings that run at the same time, each on one thread (in the local runtime: one per role)."""

    compile: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Train with compiled updates: the same learning to rounding errors, in less time."""

    out: Path | None = None
    """File that keeps finished trainings; those it already holds are not run again."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the result as a JSON object on the last line."""


def check_rounds(rounds: int, seconds: float) -> None:
    if rounds < 1:
        raise ConfigError(f"--rounds {rounds} must be at least 1.")
    if not 0 < seconds <= 60:
        raise ConfigError(f"--seconds {seconds} must be above 0 and at most 60.")


def check_training(seconds: float, warm_s: float, rounds: int) -> None:
    check_rounds(rounds, seconds)
    if not 0 <= warm_s <= 60:
        raise ConfigError(f"--warm-s {warm_s} must be between 0 and 60.")


def check_numbers(**flags: Sequence[int]) -> None:
    for flag, numbers in flags.items():
        if not numbers or min(numbers) < 1:
            raise ConfigError(f"--{flag} {','.join(map(str, numbers))} must be one or more positive numbers.")


def check_plot(path: Path) -> None:
    """Before an hour of measuring, not after it."""
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--plot {path}: there is no folder {path.absolute().parent}. Make it first.")


def check_capacity(capacity: int, batches: Sequence[int]) -> None:
    if not batches or min(batches) < 1:
        raise ConfigError(f"--batches {','.join(map(str, batches))} must be one or more positive numbers.")
    least = max(NUM_LANES * LEAST_LANE_ROWS, 2 * max(batches))
    if capacity < least:
        raise ConfigError(
            f"--capacity {capacity} is less than {least}, the least for {NUM_LANES} lanes and batches of"
            f" {max(batches)} rows. Raise it or ask for smaller --batches."
        )
