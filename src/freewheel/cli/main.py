"""`freewheel COMMAND`: runs the command, and turns our errors into a message and an exit code."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from freewheel.errors import ConfigError, EnvError, FreewheelError, RoleLost
from freewheel.imports import nearest
from freewheel.machine.limits import system_errors_named
from freewheel.machine.process import mark_programs
from freewheel.machine.signals import end, ends_at_once, remember_interrupts, was_interrupted

# Each command is a module of this package with a main(args); it is imported only when it is called.
COMMANDS = {
    "train": "train an agent and evaluate it",
    "eval": "evaluate a trained agent",
    "play": "film a trained agent as GIF or MP4",
    "doctor": "check the machine and an env before training",
    "runs": "list or remove runs",
    "bench": "measure the parts of Freewheel on this machine",
}

USER_MUST_ACT, FAILED, INTERRUPTED = 2, 1, 130
# For threads and exit functions that an env, a log or a callback left, when the result is printed.
LEAVE_S = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code. Without arguments this process is the command, and ends with it."""
    if arguments is None:
        be_the_program()
    return command(arguments)


def be_the_program() -> NoReturn:
    remember_interrupts()
    mark_programs()
    try:
        code = command(sys.argv[1:])
    except Exception:
        traceback.print_exc()
        code = FAILED
    end(code, LEAVE_S)


def command(words: Sequence[str]) -> int:
    if not words:
        print(usage(), file=sys.stderr)
        return USER_MUST_ACT
    if words[0] in ("-h", "--help"):
        print(usage())
        return 0
    if words[0] == "--version":
        # Takes longer to import than all else here, and a Ctrl-C in it would show a traceback.
        from importlib.metadata import version

        print(version("freewheel"))
        return 0
    try:
        if words[0] not in COMMANDS:
            raise ConfigError(f"unknown command {words[0]!r}{nearest(words[0], COMMANDS)}")
        with ends_at_once():
            module = importlib.import_module(f"freewheel.cli.{words[0]}")
        with system_errors_named():
            code = run(module, words[1:])
    except FreewheelError as error:
        if error.__cause__ is not None and isinstance(error, (EnvError, RoleLost)):
            traceback.print_exception(error.__cause__)  # it shows where the user's code failed
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return USER_MUST_ACT if isinstance(error, ConfigError) else FAILED
    except BrokenPipeError:
        # The reader of our output is gone. Python flushes at exit, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return code or 0


def run(command: ModuleType, words: Sequence[str]) -> int | None:
    """The command's exit code. An error after a Ctrl-C that Python dropped is that Ctrl-C: it broke an import, for instance."""
    try:
        code: int | None = command.main(words)
    except Exception:
        if was_interrupted():
            raise KeyboardInterrupt from None
        raise
    return code


def usage() -> str:
    lines = [f"  {name:<8} {line}" for name, line in COMMANDS.items()]
    end = "Show the options of a command: freewheel COMMAND --help"
    return "\n".join(["usage: freewheel COMMAND [options]", "", "commands:", *lines, "", end])


if __name__ == "__main__":
    sys.exit(main())
