"""Which world is the best for an env: measured in a process that is thrown away, so that an env that hangs or crashes there does no harm here."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import multiprocessing
import os
import resource
import signal
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from freewheel.config import WorldConfig
from freewheel.run import role
from freewheel.run.guard import owner_id, start_forkserver
from freewheel.run.leaving import without_main
from freewheel.run.machine import num_cores
from freewheel.worlds.make import choose_world, is_settled
from freewheel.worlds.measure import Choice, unmeasured
from freewheel.worlds.pool import START_S
from freewheel.worlds.pool_member import how_it_ended

# What a measurement decides.
DECIDED = ("kind", "workers", "threads")
# After the child's own deadline, at which it writes its stack down.
GRACE_S = 1.0
KILL_S = 5.0


def choose_apart(env: Any, config: WorldConfig, actors: int, step_timeout_s: float) -> Choice:
    """`choose_world`, which always ends: an env that hangs, crashes or raises is stepped inline, where the run deals with it."""
    if is_settled(env, config):
        return Choice(config, "")
    start_forkserver()
    context = multiprocessing.get_context("forkserver")
    reader, writer = context.Pipe(duplex=False)
    args = (env, config, num_cores(), actors, step_timeout_s, os.getpid(), owner_id(), writer)
    process = context.Process(target=_child, args=args)
    try:
        with reader, without_main(env), writer:
            process.start()
            writer.close()
            told = _listen(reader, step_timeout_s)
        if told is None:
            process.join(GRACE_S)
            told = {"failed": f"its process {how_it_ended(process.exitcode)}"}
    finally:
        if process.pid is not None:
            process.kill()  # before it has a group of its own, too
            with contextlib.suppress(ProcessLookupError):  # nobody of its group is left
                os.killpg(process.pid, signal.SIGKILL)
            process.join(KILL_S)
        with contextlib.suppress(ValueError):  # it could not be killed
            process.close()
    if "failed" in told:
        return unmeasured(config, told["failed"], num_cores())
    return Choice(replace(config, **{name: told[name] for name in DECIDED}), told["reason"])


def _listen(reader: Connection, step_timeout_s: float) -> dict[str, Any] | None:
    """What was found out, or why not; None when the other end was closed without a word."""
    limit_s = max(START_S, step_timeout_s)  # to make an env: other programs may have to start
    try:
        while reader.poll(limit_s + GRACE_S):
            told: dict[str, Any] = json.loads(reader.recv_bytes())
            if told:
                return told
            limit_s = step_timeout_s
    except EOFError:
        return None
    return {"failed": f"no answer within {limit_s:g} s"}


def _child(
    env: Any,
    config: WorldConfig,
    cores: int,
    actors: int,
    step_timeout_s: float,
    parent: int,
    owner: str,
    writer: Connection,
) -> None:
    role.begin(parent, owner)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # its death is no news

    def tell_alive() -> None:
        # Works even while C code holds the interpreter: the stack goes to stderr.
        faulthandler.dump_traceback_later(step_timeout_s)
        writer.send_bytes(b"{}")

    faulthandler.dump_traceback_later(max(START_S, step_timeout_s))
    told: dict[str, Any]
    try:
        choice = choose_world(env, config, cores, actors, tell_alive)
        told = {name: getattr(choice.config, name) for name in DECIDED} | {"reason": choice.reason}
    except Exception as error:  # it comes again where the run makes its envs, and is told there
        told = {"failed": f"{type(error).__name__}: {error}"}
    faulthandler.cancel_dump_traceback_later()
    writer.send_bytes(json.dumps(told).encode())
