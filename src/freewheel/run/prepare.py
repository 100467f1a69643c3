"""Settings of a new or a resumed run, and the runtime that they mean here. Refuses what cannot work."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from freewheel.config import Config, assemble, find_algo
from freewheel.config.assemble import known
from freewheel.config.check import EVAL_LIMITS, POOL_ONLY, refuse_sequential, refuse_unused, unused
from freewheel.errors import ConfigError, about
from freewheel.imports import find_name
from freewheel.machine.cores import num_cores
from freewheel.machine.picklable import why_not_picklable
from freewheel.nets.custom import GIVEN
from freewheel.nets.inputs import is_image
from freewheel.nets.masks import without_mask
from freewheel.run.layout import choose
from freewheel.run.plan import Plan, Setup
from freewheel.store.consent import TO_RESUME, Consent, names_code, read_settings
from freewheel.store.folder import DEFAULT_ROOT, RunFolder, open_run
from freewheel.store.load import check_size, load_run
from freewheel.store.signature import why_no_key
from freewheel.worlds.make import env_name

# A resumed run may change these: they affect how long it runs and what it reports, not what it learns.
MAY_CHANGE = (
    "steps",
    "eval_episodes",
    "eval_sampled",
    *EVAL_LIMITS,
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
_MAY_CHANGE = [f"all of {name[:-1]}" if name.endswith(".") else name for name in MAY_CHANGE]
# Settings that several policies share.
OF_THE_RUN: tuple[str, ...] = (
    "env",
    "steps",
    "seed",
    "runtime",
    "world.",
    "log.",
    "checkpoint.",
    "eval_episodes",
    *EVAL_LIMITS,
)
OF_THE_RUN += tuple(f"local.{name}" for name in ("actors", "pin", "profile", "restarts", "stall_s", "step_timeout_s"))
NO_EVALUATION = "a VectorEnv object cannot be evaluated, because training is in the middle of its episodes. Give the env's id or a function that makes it."
SINK_HINT = "Name a function or class that takes (folder, config) and returns a log."


def prepare(
    env: Any,
    given: dict[str, Any],
    preset: str,
    body: Any,
    loss: Any,
    policies: Mapping[str, Mapping[str, Any]] | None,
    resume: str | Path | None,
    trust: bool,
) -> Setup:
    """What a new run is made from, or the run `resume`."""
    if resume is not None:
        given |= {"preset": preset} if preset != "auto" else {"policies": policies} if policies else {}  # refused there
        return prepare_resumed(env, given, resume, body, loss, trust)
    if trust:
        raise ConfigError(
            "trust was given, but has no effect without resume: a new run names only what you give. Leave it out."
        )
    return prepare_new(env, given, preset, body, loss, policies)


def prepare_new(
    env: Any,
    given: dict[str, Any],
    preset: str,
    body: Any = None,
    loss: Any = None,
    policies: Mapping[str, Mapping[str, Any]] | None = None,
) -> Setup:
    """`policies` has settings by the name of each policy, which go before the settings of the run."""
    if env is None:
        raise ConfigError(
            "train() needs an env: a Gymnasium id, module:function, a function that makes an env, or an env."
        )
    if body is not None:
        given["net.body"] = GIVEN + getattr(body, "__name__", type(body).__name__)
    lanes = lanes_of(env)
    if lanes is not None and given.setdefault("world.lanes", lanes) != lanes:
        raise ConfigError(
            f"{env_name(env)} is an env object with {lanes} lanes, but world.lanes={given['world.lanes']}. "
            "Leave world.lanes out, or give the env's id or a function that makes it."
        )
    if policies is None:
        config, own = assemble(env_name(env), given, preset), None
    elif body is not None or loss is not None:
        raise ConfigError(
            "body= and loss= need a run with one policy. Name a network by net.body in a policy's settings."
        )
    else:
        own = _assemble_policies(env_name(env), given, preset, policies)
        config = next(iter(own.values()))
    setup = Setup(config, env, choose(config, num_cores()), body, loss, given, own, given_to=policies or {})
    if any(map(names_code, setup.configs.values())) and (why := why_no_key()):
        setup.notes.append(f"Not signing the run: {why}. Evaluating or resuming it will need --trust (trust=True).")
    return _with_runtime(setup, "runtime" in given)


def _assemble_policies(
    env: str, given: Mapping[str, Any], preset: str, policies: Mapping[str, Mapping[str, Any]]
) -> dict[str, Config]:
    """The settings of each policy: its own, and those of the run that its algorithm uses."""
    if not policies:
        raise ConfigError("policies= is empty. Give settings for each group of the world, by the group's name.")
    each = policies.items() if isinstance(policies, Mapping) else [(policies, None)]
    if not all(isinstance(name, str) and isinstance(own, Mapping) for name, own in each):
        raise ConfigError(f'policies={policies!r} must be settings by name, such as {{"red": {{"learner.lr": 1e-3}}}}.')
    found, used = {}, set[str]()
    for name, own in policies.items():
        if wrong := [key for key in own if key.startswith(OF_THE_RUN)]:
            raise ConfigError(
                f"{wrong[0]} is given for the policy {name!r}, but holds for the whole run. Give it in settings=."
            )
        shared = _known_to(own.get("algo", given.get("algo", "dqn")), {k: v for k, v in given.items() if k not in own})
        with about(name):
            without = unused(assemble(env, {**shared, **own}, preset, refuses=False))
            own = {**{key: value for key, value in shared.items() if key not in without}, **own}
            found[name] = assemble(env, own, preset)
        used |= {*own}
    for key in given:
        if key not in used:
            raise ConfigError(f"{key} was given, but has no effect: no policy uses it. Leave it out.")
    return found


def _known_to(algo: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that an algorithm has."""
    names = known(find_algo(str(algo)).Settings)
    return {name: value for name, value in given.items() if name in names}


def prepare_resumed(
    env: Any, given: dict[str, Any], resume: str | Path, body: Any = None, loss: Any = None, trust: bool = False
) -> Setup:
    """A run that is resumed with its own settings; few of them may change."""
    for name in given:
        if not name.startswith(MAY_CHANGE):
            raise ConfigError(
                f"{name} was given, but a resumed run keeps its own. These settings may change: {', '.join(_MAY_CHANGE)}. "
                "Start a new run to change others."
            )
    folder = open_run(resume, Path(given.get("log.folder", DEFAULT_ROOT)))
    folder.refuse_links()
    again = [*given, *(["env"] if env is not None else []), *(["net.body"] if body is not None else [])]
    how = "add --trust to the command, or in Python trust=True"
    consent = Consent(trust, tuple(name for name in TO_RESUME if name not in again), how)
    config, policies, foreign = _saved_settings(folder, given, consent)
    checkpoint = load_run(folder.checkpoints, list(policies or ()))
    for name, each in (policies or {"": config}).items():
        check_size(each, checkpoint, name, body)
    if checkpoint.state["steps"] >= config.steps:
        raise ConfigError(
            f"run {folder.name} has taken {checkpoint.state['steps']:,} of {config.steps:,} steps: there is nothing left to "
            "do. Give more steps to continue."
        )
    named = checkpoint.state.get("loss")
    if named is None and loss is not None:
        raise ConfigError(f"run {folder.name} was trained with the loss of its algorithm. Leave loss= out.")
    if named is not None and loss is None:
        raise ConfigError(f"run {folder.name} was trained with your loss {named}. Give it again as loss=...")
    env = config.env if env is None else env
    layout = choose(config, num_cores())
    setup = Setup(config, env, layout, body, loss, given, policies, folder, checkpoint, is_ours=trust or not foreign)
    return _with_runtime(setup, is_required=True)


def _saved_settings(
    folder: RunFolder, given: Mapping[str, Any], consent: Consent
) -> tuple[Config, dict[str, Config] | None, str]:
    """The settings of a run, those of each of several policies, and why they may be somebody else's."""
    saved = folder.config()
    foreign = folder.why_foreign(saved)
    read = partial(read_settings, where=f"run {folder.path}", foreign=foreign, consent=consent)
    own = saved.pop("policies", None)
    if own is None:
        return read(saved, changes=given), None, foreign
    policies = {name: read(each, changes=_used_by(read(each), given)) for name, each in own.items()}
    return next(iter(policies.values())), policies, foreign


def _used_by(config: Config, given: Mapping[str, Any]) -> dict[str, Any]:
    """Of the settings that are given on resume, those that a policy with these saved settings uses."""
    without = unused(config)
    return {name: value for name, value in _known_to(config.algo, given).items() if name not in without}


def _with_runtime(setup: Setup, is_required: bool) -> Setup:
    """Chooses the runtime. A local runtime that is not `is_required` becomes sequential where local cannot work."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ConfigError(
            "train() was called while a process of the run was importing your script. Put the script's code under "
            "if __name__ == '__main__':, or set runtime='sequential'."
        )
    config, layout = setup.config, setup.layout
    for name in config.log.sinks:
        find_name(name, SINK_HINT)
    if layout.runtime == "local" and (hindrance := why_not_picklable(setup.env, setup.body, setup.loss)):
        if config.runtime == "local" and is_required:
            raise ConfigError(
                f"The local runtime starts other processes, and {hindrance}. Fix that, or set runtime to sequential."
            )
        setup.notes.append(f"Using the sequential runtime, because {hindrance}.")
        layout = choose(replace(config, runtime="sequential"), num_cores())
    setup.layout, setup.config = layout, replace(config, runtime=layout.runtime)
    if setup.policies is not None:
        setup.policies = {name: replace(own, runtime=layout.runtime) for name, own in setup.policies.items()}
    refuse_sequential(setup.config, setup.given)
    for name, given in setup.given_to.items():
        with about(name):
            refuse_sequential(setup.configs[name], given)
    return setup


def refuse_without_effect(plan: Plan, setup: Setup) -> None:
    """Refuses given settings that have no effect with this env."""
    env, given = plan.env, setup.given
    if len(plan.policies) > 1 and plan.config.log.clip_every_steps:
        raise ConfigError("log.clip_every_steps films one policy, and this run has several. Leave it out.")
    # What one of several policies does not use, another may need.
    for policy in plan.policies:
        own, given_here = policy.config, setup.given_to.get(policy.name, {}) if policy.name else given
        with about(policy.name):
            if own.net.body == "auto":
                seen = without_mask(policy.spaces.obs)[0] if policy.algo_class().uses_mask else policy.spaces.obs
                body = "cnn" if is_image(seen) else "mlp"
                refuse_unused(replace(own, net=replace(own.net, body=body)), given_here)
            for name, why in policy.algo_class().unused_here(policy.spaces, policy.loss is not None).items():
                if name in given_here:
                    raise ConfigError(f"{name} was given, but has no effect: {why}. Leave it out.")
    if given.get("log.clip_every_steps") and lanes_of(env) is not None:
        raise ConfigError(
            f"log.clip_every_steps was given, but has no effect: {env_name(env)} is an env object that training uses, "
            "and a clip needs its own env. Give a function that makes one, or leave the setting out."
        )
    for name in ("eval_episodes", "eval_sampled", *EVAL_LIMITS):
        if given.get(name) and not can_evaluate(env):
            raise ConfigError(f"{name}={given[name]} was given, but {NO_EVALUATION}")


def refuse_pool(plan: Plan, given: Mapping[str, Any]) -> None:
    """Refuses settings of a pool once another world is chosen."""
    if plan.config.world.kind == "pool":
        return
    for name in sorted(set(POOL_ONLY) & set(given)):
        raise ConfigError(
            f"{name} was given, but has no effect: the world is not a pool ({' '.join(plan.notes[:1]) or 'a vector env'}). "
            "Leave it out, or set world.kind to pool."
        )


def can_evaluate(env: Any) -> bool:
    """Not for a VectorEnv object: training is in the middle of its episodes."""
    return not hasattr(env, "num_envs") or isinstance(env, type)


def lanes_of(env: Any) -> int | None:
    """The lanes of an env object: 1, or those of a VectorEnv. None where the settings decide."""
    if not hasattr(env, "step") or isinstance(env, type):
        return None
    return int(getattr(env, "num_envs", 1))
