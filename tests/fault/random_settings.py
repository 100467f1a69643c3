"""Random settings, made from a seed: most of them possible, some beyond what any run can have."""

from __future__ import annotations

import dataclasses
import math
import random
import typing
from dataclasses import dataclass
from typing import Any

from freewheel.config import assemble, find_algo
from freewheel.config.algos import names
from freewheel.config.check import unused
from freewheel.config.ranges import Range
from freewheel.errors import ConfigError

# A run of a few milliseconds, which most settings leave as it is.
SMALL: dict[str, Any] = {
    "runtime": "sequential",
    "steps": 60,
    "world.lanes": 2,
    "world.kind": "inline",
    "net.hidden": (8,),
    "eval_episodes": 1,
    "log.tensorboard": False,
}
REPLAY = {"learner.batch_size": 8, "learner.ratio": 8.0, "replay.warmup_rows": 16, "replay.rows": 512}
ROLLOUT = {"rollout.rows": 8, "ppo.minibatches": 2}
# Settings whose possible values take longer than a test has, start processes, or need no test of their own.
FIXED = ("env", "algo", "runtime", "learner.compile", "learner.workers", "learner.threads", "log.tensorboard")
MOST = {"eval_episodes": 3, "world.lanes": 64, "world.image_size": 100, "steps": 10**6}

ENVS = ("Vector", "Continuous", "Image", "Masked", "Parts", "HugeActions", "HugeObs")
FITTING = {
    "sac": ("Continuous",),
    "ppo": ("Vector", "Continuous", "Image", "Masked", "Parts"),
    "appo": ("Vector", "Continuous", "Masked", "Parts"),
}
INTEGERS = (0, 1, 2, 3, -1, 1 << 16, (1 << 31) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, 10**400, 10**5_000)
FLOATS = (0.0, 5e-324, 1e-38, 1e-9, 0.5, 1.0, 2.0, 1e6, 3e38, 1e39, 1e308, -1.0, math.inf, math.nan)
SIZES = (
    (),
    (1,),
    (16, 8),
    (3,) * 3,
    (0,),
    (-1,),
    (10**9,),
    (10**5,) * 2,
    (1 << 63,),
    (10**400,),
    (2,) * 40,
    (2,) * 5_000,
)
NAMES = ((), ("x",), ("no_such_module:Log",), ("json:loads",), ("",))
OTHER_TYPES = (None, True, "", "12", [], {}, [None], "x" * 5_000, b"bytes", 1.5, (1, "a"))
TEXTS = {
    "world.kind": ("auto", "inline", "vector", "inlin", "no_such_module:World", "json:loads", ""),
    "world.kwargs": ("{}", "[", "[1]", '{"nope": 1}', "[" * 100_000, "9" * 10_000, '{"nope": 1e999}', "", "\0"),
    "net.body": ("auto", "mlp", "cnn", "impala", "no_such:Net", "json:loads", "given:x", ":", "torch.nn:Flatten"),
    "learner.device": ("auto", "cpu", "cuda", "cuda:99", "mps", "tpu", "cuda:" + "9" * 400),
    "local.act_device": ("cpu", "cuda", "cuda:99", "gpu"),
    "log.folder": ("x" * 5_000, "/proc/no", "/dev/null", "a\0b", "", "runs/" * 2_000),
}


@dataclass(frozen=True)
class Case:
    seed: int
    env: str
    settings: dict[str, Any]

    def __str__(self) -> str:
        return f"case({self.seed}): {self.env} { ({name: brief(value) for name, value in self.settings.items()}) }"


def brief(value: Any) -> Any:
    is_long = isinstance(value, (str, tuple)) and len(value) > 100
    is_huge = isinstance(value, int) and abs(value) > 1 << 64
    return f"({type(value).__name__}, {len(value)} parts)" if is_long else "(a huge number)" if is_huge else value


def case(seed: int) -> Case:
    """An env, an algorithm and one to six of its settings."""
    rng = random.Random(seed)
    algo = rng.choice(names())
    kinds, defaults = settings_of(find_algo(algo).Settings)
    given = {**SMALL, **(ROLLOUT if "rollout.rows" in kinds else REPLAY), "algo": algo}
    free = [name for name in kinds if name not in FIXED]
    for name in rng.sample(free, rng.randint(1, 6)):
        given[name] = value_of(rng, name, kinds[name], given.get(name, defaults[name]))
    if rng.random() < 0.9:
        given = with_effect(given)
    fitting = FITTING.get(algo, ("Vector", "Vector", "Image"))
    return Case(seed, f"random_envs:{rng.choice(fitting if rng.random() < 0.9 else ENVS)}", given)


def settings_of(settings: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The types of all settings, with their ranges, and the defaults; both by dotted name."""
    kinds: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    made = settings(env="")
    for name, kind in typing.get_type_hints(settings, include_extras=True).items():
        if dataclasses.is_dataclass(kind):
            inside = typing.get_type_hints(kind, include_extras=True)
            kinds |= {f"{name}.{own}": of for own, of in inside.items()}
            defaults |= {f"{name}.{own}": getattr(getattr(made, name), own) for own in inside}
        else:
            kinds[name], defaults[name] = kind, getattr(made, name)
    return kinds, defaults


def with_effect(given: dict[str, Any]) -> dict[str, Any]:
    """Without the settings that would be refused because they have no effect: they would hide the others."""
    try:
        without = unused(assemble("", given, "none", refuses=False))
    except ConfigError:
        return given
    return {name: value for name, value in given.items() if name not in without and not name.startswith("local.")}


def value_of(rng: random.Random, name: str, kind: Any, default: Any) -> Any:
    """A value near the default, at the ends of its range, beyond them, or of another type."""
    if rng.random() < 0.05:
        return rng.choice(OTHER_TYPES)
    if name in TEXTS:
        return rng.choice(TEXTS[name])
    plain = typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind
    if typing.get_origin(plain) is typing.Literal:
        return rng.choice((*typing.get_args(plain), "no"))
    if typing.get_origin(plain) is tuple:
        return rng.choice(SIZES if int in typing.get_args(plain) else NAMES)
    if plain is bool:
        return rng.random() < 0.5
    ends = [end for part in getattr(kind, "__metadata__", ()) if isinstance(part, Range) for end in part[:2]]
    if rng.random() < 0.6:
        chosen: Any = (default or 1) * 2 ** rng.uniform(-3, 3)
    else:
        chosen = rng.choice([*ends, *(INTEGERS if plain is int else FLOATS)])
    chosen = chosen if plain is not int else 1 << 63 if chosen == math.inf else int(chosen)
    return MOST[name] if name in MOST and MOST[name] < chosen < 1 << 63 else chosen
