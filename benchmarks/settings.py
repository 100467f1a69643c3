"""The settings of each benchmark; the sentence below a field is what `--help` says about it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from freewheel.bench import settings as installed
from freewheel.bench.settings import comma_list


@dataclass(frozen=True)
class ReplaySettings(installed.ReplaySettings):
    """`freewheel bench replay` with other projects' replay buffers in the same rounds."""

    against: Annotated[tuple[str, ...] | None, comma_list("PEER,PEER")] = None
    """Peers to run: cpprb, sb3, torchrl, tianshou; none; or all that 'make peers' has installed."""


@dataclass(frozen=True)
class WeightsSettings(installed.WeightsSettings):
    """`freewheel bench weights` with queues to another process in the same rounds."""

    against: Annotated[tuple[str, ...] | None, comma_list("WAY,WAY")] = None
    """Ways: two_copies, load_state_dict, clone_load_state_dict, mp_queue, torch_mp_queue; none; or all."""


@dataclass(frozen=True)
class UpdateSettings(installed.UpdateSettings):
    """`freewheel bench update` with JAX in the same rounds."""

    against: Annotated[tuple[str, ...] | None, comma_list("WAY,WAY")] = None
    """Ways: eager, eager_fused, compile_module, jax_jit, jax_scan32; none; or all."""


@dataclass(frozen=True)
class WorldsSettings(installed.WorldsSettings):
    """`freewheel bench worlds` with other projects' vector envs in the same rounds."""

    against: Annotated[tuple[str, ...] | None, comma_list("PEER,PEER")] = None
    """Peers to run: gymnasium, sb3, envpool, pufferlib; none; or all that are installed."""


@dataclass(frozen=True)
class DqnSettings:
    """DQN training on CartPole-v1 from end to end at one replay ratio: against other projects, PER against uniform, IQN against a plain loop."""

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
class ControlSettings:
    """SAC training with one update per step on Pendulum-v1 and HalfCheetah-v5 (extra mujoco): against other projects and against the updates alone."""

    against: Annotated[tuple[str, ...] | None, comma_list("PEER,PEER")] = None
    """Peers to run: sb3, sbx, compiled-loop; none; or all that 'make peers' has installed."""

    envs: Annotated[tuple[str, ...] | None, comma_list("ENV,ENV")] = None
    """Envs: Pendulum-v1, HalfCheetah-v5; or all."""

    runtimes: Annotated[tuple[str, ...], comma_list("RUNTIME,RUNTIME")] = ("local", "sequential")
    """Runtimes of ours."""

    form: Literal["compiled", "eager"] = "compiled"
    """Form of our updates."""

    lanes: Annotated[tuple[int, ...], comma_list("LANES,LANES", int)] = (1, 8)
    """Numbers of envs, for ours and for the peers."""

    threads: Annotated[tuple[int, ...], comma_list("THREADS,THREADS", int)] = (1, 2)
    """Numbers of threads, for ours, for the peers and for the updates alone."""

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
    """PPO training from end to end: on CartPole-v1 against other projects, APPO against PPO; on slow envs against their limit."""

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
class LocksSettings:
    """Training workers and an actor that share one network: with one lock, a small lock, a reader/writer lock, or one owner that publishes weights."""

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
class LearnSettings:
    """Train the table of envs and algorithms, and compare each median return with its published figure."""

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
