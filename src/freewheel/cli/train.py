"""`freewheel train ENV`: trains an agent, saves and evaluates it. Also reads the settings of other commands."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from freewheel.config import Config, assemble, find_algo
from freewheel.config.algos import names as algo_names
from freewheel.config.assemble import known
from freewheel.config.check import of_other_algos, value_of
from freewheel.errors import ConfigError, FreewheelError
from freewheel.imports import nearest
from freewheel.machine.forkserver import start_forkserver
from freewheel.machine.signals import ends_at_once
from freewheel.machine.threads import limit_threads
from freewheel.report.progress import number

if TYPE_CHECKING:
    from freewheel.train import Run

# Short forms of common flags.
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
    """Flags of the command itself."""

    preset: str = "auto"
    """auto (the preset of the env or its family, if there is one), none, a preset's name, or a TOML file. Several are joined with commas; later ones win."""

    resume: str | None = None
    """Continue this run, by name or folder."""

    trust: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """With --resume: import the code that the run names, though somebody else may have made its folder."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the result as a JSON object on the last line."""

    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Do not show progress."""


DOC = """Train an agent. ENV is a Gymnasium id, or module:function that makes the env; leave it out with --resume.

The flags are those of the algorithm (--algo NAME --help), and their defaults those of the env's preset, if it has one.

Short forms: """ + ", ".join(f"{short} ({long})" for short, long in SHORT.items())


def main(arguments: Sequence[str]) -> int:
    words = long_flags(arguments)
    limit_threads(_threads(words))  # before torch is imported, which algorithms do
    if value_among(words, "runtime") != "sequential" and not {"-h", "--help"} & set(words):
        start_forkserver()  # it loads what the roles need while this process loads the same
    with ends_at_once():
        env, args, given = parse(words, TrainFlags, "freewheel train ENV", DOC)
        from freewheel.train import train

    if env and args.resume is not None:
        raise ConfigError(f"--resume {args.resume} continues that run in its own env: leave {env} out.")
    if not env and args.resume is None:
        raise ConfigError("no env was given. Try freewheel train CartPole-v1, module:function, or --resume RUN.")
    flags = {"preset": args.preset, "is_quiet": args.quiet, "trust": args.trust}
    try:
        run = train(env or None, resume=args.resume, settings=given, **flags)
    except FreewheelError as error:
        if error.run is not None:  # what the training was is told, and that something else failed
            _show(error.run, args.json)
        raise
    # Without a terminal there is nobody to show it to.
    with contextlib.suppress(OSError) if run.signal == signal.SIGHUP else contextlib.nullcontext():
        _show(run, args.json)
    return run.exit_code


def parse(arguments: Sequence[str], flags: type, prog: str, description: str) -> tuple[str, Any, dict[str, Any]]:
    """Reads the words of a command that takes an env and settings: the env, all values, and the settings that were given."""
    words = long_flags(arguments)
    env = words.pop(0) if words and not words[0].startswith("-") else ""
    preset = value_among(words, "preset") or "auto"
    config = assemble(env, {"algo": value_among(words, "algo") or "dqn"}, preset)
    refuse_unknown(words, config, flags)
    default = _defaults(config, flags, preset)
    args = tyro.cli(type(default), prog=prog, args=words, default=default, description=description)
    settings: Any = type(config)
    return env, args, {name: value_of(args, name) for name in given_names(words, known(settings))}


def long_flags(words: Sequence[str]) -> list[str]:
    parts = [word.partition("=") for word in words]
    return [SHORT.get(name, name) + equals + value for name, equals, value in parts]


def _defaults(config: Config, flags: type, preset: str) -> Any:
    """The settings of the algorithm and the flags of the command as one object, with the values of the preset.

    Its type hides from --help what the algorithm never uses.
    """
    settings: Any = type(config)
    hidden, kinds = of_other_algos(config), typing.get_type_hints(settings)
    parts: list[tuple[str, Any, Any]] = [("env", Annotated[str, tyro.conf.Suppress], "")]
    values = {part.name: getattr(config, part.name) for part in fields(settings)}
    for name, section in values.items():
        own = [f for f in fields(section) if f"{name}.{f.name}" in hidden] if is_dataclass(section) else []
        if own:
            shown = typing.get_type_hints(type(section))
            less = [(f.name, Annotated[shown[f.name], tyro.conf.Suppress], field(default=f.default)) for f in own]
            made = make_dataclass(type(section).__name__, less, bases=(type(section),), frozen=True)
            parts.append((name, made, field(default_factory=made)))
            values[name] = made(**vars(section))
        elif name in hidden:
            parts.append((name, Annotated[kinds[name], tyro.conf.Suppress], field(default=section)))
    return make_dataclass("Flags", parts, bases=(settings, flags), frozen=True)(**values, preset=preset)


def _threads(words: Sequence[str]) -> int:
    asked = value_among(words, "learner.threads") or "1"
    return int(asked) if asked.isdigit() and int(asked) > 0 else 1


def given_names(words: Sequence[str], known: Mapping[str, Any]) -> list[str]:
    """The dotted names of the flags among these words, such as --learner.lr, --no-q.double or --q.no-double."""
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
    """Refuses a flag that neither the algorithm nor the command has, and says which algorithm has it or what is similar."""
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
                f"algo={config.algo} has no setting {name}: it belongs to {', '.join(others)}. Leave it out."
            )
        near = nearest(name, own).replace("mean ", "mean --").replace(" or ", " or --")
        raise ConfigError(f"algo={config.algo} has no setting {name!r}{near}")


def value_among(words: Sequence[str], name: str) -> str | None:
    """The value of a flag among these words; None if it is not there."""
    for word, following in zip(words, [*words[1:], None], strict=False):
        if word == f"--{name}":
            return following
        if word.startswith(f"--{name}="):
            return word.partition("=")[2]
    return None


def _show(run: Run, as_json: bool) -> None:
    from freewheel.report.account import table

    if sys.stderr.isatty() or not as_json:
        account = f"\n\n{table(run.account)}" if run.account is not None else ""
        print(_summary(run) + account, file=sys.stderr if as_json else sys.stdout)
    if as_json:
        print(json.dumps(run.result))


def near(path: str | Path) -> str:
    """A path from the current folder, where it is below it."""
    with contextlib.suppress(ValueError, OSError):
        return str(Path(path).relative_to(Path.cwd()))
    return str(path)


def _summary(run: Run) -> str:
    result = run.result

    def shown(name: str) -> str:
        value = result.get(name)
        return "-" if value is None else number(value) if isinstance(value, float) else f"{value:,}"

    lines = [
        f"run             {near(result['run'])}",
        f"steps           {shown('steps')} in {shown('seconds')} s ({shown('steps_per_s')}/s)",
        f"updates         {shown('updates')} ({shown('updates_per_s')}/s), ratio {shown('ratio')}",
        f"return          {shown('return_mean')} (mean of the last 100 training episodes)",
    ]
    if result.get("eval_return_mean") is not None:
        how = "sampled actions" if result.get("eval_sampled") else "greedy"
        cut = f"; {shown('eval_cut_episodes')} episodes cut" if result.get("eval_cut_episodes") else ""
        lines.append(f"evaluation      {shown('eval_return_mean')} ({how}{cut})")
    if result["steps"] < run.config.steps:
        lines.append(f"stopped         go on with: freewheel train --resume {near(run.folder)}")
    return "\n".join(lines)
