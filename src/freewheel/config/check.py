"""Which settings are allowed, alone and together. Settings that cannot work are refused here, before anything starts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from freewheel.config.algos import find_algo
from freewheel.config.settings import Config, WorldConfig
from freewheel.errors import ConfigError
from freewheel.imports import is_import, nearest

WORLD_KINDS = ("auto", "inline", "pool", "vector")
# name: (least, most), both included; None sets no bound.
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
    """Refuses values that cannot work, and says what to change."""
    algo = find_algo(config.algo)
    for name, (least, most) in {**RANGES, **algo.ranges}.items():
        value = value_of(config, name)
        if value is None:
            continue
        if not (least is None or value >= least) or not (most is None or value <= most):
            raise ConfigError(f"{name}={value} must be {_range(least, most)}.")
    for name in ABOVE_ZERO:
        value = value_of(config, name)
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"{name}={value} must be above 0 and finite.")
    for name in BELOW_ONE:
        if not 0 <= value_of(config, name) < 1:
            raise ConfigError(f"{name}={value_of(config, name)} must be at least 0 and below 1.")
    if config.learner.tau > 1:
        raise ConfigError(f"learner.tau={config.learner.tau} must be at most 1, which copies the online network.")
    for name in config.log.sinks:
        if not is_import(name):
            raise ConfigError(f"log.sinks={name!r} must be module:name.")
    _check_world(config.world)
    _check_net(config)
    _check_learner(config)
    algo.check(config)


def _check_world(world: WorldConfig) -> None:
    check_kind(world.kind)
    read_kwargs(world)
    if world.min_ready > world.lanes:
        raise ConfigError(
            f"world.min_ready={world.min_ready} exceeds world.lanes={world.lanes}. Lower the first or raise the second."
        )


def read_kwargs(world: WorldConfig) -> dict[str, Any]:
    try:
        kwargs = json.loads(world.kwargs)
    except ValueError as error:
        raise ConfigError(f"world.kwargs={world.kwargs!r} is not JSON: {error}.") from error
    if not isinstance(kwargs, dict):
        raise ConfigError(f'world.kwargs={world.kwargs!r} must be a JSON object, such as {{"size": 4}}.')
    return kwargs


def check_kind(kind: str) -> None:
    """Checks the name only: module:name is imported when the world is made."""
    if kind not in WORLD_KINDS and not is_import(kind):
        raise ConfigError(f"world.kind={kind!r} is not known{nearest(kind, (*WORLD_KINDS, 'module:name'))}")


def _check_net(config: Config) -> None:
    net = config.net
    for name in ("hidden", "channels", "kernels", "strides"):
        if any(width < 1 for width in getattr(net, name)):
            raise ConfigError(f"net.{name}={getattr(net, name)} must be numbers of at least 1.")
    if net.body != "impala" and len({len(net.channels), len(net.kernels), len(net.strides)}) != 1:
        raise ConfigError(
            f"net.channels={net.channels}, net.kernels={net.kernels} and net.strides={net.strides} must have the "
            "same length: one entry per convolution."
        )
    if net.body not in ("auto", "mlp", "cnn", "impala") and ":" not in net.body:
        raise ConfigError(f"net.body={net.body!r} must be mlp, cnn, impala, auto or module:name.")


def _check_learner(config: Config) -> None:
    learner, local = config.learner, config.local
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", learner.device):
        raise ConfigError(f"learner.device={learner.device!r} must be auto, cpu, mps, cuda or one such as cuda:1.")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", local.act_device):
        raise ConfigError(f"local.act_device={local.act_device!r} must be cpu, cuda or one such as cuda:1.")
    if local.act_device != "cpu" and local.act_precision in ("bf16", "int8"):
        raise ConfigError(
            f"local.act_precision={local.act_precision} needs actors on the CPU, but local.act_device={local.act_device}. "
            "Leave one of them out."
        )
    if learner.workers > 1 and learner.compile == "on":
        raise ConfigError(
            f"learner.workers={learner.workers} and learner.compile=on do not work together: gradient workers need eager "
            "updates. Leave one of them out."
        )


def refuse_unused(config: Config, given: Iterable[str]) -> None:
    """Refuses a given setting that has no effect."""
    why = unused(config)
    for name in given:
        if name in why:
            raise ConfigError(f"{name} was given, but has no effect: {why[name]}. Leave it out.")


def refuse_sequential(config: Config, given: Iterable[str]) -> None:
    """Refuses given settings that have no effect in the sequential runtime, once the runtime is known."""
    if config.runtime != "sequential":
        return
    for name in given:
        if name.startswith("local.") or name in ("learner.workers", "world.bad_rows"):
            why, advice = "", ""
        elif name in POOL_ONLY and config.world.kind == "auto":
            why, advice = ", where world.kind=auto is not a pool", ", or set world.kind to pool"
        elif name == "rollout.max_lag" and value_of(config, "rollout.collect") == "episodes":
            why, advice = ", where rollout.collect=episodes leaves no row out", ""
        else:
            continue
        raise ConfigError(f"{name} was given, but has no effect: the runtime is sequential{why}. Leave it out{advice}.")


def unused(config: Config) -> dict[str, str]:
    """Settings without effect in this config, each with the reason."""
    learner = config.learner
    found: dict[str, str] = {}

    def add(condition: bool, reason: str, *names: str) -> None:
        if condition:
            found.update(dict.fromkeys(names, reason))

    add(not config.eval_episodes, "eval_episodes=0 skips the evaluation", "eval_sampled")
    add(not config.log.tensorboard, "log.tensorboard is off", "log.clip_every_steps")
    add(learner.lr_schedule == "constant", "learner.lr_schedule=constant", "learner.lr_end")
    add(learner.lr_schedule != "restarts", f"learner.lr_schedule={learner.lr_schedule}", "learner.lr_restart_updates")
    add(learner.optimizer != "adamw", f"learner.optimizer={learner.optimizer}", "learner.weight_decay")
    add(config.world.kind in ("inline", "vector"), f"world.kind={config.world.kind} is not a pool", *POOL_ONLY)
    add(learner.compile == "off", "it needs compiled updates, and learner.compile=off", "local.target_process")
    add(config.local.free, "local.free never holds actors back", "local.slack_steps")
    convolutions = ("net.channels", "net.kernels", "net.strides", "net.conv_bias")
    add(config.net.body == "mlp", "net.body=mlp", *convolutions, "learner.memory_format")
    add(config.net.body in ("cnn", "impala"), f"net.body={config.net.body}", "net.rescale")
    add(config.net.body == "impala", "net.body=impala has fixed kernels", "net.kernels", "net.strides")
    layers = ("net.hidden", "net.rescale", "net.activation", "net.norm", "net.init")
    add(
        ":" in config.net.body,
        f"net.body={config.net.body} is your own network",
        *convolutions,
        *layers,
        "learner.memory_format",
    )
    add(":" not in config.net.body, f"net.body={config.net.body} is a built-in network", "net.complete")
    own: dict[str, str] = find_algo(config.algo).unused(config)
    return found | own


def of_other_algos(config: Config) -> dict[str, str]:
    """Settings that this algorithm never uses, each with the reason. Such a reason names the algorithm.

    The others can take effect if another setting changes: replay.alpha does with replay.prioritized.
    """
    return {name: why for name, why in unused(config).items() if f"algo={config.algo}" in why}


def value_of(config: Config, name: str) -> Any:
    """The value of a setting by its dotted name; None if the algorithm has no such setting."""
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def _range(least: float | None, most: float | None) -> str:
    if most is None:
        return f"at least {least}"
    return f"at most {most}" if least is None else f"between {least} and {most}"
