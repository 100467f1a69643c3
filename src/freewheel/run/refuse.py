"""Settings that were given and can have no effect, as only the env or the arguments tell: refused before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gymnasium import spaces

from freewheel.algos.algo import Loss
from freewheel.config import Config
from freewheel.config.check import POOL_ONLY, refuse_unused
from freewheel.errors import ConfigError
from freewheel.nets.inputs import is_image
from freewheel.run.job import Job
from freewheel.run.on_policy_parts import PolicyParts
from freewheel.run.parts import Parts
from freewheel.worlds.make import env_name

NO_EVALUATION = "no evaluation of a VectorEnv object, whose episodes are those of the training: give the env's id or a function that makes it"


def refuse_without_effect(
    config: Config, given: Mapping[str, Any], env: Any, made: Parts | PolicyParts | Job, loss: Loss | None
) -> None:
    """`made` is what was built of them."""
    if config.net.body == "auto":
        body = "cnn" if is_image(made.obs_space) else "mlp"
        refuse_unused(replace(config, net=replace(config.net, body=body)), given)
    actions = made.action_space if isinstance(made, Job) else made.world.action_space
    if "ppo.log_std" in given and not isinstance(actions, spaces.Box):
        raise ConfigError(
            f"ppo.log_std was given, but has no effect: it is for Box actions, and this env has {actions}. Leave it out."
        )
    for name in ("q.double", "q.loss", "q.huber"):
        if loss is not None and name in given:
            raise ConfigError(f"{name} was given, but has no effect: the loss is one of yours. Leave it out.")
    if isinstance(made, Job) and config.world.kind == "auto" and made.config.world.kind != "pool":
        for name in sorted(set(POOL_ONLY) & set(given)):
            raise ConfigError(
                f"{name} was given, but has no effect: world.kind=auto is no pool here ({made.why_world or 'a vector env'}). "
                "Leave it out, or set world.kind to pool."
            )
    if given.get("log.clip_every_steps") and lanes_of(env) is not None:
        raise ConfigError(
            f"log.clip_every_steps was given, but has no effect: {env_name(env)} is an env object, in which the training goes on, "
            "and a clip needs one of its own. Give a function that makes one, or leave it out."
        )
    for name in ("eval_episodes", "eval_sampled"):
        if given.get(name) and not can_evaluate(env):
            raise ConfigError(f"{name}={given[name]} was given, but there is {NO_EVALUATION}.")


def can_evaluate(env: Any) -> bool:
    """A VectorEnv object goes on in the middle of training episodes: it cannot be evaluated on the side."""
    return not hasattr(env, "num_envs") or isinstance(env, type)


def lanes_of(env: Any) -> int | None:
    """An env object serves one lane, a VectorEnv those it has; None where the settings decide."""
    if not hasattr(env, "step") or isinstance(env, type):
        return None
    return int(getattr(env, "num_envs", 1))
