"""Every setting of a run: one typed dataclass per part. A field's sentence is what `--help` says about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from freewheel.config.image import ImageConfig
from freewheel.config.local import LocalConfig

Runtime = Literal["auto", "local", "sequential"]


@dataclass(frozen=True)
class WorldConfig(ImageConfig):
    """Where experience comes from."""

    lanes: int = 8
    """Number of env copies."""

    kind: str = "auto"
    """inline: step the copies one by one; pool: in worker processes; vector: the env's own vector env; module:name: your own world. auto measures them and takes the fastest; in the sequential runtime it is inline."""

    workers: int = 0
    """pool: number of worker processes; 0 chooses."""

    threads: int = 0
    """pool: threads per worker, for envs that wait for another program; 0 chooses."""

    min_ready: int = 0
    """pool: act as soon as this many lanes are ready; 0 means a quarter of them, and all in the sequential runtime."""

    ready_wait_s: float = 0.01
    """pool: after this many seconds, act with fewer lanes."""

    stack: int = 1
    """Frame stacking: the network sees this many of the newest observations."""

    kwargs: str = "{}"
    """Keyword arguments for the env, as a JSON object."""

    max_episode_steps: int = 0
    """Truncate episodes after this many steps; 0 keeps the env's own limit."""

    reward_scale: float = 1.0
    """Multiply rewards by this for training; reported returns are not scaled."""

    reward_clip: float = 0.0
    """Clip (scaled) rewards to this size for training; 0 does not clip."""

    bad_rows: Literal["stop", "drop"] = "stop"
    """What to do with invalid rows (NaN, wrong shape). stop: end the run; drop: discard and count them, and start new episodes."""


@dataclass(frozen=True)
class NetConfig:
    """The network's body."""

    body: str = "auto"
    """mlp, cnn, impala (for images, with residual blocks), auto (cnn for images, else mlp), or module:name that makes an nn.Module from the observation space."""

    complete: bool = False
    """The module named by body returns action values itself; do not add a head."""

    hidden: tuple[int, ...] = (128, 128)
    """Widths of the fully connected layers."""

    rescale: bool = False
    """mlp: map numbers to -1..1 by the bounds that the observation space gives them."""

    channels: tuple[int, ...] = (32, 64, 64)
    """cnn: channels of the convolutions; impala: of its sections (16, 32, 32 by default)."""

    kernels: tuple[int, ...] = (8, 4, 3)
    """cnn: kernel sizes."""

    strides: tuple[int, ...] = (4, 2, 1)
    """cnn: strides."""

    conv_bias: bool = True
    """cnn, impala: convolutions have a bias."""

    activation: Literal["relu", "tanh", "elu", "gelu", "silu"] = "relu"
    """Activation between layers."""

    norm: Literal["none", "layer", "batch", "batch_conv"] = "none"
    """Normalisation after each layer of the body; batch_conv after convolutions alone."""

    init: Literal["default", "orthogonal", "he", "xavier"] = "default"
    """Weight initialisation; default is torch's own."""

    shared: bool = False
    """Policy and value share one body."""


@dataclass(frozen=True)
class LearnerConfig:
    """How batches become weights."""

    batch_size: int = 128
    """Rows in a batch."""

    ratio: float = 32.0
    """Replay ratio: rows sampled for training per env step. There are ratio / batch_size updates per step."""

    updates_per_call: int = 1
    """Run this many updates per call."""

    accumulate: int = 1
    """Gradient accumulation: split each batch into this many parts."""

    optimizer: Literal["adam", "adamw"] = "adam"
    """The optimiser."""

    lr: float = 5e-4
    """Peak learning rate."""

    lr_schedule: Literal["constant", "linear", "cosine", "restarts"] = "constant"
    """Learning rate schedule after the warm-up; restarts repeats the cosine."""

    lr_end: float = 0.0
    """Final learning rate of linear, cosine and restarts, as a fraction of lr."""

    lr_warmup_updates: int = 0
    """Warm-up: the learning rate rises to lr over this many updates."""

    lr_restart_updates: int = 10_000
    """restarts: updates per cosine."""

    beta1: float = 0.9
    """Adam beta1."""

    beta2: float = 0.999
    """Adam beta2."""

    adam_eps: float = 1e-8
    """Adam epsilon."""

    weight_decay: float = 0.01
    """adamw: weight decay."""

    clip_norm: float = 10.0
    """Clip the gradient norm to this; 0 does not clip."""

    target_every_updates: int = 250
    """Update the target network every this many updates."""

    tau: float = 1.0
    """Target network update rate (Polyak); 1 copies the online network."""

    compile: Literal["auto", "on", "off"] = "auto"
    """Updates as one compiled graph. auto: compile beside the training and switch if it pays, but for ppo and appo; on: compile before the first update."""

    precision: Literal["auto", "fp32", "bf16", "fp16"] = "fp32"
    """Numbers of the network's passes; weights stay float32. auto measures what this machine can do and takes the fastest."""

    workers: int = 0
    """Processes that share the gradient of each batch, on CUDA with a device each; 0 measures one against one per core, where an update takes long, and takes the faster; on CUDA one."""

    memory_format: Literal["auto", "contiguous", "channels_last"] = "auto"
    """cnn, impala: how the learner's images lie in memory, channel by channel or pixel by pixel; the results are the same. auto takes the faster."""

    threads: int = 0
    """torch threads of the learner; 0 chooses: 1, or the fastest number for images."""

    device: str = "auto"
    """Device of the learner: cpu, cuda, cuda:1 (the second CUDA device) or mps; auto takes the fastest."""


@dataclass(frozen=True)
class CheckpointConfig:
    """What is saved, and when."""

    every_steps: int = 25_000
    """Steps between checkpoints; 0 saves at the end only."""

    keep: int = 3
    """Number of checkpoints to keep."""

    replay: bool = False
    """Save the replay too: a resumed sequential run then equals one that was never stopped."""


@dataclass(frozen=True)
class LogConfig:
    """Where the run is written down."""

    folder: str = "runs"
    """Folder that holds the run folders."""

    tensorboard: bool = True
    """Write TensorBoard files."""

    csv: bool = True
    """Write episodes.csv and metrics.csv."""

    every_s: float = 1.0
    """Seconds between two lines of metrics."""

    clip_every_steps: int = 0
    """Film a greedy episode for TensorBoard at the first checkpoint after this many steps; 0 turns it off."""

    sinks: tuple[str, ...] = ()
    """Your own logs, each as module:name. Each is called with the run folder and the settings, and returns a Log."""


@dataclass(frozen=True)
class Config:
    """All settings of a run that every algorithm has; each algorithm adds its own."""

    env: str
    """Gymnasium id, or module:function that makes the env."""

    algo: str = "dqn"
    """The algorithm: dqn, qrdqn, iqn, c51, rainbow (c51 with double, dueling, noisy, PER and 3 steps), ppo, appo (ppo that goes on collecting), sac, or module:name of yours. Each has settings of its own: --algo NAME --help shows them."""

    steps: int = 100_000
    """Total env steps, over all lanes."""

    seed: int = 0
    """Random seed of the run."""

    runtime: Runtime = "auto"
    """local: actors and learner in separate processes; sequential: one process, reproducible bit for bit; auto: local on more than one core, except for algorithms that learn in lockstep, such as ppo."""

    eval_episodes: int = 100
    """Evaluation episodes at the end of the run, greedy unless eval_sampled is set; 0 skips evaluation."""

    eval_sampled: bool = False
    """Evaluate with sampled actions, as in training, instead of the most likely ones. Helps in partially observed envs, where the greedy policy can get stuck."""

    world: WorldConfig = field(default_factory=WorldConfig)
    net: NetConfig = field(default_factory=NetConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    local: LocalConfig = field(default_factory=LocalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)
