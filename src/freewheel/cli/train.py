"""`freewheel train ENV`: trains, shows it, saves it, evaluates it."""

from __future__ import annotations

import json
import sys
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from freewheel.config import Config, assemble, find_algo
from freewheel.config.algos import names as algo_names
from freewheel.config.assemble import known
from freewheel.config.check import of_other_algos, value_of
from freewheel.errors import ConfigError
from freewheel.imports import nearest
from freewheel.machine.process import start_forkserver
from freewheel.machine.signals import ends_at_once
from freewheel.machine.threads import limit_threads

if TYPE_CHECKING:
    from freewheel.train import Run

# What is said often, said shortly.
SHORT = {
    "--collect": "--rollout.collect",
    "--compile": "--learner.compile",
    "--free": "--local.free",
    "--lanes": "--world.lanes",
    "--lr": "--learner.lr",
    "--precision": "--learner.precision",
    "--profile": "--local.profile",
    "--world": "--world.kind",
}


@dataclass(frozen=True)
class TrainFlags:
    """What the command takes beside the settings of a run."""

    preset: str = "auto"
    """auto: the env's own or its family's, if there is one; none; a preset's name; a TOML file; or several with commas, of which later ones win."""

    resume: str | None = None
    """Go on with this run, by name or folder."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the figures as a JSON object on the last line."""

    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Show no progress."""


DOC = """Train an agent. ENV is a Gymnasium id, or module:function that makes the env; with --resume there is none.

Where there is a preset for the env, its settings are the defaults below. Settings are those of the algorithm: --algo NAME --help shows them."""


def main(arguments: Sequence[str]) -> int:
    words = [_long(word) for word in arguments]
    env = words.pop(0) if words and not words[0].startswith("-") else ""
    preset, algo = value_among(words, "preset") or "auto", value_among(words, "algo") or "dqn"
    limit_threads(_threads(words))  # before torch is imported, which algorithms do
    if value_among(words, "runtime") != "sequential" and not {"-h", "--help"} & set(words):
        start_forkserver()  # it loads what the roles need while this process loads the same
    config = assemble(env, {"algo": algo}, preset)
    settings: Any = type(config)
    named = given_names(words, known(settings))
    refuse_unknown(words, config, TrainFlags)
    default = defaults_of(config, TrainFlags, preset)
    args: Any = tyro.cli(type(default), prog="freewheel train ENV", args=words, default=default, description=DOC)
    given = {name: value_of(args, name) for name in named}
    with ends_at_once():
        from freewheel.train import train

    if args.resume is not None:
        if env:
            raise ConfigError(f"--resume {args.resume} goes on with that run's env; leave {env} out.")
        run = train(resume=args.resume, settings=given, preset=args.preset, is_quiet=args.quiet)
    else:
        if not env:
            raise ConfigError("an env is needed: freewheel train CartPole-v1, or module:function. Or --resume RUN.")
        run = train(env, settings=given, preset=args.preset, is_quiet=args.quiet)
    _show(run, args.json)
    return run.exit_code


def flags_for(config: Config, flags: type) -> type:
    """The settings of a run's algorithm as flags of a command, and those of the command. What the algorithm never uses is hidden."""
    settings: Any = type(config)
    hidden = of_other_algos(config)
    kinds = typing.get_type_hints(settings)
    parts: list[tuple[str, Any, Any]] = [("env", Annotated[str, tyro.conf.Suppress], "")]
    for part in fields(settings):
        section = getattr(config, part.name)
        own = [f for f in fields(section) if f"{part.name}.{f.name}" in hidden] if is_dataclass(section) else []
        if own:
            shown = typing.get_type_hints(type(section))
            less = [(f.name, Annotated[shown[f.name], tyro.conf.Suppress], field(default=f.default)) for f in own]
            made = make_dataclass(type(section).__name__, less, bases=(type(section),), frozen=True)
            parts.append((part.name, made, field(default_factory=made)))
        elif part.name in hidden:
            parts.append((part.name, Annotated[kinds[part.name], tyro.conf.Suppress], part.default))
    return make_dataclass("Flags", parts, bases=(settings, flags), frozen=True)


def defaults_of(config: Config, flags: type, preset: str) -> Any:
    """The settings of the presets, so that --help shows what will be used."""
    made = flags_for(config, flags)
    kinds = typing.get_type_hints(made)
    values = {}
    for part in fields(config):
        section = getattr(config, part.name)
        values[part.name] = kinds[part.name](**vars(section)) if is_dataclass(section) else section
    return made(**values, preset=preset)


def _threads(words: Sequence[str]) -> int:
    asked = value_among(words, "learner.threads") or "1"
    return int(asked) if asked.isdigit() and int(asked) > 0 else 1


def _long(word: str) -> str:
    name, equals, value = word.partition("=")
    return SHORT.get(name, name) + equals + value


def given_names(words: Sequence[str], known: Mapping[str, Any]) -> list[str]:
    """The dotted names of the flags among these words: --learner.lr, --no-q.double and --q.no-double."""
    found = []
    for word in words:
        if not word.startswith("--"):
            continue
        name = word[2:].partition("=")[0].replace("-", "_")
        part, _, last = name.rpartition(".")
        candidates = [name, ".".join(filter(None, (part, last.removeprefix("no_")))), name.removeprefix("no_")]
        found += [candidate for candidate in candidates if candidate in known][:1]
    return found


def refuse_unknown(words: Sequence[str], config: Config, flags: type) -> None:
    """A flag that neither the algorithm nor the command has: whose it is, or which one was meant."""
    settings: Any = type(config)
    own = {**known(settings), **{f.name: f.type for f in fields(flags)}, "help": bool}
    hidden = of_other_algos(config)
    for word in words:
        found = given_names([word], own)
        if found and found[0] in hidden:
            raise ConfigError(f"{found[0]} was given, but has no effect: {hidden[found[0]]}. Leave it out.")
        if found or not word.startswith("--"):
            continue
        name = word[2:].partition("=")[0].replace("-", "_")
        others = [algo for algo in algo_names() if given_names([word], known(find_algo(algo).Settings))]
        if others:
            raise ConfigError(
                f"{name} was given, but algo={config.algo} has no such setting: it belongs to {', '.join(others)}. Leave it out."
            )
        near = nearest(name, own).replace("mean ", "mean --").replace(" or ", " or --")
        raise ConfigError(f"algo={config.algo} has no setting {name!r}{near}")


def value_among(words: Sequence[str], name: str) -> str | None:
    """What a flag was given among these words."""
    for word, following in zip(words, [*words[1:], None], strict=False):
        if word == f"--{name}":
            return following
        if word.startswith(f"--{name}="):
            return word.partition("=")[2]
    return None


def _show(run: Run, as_json: bool) -> None:
    from freewheel.cli.figures import table
    from freewheel.report.account import table as account_table

    if sys.stderr.isatty() or not as_json:
        stream = sys.stderr if as_json else sys.stdout
        print(table(run.result), file=stream)
        if run.account is not None:
            print(f"\n{account_table(run.account)}", file=stream)
    if as_json:
        print(json.dumps(run.result))
