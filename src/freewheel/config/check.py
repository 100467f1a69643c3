"""Which settings are allowed, alone and together. Settings that cannot work are refused here, before anything starts."""

from __future__ import annotations

import json
import math
import re
import typing
from collections.abc import Iterable
from dataclasses import is_dataclass
from typing import Any

from freewheel.config.algos import find_algo
from freewheel.config.ranges import Range
from freewheel.config.settings import Config, WorldConfig
from freewheel.errors import ConfigError
from freewheel.imports import is_import, nearest

WORLD_KINDS = ("auto", "inline", "pool", "vector")
EVAL_LIMITS = ("eval_max_steps", "eval_timeout_s")
POOL_ONLY = ("world.workers", "world.threads", "world.min_ready", "world.ready_wait_s")


def check(config: Config) -> None:
    """Refuses values that cannot work, and says what to change."""
    _check_ranges(config)
    for name in config.log.sinks:
        if not is_import(name):
            raise ConfigError(f"log.sinks={name!r} must be module:name.")
    _check_world(config.world)
    _check_net(config)
    _check_learner(config)
    find_algo(config.algo).check(config)


def _check_ranges(settings: Any, prefix: str = "") -> None:
    """The ranges are in the types of the settings."""
    for name, kind in typing.get_type_hints(type(settings), include_extras=True).items():
        value = getattr(settings, name)
        if is_dataclass(value):
            _check_ranges(value, f"{name}.")
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{prefix}{name}={value} must be a finite number.")
        for allowed in getattr(kind, "__metadata__", ()):
            if isinstance(allowed, Range) and value is not None and not allowed.least <= value <= allowed.most:
                raise ConfigError(f"{prefix}{name}={value} must be {allowed}.")


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
    if net.body in ("auto", "cnn", "impala") and not net.channels:
        raise ConfigError(f"net.channels is empty; net.body={net.body} has a convolution for each. Give at least one.")
    if net.body != "impala" and len({len(net.channels), len(net.kernels), len(net.strides)}) != 1:
        raise ConfigError(
            f"net.channels={net.channels}, net.kernels={net.kernels} and net.strides={net.strides} must have the "
            "same length: one entry per convolution."
        )
    if net.complete and not find_algo(config.algo).takes_complete:
        raise ConfigError(
            f"net.complete=true names a network that gives action values, which {config.algo} cannot use. Leave it out."
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

    add(not config.eval_episodes, "eval_episodes=0 skips the evaluation", "eval_sampled", *EVAL_LIMITS)
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
    algo = find_algo(config.algo)
    add(not algo.takes_complete, f"algo={config.algo} does not use it", "net.complete")
    add(not algo.can_sample, f"algo={config.algo} has no policy to sample from", "eval_sampled")
    own: dict[str, str] = algo.unused(config)
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
