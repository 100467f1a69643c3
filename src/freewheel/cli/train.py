"""`freewheel train ENV`: trains, shows it, saves it, evaluates it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated

import tyro

from freewheel.config import Config, assemble
from freewheel.config.assemble import known
from freewheel.config.check import value_of
from freewheel.errors import ConfigError
from freewheel.run.stopping import ends_at_once
from freewheel.run.threads import limit_threads

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
class TrainArgs(Config):
    """Train an agent. ENV is a Gymnasium id, or module:function that makes the env; with --resume there is none.

    Where there is a preset for the env, its settings are the defaults below.
    """

    env: tyro.conf.Suppress[str] = ""

    preset: str = "auto"
    """auto: the env's own or its family's, if there is one; none; a preset's name; a TOML file; or several with commas, of which later ones win."""

    resume: str | None = None
    """Go on with this run, by name or folder."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the figures as a JSON object on the last line."""

    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Show no progress."""


OURS = ("preset", "resume", "json", "quiet")


def main(arguments: Sequence[str]) -> int:
    words = [_long(word) for word in arguments]
    env = words.pop(0) if words and not words[0].startswith("-") else ""
    named = given_names(words)
    args = tyro.cli(TrainArgs, prog="freewheel train ENV", args=words, default=_defaults(env, words))
    given = {name: value_of(args, name) for name in named if name in known()}
    limit_threads(args.learner.threads or 1)  # before torch is imported
    if args.runtime != "sequential" and (args.algo != "ppo" or args.runtime == "local"):
        from freewheel.run.guard import start_forkserver

        start_forkserver()  # it loads what the roles need while this process loads the same
    with ends_at_once():
        from freewheel.train import exit_code, train

    if args.resume is not None:
        if env:
            raise ConfigError(f"--resume {args.resume} goes on with that run's env; leave {env} out.")
        run = train(resume=args.resume, settings=given, preset=args.preset, is_quiet=args.quiet)
    else:
        if not env:
            raise ConfigError("an env is needed: freewheel train CartPole-v1, or module:function. Or --resume RUN.")
        run = train(env, settings=given, preset=args.preset, is_quiet=args.quiet)
    _show(run, args.json)
    return exit_code(run)


def _long(word: str) -> str:
    name, equals, value = word.partition("=")
    return SHORT.get(name, name) + equals + value


def given_names(words: Sequence[str]) -> list[str]:
    """The dotted names of the flags among these words: --learner.lr, --no-q.double and --q.no-double."""
    found = []
    for word in words:
        if not word.startswith("--"):
            continue
        name = word[2:].partition("=")[0].replace("-", "_")
        part, _, last = name.rpartition(".")
        candidates = [name, ".".join(filter(None, (part, last.removeprefix("no_")))), name.removeprefix("no_")]
        found += [candidate for candidate in candidates if candidate in known()][:1]
    return found


def _defaults(env: str, words: Sequence[str]) -> TrainArgs:
    """The preset's settings, so that --help shows what will be used."""
    algo, preset = _value(words, "algo"), _value(words, "preset") or "auto"
    config = assemble(env, {} if algo is None else {"algo": algo}, preset)
    values = {f.name: getattr(config, f.name) for f in fields(Config)}
    return TrainArgs(**{**values, "preset": preset})


def _value(words: Sequence[str], name: str) -> str | None:
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
