"""What settings may be, alone and together. Whatever cannot work is refused here, before anything starts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from freewheel.config.on_policy import ON_POLICY
from freewheel.config.parts import Config
from freewheel.errors import ConfigError

# name: (least, most); both belong to the range, None is open.
RANGES: dict[str, tuple[float | None, float | None]] = {
    "steps": (1, None),
    "seed": (0, 2**63 - 1),
    "eval_episodes": (0, None),
    "world.lanes": (1, 4096),
    "world.workers": (0, 1024),
    "world.threads": (0, 1024),
    "world.min_ready": (0, 4096),
    "world.stack": (1, 64),
    "world.image_size": (0, 2048),
    "world.skip": (1, 60),
    "world.noop_max": (0, 10_000),
    "world.max_episode_steps": (0, None),
    "world.reward_clip": (0, None),
    "q.gamma": (0, 1),
    "q.n_step": (1, 1000),
    "q.noisy_sigma": (0, None),
    "q.num_quantiles": (1, None),
    "q.num_taus": (1, None),
    "q.num_target_taus": (1, None),
    "q.num_act_taus": (1, None),
    "q.num_cosines": (1, None),
    "q.num_atoms": (2, None),
    "ppo.gamma": (0, 1),
    "ppo.gae_lambda": (0, 1),
    "ppo.value_clip": (0, None),
    "ppo.value_weight": (0, None),
    "ppo.entropy_weight": (0, None),
    "ppo.epochs": (1, 1000),
    "ppo.minibatches": (1, None),
    "ppo.target_kl": (0, None),
    "ppo.log_std": (-20, 2),
    "ppo.c_bar": (0, None),
    "rollout.rows": (1, 2**24),
    "rollout.max_lag": (0, None),
    "rollout.reuse": (0, 1000),
    "explore.start": (0, 1),
    "explore.end": (0, 1),
    "explore.over_steps": (1, None),
    "explore.ladder_base": (0, 1),
    "explore.ladder_power": (0, None),
    "explore.hold_steps": (1, 10_000),
    "explore.floor": (0, 1),
    "explore.override": (0, 1),
    "explore.pulse_every_steps": (0, None),
    "explore.pulse_steps": (1, None),
    "explore.pulse_epsilon": (0, 1),
    "replay.rows": (2, 2**32 - 1),
    "replay.warmup_rows": (1, None),
    "replay.alpha": (0, 1),
    "replay.beta": (0, 1),
    "replay.beta_end": (0, 1),
    "learner.batch_size": (1, None),
    "learner.updates_per_call": (1, None),
    "learner.accumulate": (1, None),
    "learner.lr_end": (0, 1),
    "learner.lr_warmup_updates": (0, None),
    "learner.lr_restart_updates": (1, None),
    "learner.weight_decay": (0, None),
    "learner.clip_norm": (0, None),
    "learner.target_every_updates": (1, None),
    "learner.workers": (0, 64),
    "learner.threads": (0, 1024),
    "local.actors": (0, 1024),
    "local.slack_steps": (0, None),
    "local.prefetch": (1, 64),
    "local.publish_every_updates": (1, None),
    "local.publish_every_s": (0, None),
    "local.restarts": (0, None),
    "checkpoint.every_steps": (0, None),
    "checkpoint.keep": (1, None),
    "log.every_s": (0, None),
    "log.clip_every_steps": (0, None),
}
ABOVE_ZERO = (
    "q.huber",
    "ppo.clip",
    "ppo.rho_bar",
    "learner.ratio",
    "learner.lr",
    "learner.adam_eps",
    "learner.tau",
    "world.reward_scale",
    "world.ready_wait_s",
    "local.step_timeout_s",
    "local.stall_s",
)
BELOW_ONE = ("learner.beta1", "learner.beta2")
POOL_ONLY = ("world.workers", "world.threads", "world.min_ready", "world.ready_wait_s")


def check(config: Config) -> None:
    """Refuses values that cannot work, each with the cure."""
    for name, (least, most) in RANGES.items():
        value = value_of(config, name)
        if value is None:
            continue
        if not (least is None or value >= least) or not (most is None or value <= most):
            raise ConfigError(f"{name}={value} must be {_range(least, most)}.")
    for name in ABOVE_ZERO:
        if not 0 < value_of(config, name) < float("inf"):
            raise ConfigError(f"{name}={value_of(config, name)} must be above 0 and finite.")
    for name in BELOW_ONE:
        if not 0 <= value_of(config, name) < 1:
            raise ConfigError(f"{name}={value_of(config, name)} must be at least 0 and below 1.")
    if config.learner.tau > 1:
        raise ConfigError(f"learner.tau={config.learner.tau} must be at most 1, which copies the online network.")
    _check_world(config)
    _check_net(config)
    if config.algo in ON_POLICY:
        _check_ppo(config)
        return
    _check_explore(config)
    _check_learner(config)


def _check_world(config: Config) -> None:
    try:
        kwargs = json.loads(config.world.kwargs)
    except ValueError as error:
        raise ConfigError(f"world.kwargs={config.world.kwargs!r} is not JSON: {error}.") from error
    if not isinstance(kwargs, dict):
        raise ConfigError(f'world.kwargs={config.world.kwargs!r} must be a JSON object, such as {{"size": 4}}.')
    if config.world.min_ready > config.world.lanes:
        raise ConfigError(
            f"world.min_ready={config.world.min_ready} exceeds world.lanes={config.world.lanes}: so many are never ready. "
            "Lower the first or raise the second."
        )


def _check_net(config: Config) -> None:
    net, q = config.net, config.q
    for name in ("hidden", "channels", "kernels", "strides"):
        if any(width < 1 for width in getattr(net, name)):
            raise ConfigError(f"net.{name}={getattr(net, name)} must hold numbers of at least 1.")
    if net.body != "impala" and len({len(net.channels), len(net.kernels), len(net.strides)}) != 1:
        raise ConfigError(
            f"net.channels={net.channels}, net.kernels={net.kernels} and net.strides={net.strides} must be as many: "
            "one of each per convolution."
        )
    if net.body not in ("auto", "mlp", "cnn", "impala") and ":" not in net.body:
        raise ConfigError(f"net.body={net.body!r} must be mlp, cnn, impala, auto or module:name.")
    if q.v_min >= q.v_max:
        raise ConfigError(f"q.v_min={q.v_min} must be below q.v_max={q.v_max}.")


def _check_ppo(config: Config) -> None:
    rows, lanes, minibatches = config.rollout.rows, config.world.lanes, config.ppo.minibatches
    if rows * lanes % minibatches or rows * lanes // minibatches < 2:
        raise ConfigError(
            f"rollout.rows={rows} times world.lanes={lanes} gives {rows * lanes} rows, which ppo.minibatches={minibatches} "
            "must divide into equal parts of at least 2. Change one of them."
        )
    if config.rollout.collect == "episodes" and config.learner.compile == "on":
        raise ConfigError(
            "rollout.collect=episodes gives rollouts of any length, and learner.compile=on makes updates of one length. "
            "Set learner.compile to auto or off, or rollout.collect to rows."
        )
    if config.net.norm.startswith("batch"):
        raise ConfigError(
            f"net.norm={config.net.norm} would make a policy depend on which rows are looked at together, and {config.algo} compares it with itself. "
            "Set net.norm to layer or none."
        )
    if config.net.complete:
        raise ConfigError(
            f"net.complete=true names a network that gives action values, which {config.algo} cannot use. Leave it out."
        )


def _check_explore(config: Config) -> None:
    explore = config.explore
    if explore.schedule == "exponential" and min(explore.start, explore.end) <= 0:
        raise ConfigError(
            f"explore.schedule=exponential never reaches 0: explore.start={explore.start} and "
            f"explore.end={explore.end} must be above it."
        )
    if explore.pulse_every_steps and explore.pulse_steps > explore.pulse_every_steps:
        raise ConfigError(
            f"explore.pulse_steps={explore.pulse_steps} exceeds explore.pulse_every_steps={explore.pulse_every_steps}: "
            "the pulse would never end."
        )


def _check_learner(config: Config) -> None:
    learner, replay, lanes = config.learner, config.replay, config.world.lanes
    if learner.batch_size > replay.warmup_rows:
        raise ConfigError(
            f"learner.batch_size={learner.batch_size} exceeds replay.warmup_rows={replay.warmup_rows}. "
            "Lower the first or raise the second."
        )
    if learner.batch_size % learner.accumulate:
        raise ConfigError(
            f"learner.accumulate={learner.accumulate} must divide learner.batch_size={learner.batch_size} "
            "into equal parts."
        )
    _check_devices(config)
    if learner.workers > 1 and learner.compile == "on":
        raise ConfigError(
            f"learner.workers={learner.workers} share eager updates; learner.compile=on makes one graph of all of it. "
            "Leave one of them out."
        )
    if replay.warmup_rows > replay.rows:
        raise ConfigError(
            f"replay.warmup_rows={replay.warmup_rows} exceeds replay.rows={replay.rows}: the replay would never be warm. "
            "Lower the first or raise the second."
        )
    needed = config.q.n_step + config.world.stack
    if replay.rows // lanes < needed:
        raise ConfigError(
            f"replay.rows={replay.rows} over world.lanes={lanes} leaves {replay.rows // lanes} rows a lane; "
            f"q.n_step={config.q.n_step} with world.stack={config.world.stack} needs {needed}. Raise replay.rows."
        )


def _check_devices(config: Config) -> None:
    learner, local = config.learner, config.local
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", learner.device):
        raise ConfigError(f"learner.device={learner.device!r} must be auto, cpu, mps, cuda or one such as cuda:1.")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", local.act_device):
        raise ConfigError(f"local.act_device={local.act_device!r} must be cpu, cuda or one such as cuda:1.")
    if local.act_device != "cpu" and local.act_precision in ("bf16", "int8"):
        raise ConfigError(
            f"local.act_precision={local.act_precision} is for actors on the CPU, and local.act_device={local.act_device}. "
            "Leave one of them out."
        )


def refuse_unused(config: Config, given: Iterable[str]) -> None:
    """An option that was given takes effect or is refused."""
    why = unused(config)
    for name in given:
        if name in why:
            raise ConfigError(f"{name} was given, but has no effect: {why[name]}. Leave it out.")


def refuse_in_turn(config: Config, given: Iterable[str]) -> None:
    """The same for what one process has no use for, once it is known whether the run is one."""
    if config.runtime != "sequential":
        return
    for name in given:
        if name.startswith("local.") or name in ("learner.workers", "world.bad_rows"):
            why, cure = "", ""
        elif name in POOL_ONLY and config.world.kind == "auto":
            why, cure = ", where world.kind=auto is no pool", ", or set world.kind to pool"
        elif name == "rollout.max_lag" and config.rollout.collect == "episodes":
            why, cure = ", where nobody collects ahead, and rollout.collect=episodes leaves no row out", ""
        else:
            continue
        raise ConfigError(f"{name} was given, but has no effect: the runtime is sequential{why}. Leave it out{cure}.")


def unused(config: Config) -> dict[str, str]:
    """Settings without effect in this config, each with the reason."""
    q, explore, learner, algo = config.q, config.explore, config.learner, config.algo
    found: dict[str, str] = _of_other_algorithms(config)

    def add(condition: bool, reason: str, *names: str) -> None:
        if condition:
            found.update(dict.fromkeys(names, reason))

    add(algo != "dqn", f"algo={algo} has its own loss", "q.loss")
    add(algo in ("c51", "rainbow"), f"algo={algo} has no Huber loss", "q.huber")
    add(algo == "dqn" and q.loss == "mse", "q.loss=mse has no Huber part", "q.huber")
    add(algo != "qrdqn", f"it belongs to qrdqn, and algo={algo}", "q.num_quantiles")
    taus = ("q.num_taus", "q.num_target_taus", "q.num_act_taus", "q.num_cosines")
    add(algo != "iqn", f"it belongs to iqn, and algo={algo}", *taus)
    add(algo not in ("c51", "rainbow"), f"it belongs to c51, and algo={algo}", "q.num_atoms", "q.v_min", "q.v_max")
    add(not q.noisy, "q.noisy is off", "q.noisy_sigma")
    add(not config.eval_episodes, "eval_episodes=0 plays none", "eval_sampled")
    add(not config.log.tensorboard, "log.tensorboard is off", "log.clip_every_steps")
    ladder = ("explore.ladder_base", "explore.ladder_power")
    add(explore.schedule != "ladder", f"explore.schedule={explore.schedule}", *ladder)
    add(explore.schedule == "constant", "explore.schedule=constant", "explore.start", "explore.over_steps")
    course = ("explore.start", "explore.end", "explore.over_steps")
    add(explore.schedule == "ladder", "explore.schedule=ladder", *course)
    add(q.noisy, "q.noisy explores in its place", "explore.schedule", *course, *ladder)
    never_tries = q.noisy and explore.floor == 0 and explore.override is None and not explore.pulse_every_steps
    add(never_tries, "q.noisy explores, and no epsilon is set", "explore.hold_steps")
    add(not explore.pulse_every_steps, "explore.pulse_every_steps is 0", "explore.pulse_steps", "explore.pulse_epsilon")
    add(not config.replay.prioritized, "replay.prioritized is off", "replay.alpha", "replay.beta", "replay.beta_end")
    add(learner.lr_schedule == "constant", "learner.lr_schedule=constant", "learner.lr_end")
    add(learner.lr_schedule != "restarts", f"learner.lr_schedule={learner.lr_schedule}", "learner.lr_restart_updates")
    add(learner.optimizer != "adamw", f"learner.optimizer={learner.optimizer}", "learner.weight_decay")
    add(config.world.kind in ("inline", "vector"), f"world.kind={config.world.kind} is no pool", *POOL_ONLY)
    add(learner.compile == "off", "learner.compile=off, and it helps compiled updates", "local.ahead")
    add(config.local.free, "local.free lets actors run on", "local.slack_steps")
    convolutions = ("net.channels", "net.kernels", "net.strides", "net.conv_bias")
    add(config.net.body == "mlp", "net.body=mlp", *convolutions, "learner.memory_format")
    add(config.net.body in ("cnn", "impala"), f"net.body={config.net.body}", "net.rescale")
    add(config.net.body == "impala", "net.body=impala has kernels of its own", "net.kernels", "net.strides")
    layers = ("net.hidden", "net.rescale", "net.activation", "net.norm", "net.init")
    add(
        ":" in config.net.body,
        f"net.body={config.net.body} is a network of yours",
        *convolutions,
        *layers,
        "learner.memory_format",
    )
    add(":" not in config.net.body, f"net.body={config.net.body} is one of ours", "net.complete")
    return found


# What a learner of values has and PPO has not.
NOT_PPO_LEARNER = ("batch_size", "ratio", "updates_per_call", "accumulate", "target_every_updates", "tau")
NOT_PPO_LOCAL = ("prefetch", "publish_every_updates", "publish_every_s", "ahead", "act_precision")


def _of_other_algorithms(config: Config) -> dict[str, str]:
    algo = config.algo
    if algo not in ON_POLICY:
        names = [*_names(config, "ppo"), *_names(config, "rollout"), "net.shared", "eval_sampled"]
        return dict.fromkeys(names, f"it belongs to ppo and appo, and algo={algo}")
    names = [*_names(config, "q"), *_names(config, "explore"), *_names(config, "replay"), "net.complete"]
    names += [f"learner.{name}" for name in NOT_PPO_LEARNER]
    found = dict.fromkeys(names, f"algo={algo} has no use for it")
    found["checkpoint.replay"] = f"algo={algo} has no replay"
    found |= dict.fromkeys(("learner.device", "learner.workers"), f"algo={algo} learns in one process on the CPU")
    found["local.act_device"] = f"algo={algo} acts on the CPU"
    found["learner.precision"] = f"algo={algo} computes in fp32"
    found |= dict.fromkeys((f"local.{name}" for name in NOT_PPO_LOCAL), f"algo={algo} publishes after each rollout")
    found |= dict.fromkeys(("local.free", "local.slack_steps"), f"algo={algo} goes by rollout.max_lag")
    if algo == "ppo" and config.rollout.collect == "episodes":
        # An episode's rows are never too old, and actors of ppo are never ahead.
        found["rollout.max_lag"] = "rollout.collect=episodes leaves no row out"
    if algo != "appo":
        found |= dict.fromkeys(("ppo.rho_bar", "ppo.c_bar", "rollout.reuse"), f"it belongs to appo, and algo={algo}")
    return found


def _names(config: Config, part: str) -> list[str]:
    return [f"{part}.{field.name}" for field in fields(getattr(config, part))]


def value_of(config: Config, name: str) -> Any:
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _range(least: float | None, most: float | None) -> str:
    if most is None:
        return f"at least {least}"
    return f"at most {most}" if least is None else f"between {least} and {most}"
