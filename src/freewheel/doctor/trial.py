"""An examination in a throwaway process: an env that hangs or crashes there becomes a fact here."""

from __future__ import annotations

import faulthandler
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from freewheel.config import Config, from_dict
from freewheel.doctor.facts import Fact
from freewheel.errors import ConfigError
from freewheel.machine.threads import limit_threads
from freewheel.machine.trial import throwaway

# No stage of an env's examination may be silent for longer.
TIMEOUT_S = 30.0
# Importing torch from a cold disk on a busy machine.
LOAD_TIMEOUT_S = 120.0
TAIL_LINES = 20

LOADING = "loading torch"


def try_apart(config: Config, timeout_s: float = TIMEOUT_S) -> list[Fact]:
    """The facts that need torch, and if `config.env` names an env, the facts about it. Always returns.

    Raises ConfigError for an env that does not exist.
    """
    with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
        work = (_work, asdict(config), (out.name, err.name))
        report = throwaway(*work, timeout_s=timeout_s, start_timeout_s=LOAD_TIMEOUT_S, method="spawn")
        printed, said = _text(out.read()), err.read()
    last = {name: value for message in report.told for name, value in message.items()}
    if "refused" in last:
        raise ConfigError(last["refused"])
    facts = [Fact(**message["fact"]) for message in report.told if "fact" in message]
    if report.failure:
        facts.append(_cut_short(config.env, last.get("stage", LOADING), report.failure, _text(said)))
    if config.env:
        messages = "" if report.failure else _text(said[last.get("quiet_bytes", 0) :])
        facts += _prints(printed, messages)
    return facts


def _work(settings: dict[str, Any], files: tuple[str, str], tell: Callable[..., None]) -> None:
    """In the throwaway process. What it prints goes to `files`."""
    for number, name in enumerate(files, 1):
        os.dup2(os.open(name, os.O_WRONLY), number)
    faulthandler.enable()  # a crash leaves its stack on stderr
    config = from_dict(settings)
    limit_threads(config.learner.threads or 1)  # before torch is imported
    from freewheel.doctor.examine import device_fact, examine

    tell({"fact": vars(device_fact(config.learner.device))})
    if config.env:
        examine(config, tell)
    sys.stdout.flush()


def _cut_short(env: str, stage: str, failure: str, said: str) -> Fact:
    """What the process could not report any more."""
    who = env if env and stage != LOADING else "the examination"
    cure = "The lines above show where." if said else "It left no message."
    if stage == LOADING:
        cure = "Try: python -c 'import torch'. Reinstall torch if that fails too."
    elif "SIGKILL" in failure:
        cure = "Another program killed it; if memory ran out, it was the kernel."
    trace = "\n".join(said.splitlines()[-TAIL_LINES:])
    return Fact("env" if env else "software", stage, f"{who}: {failure} while {stage}", None, "problem", cure, trace)


def _prints(out: str, err: str) -> list[Fact]:
    """What the env printed where a run shows its progress."""
    found = []
    lines = out.splitlines()
    if lines:
        shown = f"{len(lines):,} lines on standard output, the first: {lines[0][:80]!r}"
        cure = "Printing costs time and mixes with the progress of the run: remove it from the env."
        found.append(Fact("env", "prints", shown, len(lines), "warning", cure))
    lines = [line for line in err.splitlines() if line.strip()]
    if lines:
        shown = f"{len(lines):,} lines on standard error, the first: {lines[0][:160]}"
        found.append(Fact("env", "messages", shown, lines[:5]))
    return found


def _text(data: bytes) -> str:
    return data.decode(errors="replace")
