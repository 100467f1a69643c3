"""The child's side of the conversation: one JSON object per line in, one per line out, in turn."""

import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

Message = dict[str, Any]

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies; elsewhere it ends when it next reads stdin."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (AttributeError, OSError):
        return


def serve(greeting: Message, handlers: Mapping[str, Callable[[Message], Message]]) -> None:
    """Greet, then answer each line by the handler its `op` names, until stdin closes or the parent dies."""
    # Libraries print what they like; only answers may reach the pipe the parent reads.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def say(message: Message) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    say(greeting)
    for line in sys.stdin:
        message = json.loads(line)
        try:
            say(handlers[message["op"]](message))
        except Exception as error:  # the parent decides what a failed measurement means
            traceback.print_exc()
            say({"error": f"{type(error).__name__}: {error}"})
