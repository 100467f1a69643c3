"""The settings that every algorithm has: one dataclass per part of a run. `--help` shows the sentence below each field."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from freewheel.config.kept_settings import CheckpointConfig, LogConfig
from freewheel.config.ranges import (
    MOST_S,
    SMALLEST,
    AboveZero,
    BelowOne,
    Natural,
    NotNegative,
    Positive,
    Range,
    Rate,
    Seconds,
    Share,
    Sizes,
)

Runtime = Literal["auto", "local", "sequential"]


@dataclass(frozen=True)
class ImageConfig:
    """How images are prepared when they leave the env. The defaults change nothing."""

    image_size: Annotated[int, Range(0, 2048)] = 0
    """Resize images to squares of this side, in pixels; 0 keeps their size."""

    grey: bool = False
    """Convert images to greyscale."""

    skip: Annotated[int, Range(1, 60)] = 1
    """Frame skip: repeat each action for this many frames. The image is the pixelwise maximum of the last two frames, because some games draw objects only every second frame."""

    noop_max: Annotated[int, Range(0, 10_000)] = 0
    """Start each episode with a random number of no-op frames, fewer than this."""

    fire_reset: bool = False
    """Press FIRE at the start of each episode, in games that have it."""

    episodic_life: bool = False
    """Treat the loss of a life as the end of an episode in training. Reported returns and evaluation use whole games."""


def wanted(config: ImageConfig) -> dict[str, object]:
    """The image settings that differ from the defaults, by name."""
    plain = ImageConfig()
    return {name: value for name in vars(plain) if (value := getattr(config, name)) != getattr(plain, name)}


@dataclass(frozen=True)
class WorldConfig(ImageConfig):
    """Where experience comes from."""

    lanes: Annotated[int, Range(1, 4096)] = 8
    """Number of env copies."""

    kind: str = "auto"
    """How the env copies are stepped. inline: one by one; pool: in worker processes; vector: by the env's own vector env; module:name: by your own world; auto: measure them and use the fastest (in the sequential runtime always inline)."""

    workers: Annotated[int, Range(0, 1024)] = 0
    """pool: number of worker processes; 0 chooses."""

    threads: Annotated[int, Range(0, 1024)] = 0
    """pool: threads per worker process, for envs that wait for another program; 0 chooses."""

    min_ready: Annotated[int, Range(0, 4096)] = 0
    """pool: act as soon as this many lanes are ready; 0 means a quarter of them, or all in the sequential runtime."""

    ready_wait_s: Seconds = 0.01
    """pool: after waiting this many seconds, act with fewer lanes."""

    stack: Annotated[int, Range(1, 64)] = 1
    """Frame stacking: the network sees this many of the latest observations."""

    kwargs: str = "{}"
    """Keyword arguments for the env, as a JSON object."""

    max_episode_steps: Natural = 0
    """Truncate episodes after this many steps; 0 keeps the env's own limit."""

    reward_scale: AboveZero = 1.0
    """Multiply rewards by this for training. Reported returns are not scaled."""

    reward_clip: NotNegative = 0.0
    """Clip rewards to plus or minus this for training, after scaling; 0 does not clip."""

    info_mask: Literal["auto", "on", "off"] = "auto"
    """Masks of allowed actions in info["action_mask"], for envs whose observation has no part action_mask. auto: on if the first reset gives one; on: every reset and step must give one; off: ignore them."""

    bad_rows: Literal["stop", "drop"] = "stop"
    """What to do with invalid rows (NaN, wrong shape). stop: end the run; drop: discard and count them, and start a new episode."""


@dataclass(frozen=True)
class NetConfig:
    """The body of the network."""

    body: str = "auto"
    """mlp, cnn, impala (a residual network for images), auto (cnn for images, else mlp), or module:name, which makes an nn.Module from the observation space."""

    complete: bool = False
    """The module named by net.body returns action values itself: do not add a head."""

    hidden: Sizes = (128, 128)
    """Widths of the fully connected layers."""

    rescale: bool = False
    """mlp: rescale observations to -1..1 by the bounds of the observation space."""

    channels: Sizes = (32, 64, 64)
    """cnn: channels of each convolution; impala: of each section (default 16, 32, 32)."""

    kernels: Sizes = (8, 4, 3)
    """cnn: kernel sizes."""

    strides: Sizes = (4, 2, 1)
    """cnn: strides."""

    conv_bias: bool = True
    """cnn, impala: convolutions have a bias."""

    activation: Literal["relu", "tanh", "elu", "gelu", "silu"] = "relu"
    """Activation between layers."""

    norm: Literal["none", "layer", "batch", "batch_conv"] = "none"
    """Normalisation after each layer of the body; batch_conv: batch normalisation after convolutions only."""

    init: Literal["default", "orthogonal", "he", "xavier"] = "default"
    """Weight initialisation; default is torch's own."""

    shared: bool = False
    """Policy and value share one body."""


@dataclass(frozen=True)
class LearnerConfig:
    """How batches become weights."""

    batch_size: Positive = 128
    """Rows per batch."""

    ratio: Annotated[float, Range(1e-12, 1e6)] = 32.0
    """Replay ratio: rows sampled for training per env step. The learner makes ratio / batch_size updates per step."""

    updates_per_call: Annotated[int, Range(1, 100_000)] = 1
    """Updates per call of the learner."""

    accumulate: Positive = 1
    """Gradient accumulation: split each batch into this many parts."""

    optimizer: Literal["adam", "adamw"] = "adam"
    """The optimiser."""

    lr: Rate = 5e-4
    """Peak learning rate."""

    lr_schedule: Literal["constant", "linear", "cosine", "restarts"] = "constant"
    """Learning rate schedule after the warm-up; restarts repeats the cosine."""

    lr_end: Share = 0.0
    """Final learning rate of linear, cosine and restarts, as a fraction of lr."""

    lr_warmup_updates: Natural = 0
    """Warm-up: raise the learning rate to lr over this many updates."""

    lr_restart_updates: Positive = 10_000
    """restarts: updates per cosine."""

    beta1: BelowOne = 0.9
    """Adam beta1."""

    beta2: BelowOne = 0.999
    """Adam beta2."""

    adam_eps: AboveZero = 1e-8
    """Adam epsilon."""

    weight_decay: NotNegative = 0.01
    """adamw: weight decay."""

    clip_norm: NotNegative = 10.0
    """Clip the gradient norm to this; 0 does not clip."""

    target_every_updates: Positive = 250
    """Update the target network every this many updates."""

    tau: Annotated[float, Range(SMALLEST, 1, "above 0 and at most 1, which copies the online network")] = 1.0
    """Target network update rate (Polyak); 1 copies the online network."""

    target_refresh_updates: Natural = 0
    """Also copy the online network into the target network every this many updates, if tau is below 1; 0 never does."""

    compile: Literal["auto", "on", "off"] = "auto"
    """Compile the update into one graph. on: before the first update; off: never; auto: in the local runtime, compile in the background and switch over if that saves time."""

    precision: Literal["auto", "fp32", "bf16", "fp16"] = "fp32"
    """Precision of the learner's forward and backward passes; weights stay float32. auto: measure what this machine supports and use the fastest."""

    workers: Annotated[int, Range(0, 64)] = 0
    """Gradient workers: processes that share the gradient of each batch, on CUDA one per device. 0: one on CUDA; else, if updates are slow, measure one against one per core and use the faster."""

    memory_format: Literal["auto", "contiguous", "channels_last"] = "auto"
    """cnn, impala: memory format of the learner's images. Changes the speed, not the results; auto uses the faster."""

    threads: Annotated[int, Range(0, 1024)] = 0
    """torch threads of the learner. 0: the fastest number for images, else 1."""

    device: str = "auto"
    """Device of the learner: cpu, cuda, cuda:1 (the second CUDA device) or mps; auto uses the fastest."""


@dataclass(frozen=True)
class LocalConfig:
    """The local runtime: each role is a process."""

    actors: Annotated[int, Range(0, 1024)] = 0
    """Number of actor processes; 0 chooses by the number of cores."""

    free: bool = False
    """Never hold actors back, even if the learner cannot keep up with the replay ratio."""

    slack_steps: Natural = 0
    """Steps that actors may run ahead of the replay ratio; 0 chooses."""

    prefetch: Annotated[int, Range(1, 64)] = 4
    """Batches to prepare in advance while the learner trains."""

    publish_every_updates: Positive = 8
    """Publish weights to the actors every this many updates."""

    publish_every_s: Annotated[float, Range(0, MOST_S)] = 0.1
    """Publish weights at least this often, in seconds."""

    publish_least_change: NotNegative = 0.0
    """Publish weights only if they differ from the last published ones by at least this fraction of their norm; 0 always publishes."""

    fetch_every_steps: Natural = 0
    """Actors fetch weights every this many steps of the run. If this and fetch_every_s are 0, they fetch each version as soon as it is there."""

    fetch_every_s: NotNegative = 0.0
    """Actors fetch weights every this many seconds, or after fetch_every_steps if that comes first; 0: by steps only."""

    act_precision: Literal["auto", "fp32", "bf16", "int8"] = "auto"
    """Precision of the actors' networks; int8 converts linear layers only. Except for fp32, the run reports speed and agreement with fp32. auto: bf16 for images, if the learner uses it and it is faster."""

    act_device: str = "cpu"
    """Device of the actors: cpu, cuda (the least loaded CUDA device) or a device such as cuda:1."""

    target_process: bool = True
    """Compute target values of the next batches in a separate process, once updates are compiled and if a core is free."""

    pin: Literal["auto", "on", "off"] = "auto"
    """Pin the learner to its own core. auto: pin it when other processes delay it, and undo that if it does not help."""

    step_timeout_s: Seconds = 60.0
    """Restart an actor whose env takes longer than this for one step, in seconds."""

    stall_s: Seconds = 30.0
    """Restart a process that shows no sign of life for this long, in seconds."""

    restarts: Natural = 3
    """Restarts allowed per process within ten minutes; one more ends the run."""

    profile: bool = False
    """Write a sampling profile of each process into the run folder."""


@dataclass(frozen=True)
class Config:
    """All settings that every algorithm has. Each algorithm adds its own."""

    env: str
    """Gymnasium id, or module:function that makes the env."""

    algo: str = "dqn"
    """The algorithm: dqn, qrdqn, iqn, c51, rainbow (c51 with double, dueling, noisy, PER and 3-step returns), ppo, appo (ppo that collects while it learns), sac, or your own as module:name. --algo NAME --help shows its settings."""

    steps: Positive = 100_000
    """Total env steps, over all lanes."""

    seed: Annotated[int, Range(0, 2**63 - 1)] = 0
    """Random seed of the run."""

    runtime: Runtime = "auto"
    """sequential: one process, reproducible bit for bit; local: actors and learner in separate processes; auto: local on more than one core, except for algorithms that learn in lockstep, such as ppo."""

    eval_episodes: Natural = 100
    """Evaluation episodes at the end of the run, greedy unless eval_sampled is set; 0 skips the evaluation."""

    eval_sampled: bool = False
    """Evaluate with sampled actions, as in training, instead of the most likely ones. Helps in partially observed envs, where the greedy policy can get stuck."""

    eval_max_steps: Natural = 100_000
    """Cut an evaluation episode that has not ended after this many steps; its return so far counts, and the result says how many were cut. 0 does not cut."""

    eval_timeout_s: AboveZero = 3600.0
    """Time limit of the evaluation in seconds: episodes that are still running are cut, the rest is not played."""

    world: WorldConfig = field(default_factory=WorldConfig)
    net: NetConfig = field(default_factory=NetConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    local: LocalConfig = field(default_factory=LocalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)
