"""Every setting of a run: one typed dataclass per part. A field's sentence is what `--help` says about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from freewheel.config.image import ImageConfig
from freewheel.config.local import LocalConfig
from freewheel.config.on_policy import PPOConfig, RolloutConfig

Algo = Literal["dqn", "qrdqn", "iqn", "c51", "rainbow", "ppo", "appo"]
Runtime = Literal["auto", "local", "sequential"]


@dataclass(frozen=True)
class WorldConfig(ImageConfig):
    """Where experience comes from."""

    lanes: int = 8
    """Copies of the env that are stepped together."""

    kind: Literal["auto", "inline", "pool", "vector"] = "auto"
    """inline: copies in turn; pool: in worker processes; vector: the env's own vector form. auto measures a step and takes the fastest; in sequential, inline."""

    workers: int = 0
    """pool: worker processes, which share the lanes; 0 chooses."""

    threads: int = 0
    """pool: threads in each worker, for envs that wait for another program; 0 chooses."""

    min_ready: int = 0
    """pool: lanes that are waited for before acting; as many as lanes: always all together; 0: a quarter of them, in sequential all."""

    ready_wait_s: float = 0.01
    """pool: seconds after which fewer will do."""

    stack: int = 1
    """Newest observations that the network sees at once."""

    kwargs: str = "{}"
    """Arguments for making the env, as a JSON object."""

    max_episode_steps: int = 0
    """Cut episodes after so many steps; 0 keeps the env's own limit."""

    reward_scale: float = 1.0
    """Factor on the rewards that are learned from; returns are shown without it."""

    reward_clip: float = 0.0
    """Bound on the size of a (scaled) reward that is learned from; 0 sets none."""

    bad_rows: Literal["stop", "drop"] = "stop"
    """What breaks the env's contract (NaN, a wrong shape): stop ends the run; drop leaves it out, counts it and begins new episodes."""


@dataclass(frozen=True)
class NetConfig:
    """The network's body."""

    body: str = "auto"
    """mlp, cnn, impala (for images, with residual blocks), auto (cnn for images, else mlp), or module:name that makes an nn.Module from the observation space."""

    complete: bool = False
    """The module that body names gives action values itself: no head is put on it."""

    hidden: tuple[int, ...] = (128, 128)
    """Widths of the fully connected layers."""

    rescale: bool = False
    """mlp: map numbers to -1..1 by the bounds that the observation space gives them."""

    channels: tuple[int, ...] = (32, 64, 64)
    """cnn: channels of the convolutions; impala: of its sections, 16, 32, 32 if nobody says."""

    kernels: tuple[int, ...] = (8, 4, 3)
    """cnn: kernel sizes."""

    strides: tuple[int, ...] = (4, 2, 1)
    """cnn: strides."""

    conv_bias: bool = True
    """cnn, impala: convolutions have a bias."""

    activation: Literal["relu", "tanh", "elu", "gelu", "silu"] = "relu"
    """Between layers."""

    norm: Literal["none", "layer", "batch", "batch_conv"] = "none"
    """Normalisation after each layer of the body; batch_conv after convolutions alone."""

    init: Literal["default", "orthogonal", "he", "xavier"] = "default"
    """How weights begin; default is torch's own."""

    shared: bool = False
    """ppo: one body for policy and value; else each has its own."""


@dataclass(frozen=True)
class QConfig:
    """The algorithm's switches."""

    gamma: float = 0.99
    """Discount per step."""

    n_step: int = 1
    """Steps of reward summed before the bootstrap."""

    double: bool = True
    """The online network chooses the next action, the target network values it."""

    dueling: bool = False
    """Separate maps for the state's value and the actions' advantages."""

    noisy: bool = False
    """Learned noise on the head's weights explores, in place of epsilon."""

    noisy_sigma: float = 0.5
    """noisy: size at which that noise begins."""

    loss: Literal["huber", "mse"] = "huber"
    """dqn: loss on the TD error."""

    huber: float = 1.0
    """dqn, qrdqn, iqn: error at which a Huber loss turns from square to straight."""

    num_quantiles: int = 50
    """qrdqn: quantiles per action."""

    num_taus: int = 64
    """iqn: quantiles of the online network per training row."""

    num_target_taus: int = 64
    """iqn: quantiles of the target network per training row."""

    num_act_taus: int = 32
    """iqn: quantiles that an action is chosen by."""

    num_cosines: int = 64
    """iqn: cosines that describe a quantile to the network."""

    num_atoms: int = 51
    """c51, rainbow: points of the return's distribution."""

    v_min: float = -10.0
    """c51, rainbow: smallest return that the distribution can say."""

    v_max: float = 10.0
    """c51, rainbow: largest return that the distribution can say."""


@dataclass(frozen=True)
class ExploreConfig:
    """How actors explore. Steps are counted over all lanes."""

    schedule: Literal["linear", "exponential", "constant", "ladder"] = "linear"
    """linear, exponential: from start to end; constant: end; ladder: each lane its own constant, as in Ape-X."""

    start: float = 1.0
    """Epsilon at the first step."""

    end: float = 0.05
    """Epsilon from over_steps on."""

    over_steps: int = 10_000
    """Steps from start to end."""

    ladder_base: float = 0.4
    """ladder: epsilon of the first lane."""

    ladder_power: float = 7.0
    """ladder: the last lane has ladder_base ** (1 + ladder_power)."""

    hold_steps: int = 1
    """An explored action is held for a random number of steps up to this: pushes instead of a tremble."""

    floor: float = 0.0
    """Epsilon never falls below this, whatever schedule and override say."""

    override: float | None = None
    """This epsilon instead of the schedule's."""

    pulse_every_steps: int = 0
    """Begin a pulse of more exploration every so many steps; 0 never does."""

    pulse_steps: int = 1_000
    """Length of a pulse."""

    pulse_epsilon: float = 0.5
    """Epsilon during a pulse, where the schedule's is lower."""


@dataclass(frozen=True)
class ReplayConfig:
    """What is kept, and how it is drawn."""

    rows: int = 100_000
    """Rows kept over all lanes."""

    warmup_rows: int = 1_000
    """Steps taken before training begins."""

    prioritized: bool = False
    """Draw rows by their last TD error (PER)."""

    alpha: float = 0.6
    """PER: exponent on priorities."""

    beta: float = 0.4
    """PER: exponent of the importance weights at the start."""

    beta_end: float = 1.0
    """PER: that exponent at the end of the run."""


@dataclass(frozen=True)
class LearnerConfig:
    """How batches become weights."""

    batch_size: int = 128
    """Rows in a batch."""

    ratio: float = 32.0
    """Rows drawn for training per step taken; updates per step are ratio / batch_size."""

    updates_per_call: int = 1
    """Updates made in one go once so many are due."""

    accumulate: int = 1
    """Parts that a batch is worked off in; the gradient is that of the whole batch."""

    optimizer: Literal["adam", "adamw"] = "adam"
    """The optimiser."""

    lr: float = 5e-4
    """Learning rate at its highest."""

    lr_schedule: Literal["constant", "linear", "cosine", "restarts"] = "constant"
    """Course of the learning rate over the run, after the warm-up; restarts is cosine again and again."""

    lr_end: float = 0.0
    """Where linear, cosine and restarts end, as a share of lr."""

    lr_warmup_updates: int = 0
    """Updates over which the learning rate rises to lr."""

    lr_restart_updates: int = 10_000
    """restarts: updates per cosine."""

    beta1: float = 0.9
    """Adam's decay of the gradient's mean."""

    beta2: float = 0.999
    """Adam's decay of the gradient's square."""

    adam_eps: float = 1e-8
    """Adam's guard against division by zero."""

    weight_decay: float = 0.01
    """adamw: share of the weights taken off per unit of learning rate."""

    clip_norm: float = 10.0
    """Largest norm of the gradient; 0 does not clip."""

    target_every_updates: int = 250
    """Updates between two moves of the target network."""

    tau: float = 1.0
    """How far the target network moves towards the online one: 1 copies it."""

    compile: Literal["auto", "on", "off"] = "auto"
    """Updates as one compiled graph. auto: compile beside the training and switch if it pays, but for ppo and appo; on: compile before the first update."""

    precision: Literal["auto", "fp32", "bf16", "fp16"] = "fp32"
    """Numbers of the network's passes; weights stay float32. auto measures what this machine can do and takes the fastest."""

    workers: int = 0
    """Processes that share the gradient of each batch, on CUDA with a device each; 0 measures one against one per core, where an update takes long, and takes the faster; on CUDA one."""

    memory_format: Literal["auto", "contiguous", "channels_last"] = "auto"
    """cnn, impala: how the learner's images lie in memory, channel by channel or pixel by pixel; the results are the same. auto takes the faster."""

    threads: int = 0
    """Threads of torch in the learner; 0 chooses: 1, for images as many as are fastest."""

    device: str = "auto"
    """Where the learner computes: cpu, cuda, cuda:1 (the second CUDA device) or mps; auto takes the fastest there is."""


@dataclass(frozen=True)
class CheckpointConfig:
    """What is saved, and when."""

    every_steps: int = 25_000
    """Steps between checkpoints; 0 saves at the end only."""

    keep: int = 3
    """Newest checkpoints that are kept."""

    replay: bool = False
    """Save the replay too: a resumed sequential run then equals one that was never stopped."""


@dataclass(frozen=True)
class LogConfig:
    """Where the run is written down."""

    folder: str = "runs"
    """Folder of the run folders."""

    tensorboard: bool = True
    """Write TensorBoard files."""

    csv: bool = True
    """Write episodes.csv and metrics.csv."""

    every_s: float = 1.0
    """Seconds between two lines of metrics."""

    clip_every_steps: int = 0
    """Film a greedy episode for TensorBoard at the first checkpoint after every so many steps; 0 never does."""


@dataclass(frozen=True)
class Config:
    """All settings of a run."""

    env: str
    """Gymnasium id, or module:function that makes the env."""

    algo: Algo = "dqn"
    """The algorithm. rainbow is c51 with double, dueling, noisy, PER and 3 steps; ppo learns a policy, appo the same while it goes on collecting."""

    steps: int = 100_000
    """Steps over all lanes, after which the run ends."""

    seed: int = 0
    """Everything random follows from it."""

    runtime: Runtime = "auto"
    """local: actors and learner as free-running processes; sequential: in turn in one process, repeatable bit for bit; auto: local where there is more than one core, but for ppo."""

    eval_episodes: int = 100
    """Episodes played at the end, greedy ones unless eval_sampled is set; 0 plays none."""

    eval_sampled: bool = False
    """Play them with drawn actions, as in training, in place of the likeliest (ppo, appo): for envs that show only a part of their state, where the same action may be taken in vain again and again."""

    world: WorldConfig = field(default_factory=WorldConfig)
    net: NetConfig = field(default_factory=NetConfig)
    q: QConfig = field(default_factory=QConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    explore: ExploreConfig = field(default_factory=ExploreConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    local: LocalConfig = field(default_factory=LocalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)
