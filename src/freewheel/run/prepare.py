"""The settings of a run that begins or goes on, and the runtime that they mean here. What cannot work is refused."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from freewheel.config import Config, assemble, find_algo, from_dict
from freewheel.config.assemble import known
from freewheel.config.check import POOL_ONLY, refuse_sequential, refuse_unused, unused
from freewheel.errors import ConfigError
from freewheel.imports import find_name
from freewheel.machine.cores import num_cores
from freewheel.machine.picklable import why_not_picklable
from freewheel.nets.custom import GIVEN
from freewheel.nets.inputs import is_image
from freewheel.run.layout import Layout, choose
from freewheel.run.plan import Plan
from freewheel.run.state import load_run
from freewheel.store.checkpoint import Checkpoint
from freewheel.store.folder import DEFAULT_ROOT, RunFolder, open_run
from freewheel.worlds.make import env_name

# A resumed run may change these: they say how long and how it is told, not what is learned.
MAY_CHANGE = (
    "steps",
    "eval_episodes",
    "eval_sampled",
    "checkpoint.",
    "log.",
    "local.",
    "learner.compile",
    "learner.threads",
    "learner.memory_format",
    "learner.precision",
    "learner.device",
    "learner.workers",
    "explore.override",
)
# Settings that several policies share.
OF_THE_RUN = ("steps", "seed", "runtime", "world.", "log.", "checkpoint.", "eval_episodes", "local.actors", "local.pin")

NO_EVALUATION = "no evaluation of a VectorEnv object, whose episodes are those of the training: give the env's id or a function that makes it"


SINK_HINT = "Name a function or class that takes (folder, config) and returns a log."


@dataclass
class Prepared:
    """What a run is made from."""

    config: Config
    env: Any
    layout: Layout
    body: Any
    loss: Any
    given: Mapping[str, Any]
    policies: Mapping[str, Config] | None = None
    folder: RunFolder | None = None  # of a run that goes on
    checkpoint: Checkpoint | None = None
    notes: list[str] = field(default_factory=list)


def prepare_new(
    env: Any,
    given: dict[str, Any],
    preset: str,
    body: Any,
    loss: Any,
    policies: Mapping[str, Mapping[str, Any]] | None = None,
) -> Prepared:
    """`policies` are settings by name, each beside those of the run."""
    if env is None:
        raise ConfigError(
            "train() needs an env: a Gymnasium id, module:function, a function that makes an env, or an env."
        )
    if body is not None:
        given["net.body"] = GIVEN + getattr(body, "__name__", type(body).__name__)
    lanes = lanes_of(env)
    if lanes is not None and given.setdefault("world.lanes", lanes) != lanes:
        raise ConfigError(
            f"{env_name(env)} is an env object with {lanes} lanes of its own, not world.lanes={given['world.lanes']}. "
            "Leave that out, or give the env's id or a function that makes it."
        )
    if policies is None:
        config, own = assemble(env_name(env), given, preset), None
    else:
        own = _assemble_policies(env_name(env), given, preset, policies, [body, loss])
        config = next(iter(own.values()))
    return _arranged(Prepared(config, env, choose(config, num_cores()), body, loss, given, own), "runtime" in given)


def _assemble_policies(
    env: str, given: Mapping[str, Any], preset: str, policies: Mapping[str, Mapping[str, Any]], objects: Sequence[Any]
) -> dict[str, Config]:
    """The settings of several policies: those of the run as far as each has a use for them, and its own."""
    if not policies:
        raise ConfigError("policies= is empty: it has settings for each group of the world, by the group's name.")
    if any(thing is not None for thing in objects):
        raise ConfigError(
            "body= and loss= are for a run of one policy. Name a network by net.body in a policy's settings."
        )
    found, used = {}, set[str]()
    for name, own in policies.items():
        if wrong := [key for key in own if key.startswith(OF_THE_RUN)]:
            raise ConfigError(
                f"{wrong[0]} is given for the policy {name!r}, but holds for the whole run. Give it in settings=."
            )
        shared = {key: value for key, value in given.items() if key not in own}
        useful = known(find_algo(str(own.get("algo", given.get("algo", "dqn")))).Settings)
        shared = {key: value for key, value in shared.items() if key in useful}
        without = unused(assemble(env, {**shared, **own}, preset, refuses=False))
        shared = {key: value for key, value in shared.items() if key not in without}
        found[name] = assemble(env, {**shared, **own}, preset)
        used |= {*shared, *own}
    for key in given:
        if key not in used:
            raise ConfigError(f"{key} was given, but has no effect: no policy has a use for it. Leave it out.")
    return found


def prepare_resumed(env: Any, given: dict[str, Any], resume: str | Path, body: Any, loss: Any) -> Prepared:
    """A run that goes on with its own settings; few of them may change."""
    for name in given:
        if not name.startswith(MAY_CHANGE):
            raise ConfigError(
                f"{name} was given with a run to resume, whose own setting holds. Those that may change: "
                f"{', '.join(MAY_CHANGE)}. Start a new run for the others."
            )
    folder = open_run(resume, Path(given.get("log.folder", DEFAULT_ROOT)))
    saved = folder.config()
    own = saved.pop("policies", None)
    policies = None
    if own is None:
        config = from_dict(saved, given)
    else:
        policies = {name: from_dict(each, _for_policy(each, given)) for name, each in own.items()}
        config = next(iter(policies.values()))
    checkpoint = load_run(folder.checkpoints, list(own or ()))
    if checkpoint.state["steps"] >= config.steps:
        raise ConfigError(
            f"run {folder.name} has taken {checkpoint.state['steps']:,} of {config.steps:,} steps: there is nothing left to "
            "do. Give more steps to go on."
        )
    named = checkpoint.state.get("loss")
    if (named is None) != (loss is None):
        raise ConfigError(
            f"run {folder.name} was trained with {'the loss of its algorithm' if named is None else f'a loss of yours ({named})'}: "
            f"{'leave loss= out' if named is None else 'give it again as loss=...'}."
        )
    env = config.env if env is None else env
    layout = choose(config, num_cores())
    return _arranged(Prepared(config, env, layout, body, loss, given, policies, folder, checkpoint), is_bound=True)


def _for_policy(saved: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What is given to a run that goes on, as far as one of its policies has a use for it."""
    useful = known(find_algo(str(saved["algo"])).Settings)
    changes = {name: value for name, value in given.items() if name in useful}
    without = unused(from_dict(saved))
    return {name: value for name, value in changes.items() if name not in without}


def _arranged(prepared: Prepared, is_bound: bool) -> Prepared:
    """With the runtime that the settings mean here. One that only a preset prefers is not `is_bound`: it gives way where it cannot be."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ConfigError(
            "train() was called while a process of a run was importing your script. Put what the script does under "
            "if __name__ == '__main__':, or set runtime='sequential'."
        )
    config, layout = prepared.config, prepared.layout
    for name in config.log.sinks:
        find_name(name, SINK_HINT)
    if layout.runtime == "local" and (hindrance := why_not_picklable(prepared.env, prepared.body, prepared.loss)):
        if config.runtime == "local" and is_bound:
            raise ConfigError(
                f"The local runtime starts other processes, and {hindrance}. Set runtime to sequential, or give it another way."
            )
        prepared.notes.append(f"Using the sequential runtime, because {hindrance}.")
        layout = choose(replace(config, runtime="sequential"), num_cores())
    prepared.layout, prepared.config = layout, replace(config, runtime=layout.runtime)
    if prepared.policies is not None:
        prepared.policies = {n: replace(own, runtime=layout.runtime) for n, own in prepared.policies.items()}
    refuse_sequential(prepared.config, prepared.given)
    return prepared


def refuse_without_effect(plan: Plan, given: Mapping[str, Any]) -> None:
    """`given` are the settings that the plan was made of."""
    env = plan.env
    if len(plan.policies) > 1 and plan.config.log.clip_every_steps:
        raise ConfigError("log.clip_every_steps films one policy, and this run has several. Leave it out.")
    # What one of several policies has no use for, another may need.
    for policy in plan.policies if len(plan.policies) == 1 else ():
        own = policy.config
        if own.net.body == "auto":
            body = "cnn" if is_image(policy.spaces.obs) else "mlp"
            refuse_unused(replace(own, net=replace(own.net, body=body)), given)
        for name, why in policy.algo_class().unused_here(policy.spaces, policy.loss is not None).items():
            if name in given:
                raise ConfigError(f"{name} was given, but has no effect: {why}. Leave it out.")
    if given.get("log.clip_every_steps") and lanes_of(env) is not None:
        raise ConfigError(
            f"log.clip_every_steps was given, but has no effect: {env_name(env)} is an env object, in which the training goes on, "
            "and a clip needs one of its own. Give a function that makes one, or leave it out."
        )
    for name in ("eval_episodes", "eval_sampled"):
        if given.get(name) and not can_evaluate(env):
            raise ConfigError(f"{name}={given[name]} was given, but there is {NO_EVALUATION}.")


def refuse_pool(plan: Plan, given: Mapping[str, Any]) -> None:
    """Once the world is chosen: settings of a pool where there is none."""
    if plan.config.world.kind == "pool":
        return
    for name in sorted(set(POOL_ONLY) & set(given)):
        raise ConfigError(
            f"{name} was given, but has no effect: the world is no pool here ({' '.join(plan.notes[:1]) or 'a vector env'}). "
            "Leave it out, or set world.kind to pool."
        )


def can_evaluate(env: Any) -> bool:
    """A VectorEnv object goes on in the middle of training episodes: it cannot be evaluated on the side."""
    return not hasattr(env, "num_envs") or isinstance(env, type)


def lanes_of(env: Any) -> int | None:
    """An env object serves one lane, a VectorEnv those it has; None where the settings decide."""
    if not hasattr(env, "step") or isinstance(env, type):
        return None
    return int(getattr(env, "num_envs", 1))
