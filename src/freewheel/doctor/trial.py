"""An examination in a process of its own: what hangs or crashes there becomes a fact here."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from typing import IO, Any

from freewheel.config import Config, to_dict
from freewheel.doctor.facts import Fact
from freewheel.errors import ConfigError

# No stage of an env's examination may be silent for longer.
TIMEOUT_S = 30.0
# Torch from a cold disk on a busy machine.
LOAD_TIMEOUT_S = 120.0
# After the child's own deadline, at which it writes its stack down.
GRACE_S = 2.0
TAIL_LINES = 20

LOADING = "loading torch"
# The folder of the call is looked in last, as by the `freewheel` command: nothing there takes the place of a library.
CHILD = "import sys; sys.path[:] = [p for p in sys.path if p]; from freewheel.doctor.examine import main; main(*sys.argv[1:])"


def try_apart(config: Config, timeout_s: float = TIMEOUT_S) -> list[Fact]:
    """The facts that need torch, and where `config.env` names one those of the env. Always ends.

    An env that cannot be found is a ConfigError.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        facts, stage, ended, quiet_bytes = _read_facts(config, timeout_s, out, err)
        said = _text(err)
        if stage is not None:
            cause = ended or f"gave no answer within {LOAD_TIMEOUT_S if stage == LOADING else timeout_s:.0f} s"
            facts.append(_cut_short(config.env, stage, cause, said))
        if config.env:
            facts += _prints(config.env, _text(out), said.encode()[quiet_bytes:].decode(errors="replace"), stage)
    return facts


def _read_facts(
    config: Config, timeout_s: float, out: IO[bytes], err: IO[bytes]
) -> tuple[list[Fact], str | None, str, int]:
    """Facts; the stage that was not finished, if one was not; how the child ended; bytes of stderr before the env."""
    reader, writer = os.pipe()
    with open(reader, "rb", buffering=0) as pipe:
        try:
            child = subprocess.Popen(
                [sys.executable, "-c", CHILD, str(writer), str(timeout_s), json.dumps(to_dict(config))],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                pass_fds=(writer,),
                start_new_session=True,  # Ctrl-C is ours, and what the env started ends with it
            )
        finally:
            os.close(writer)
        facts: list[Fact] = []
        stage, quiet_bytes, is_done = LOADING, 0, False
        lines = _Lines(pipe)
        try:
            while (line := lines.next(GRACE_S + (LOAD_TIMEOUT_S if stage == LOADING else timeout_s))) is not None:
                message: dict[str, Any] = json.loads(line)
                if "refused" in message:
                    raise ConfigError(message["refused"])
                if "fact" in message:
                    facts.append(Fact(**message["fact"]))
                stage = message.get("stage", stage)
                quiet_bytes = message.get("quiet_bytes", quiet_bytes)
                is_done = is_done or "done" in message
            ended = _ended(child) if lines.is_over else ""
        finally:
            with contextlib.suppress(ProcessLookupError):  # nobody of its session is left
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    return facts, None if is_done else stage, ended, quiet_bytes


class _Lines:
    """Lines of a pipe, each awaited with a deadline."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self.is_over = False
        self._pipe, self._unread = pipe, b""

    def next(self, timeout_s: float) -> bytes | None:
        """None when the other end was closed (`is_over`), or when nothing came in time."""
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._pipe], [], [], left)[0]:
                return None
            part = os.read(self._pipe.fileno(), 65536)
            if not part:
                self.is_over = True
                return None
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return line


def _ended(child: subprocess.Popen[bytes]) -> str:
    try:
        code = child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        return "closed its descriptors"
    return f"died by {signal.Signals(-code).name}" if code < 0 else f"ended the process with exit code {code}"


def _cut_short(env: str, stage: str, cause: str, said: str) -> Fact:
    """What the child could not tell any more."""
    who = env if env and stage != LOADING else "the process"
    cure = "The lines above show where." if said else "It left no message."
    if stage == LOADING:
        cure = "Try: python -c 'import torch'. Reinstall torch if that fails too."
    elif "SIGKILL" in cause:
        cure = "Somebody killed it; where memory ran out, that was the kernel."
    trace = "\n".join(said.splitlines()[-TAIL_LINES:])
    return Fact("env" if env else "software", stage, f"{who} {cause} while {stage}", None, "problem", cure, trace)


def _prints(env: str, out: str, err: str, stage: str | None) -> list[Fact]:
    """What the env wrote where a run shows its progress."""
    found = []
    lines = out.splitlines()
    if lines:
        shown = f"{len(lines):,} lines on standard output, the first: {lines[0][:80]!r}"
        cure = "Printing costs time and mixes with the progress of the run: take it out of the env."
        found.append(Fact("env", "prints", shown, len(lines), "warning", cure))
    lines = [line for line in err.splitlines() if line.strip()]
    if lines and stage is None:
        found.append(
            Fact("env", "messages", f"{len(lines):,} lines on standard error, the first: {lines[0][:160]}", lines[:5])
        )
    return found


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
