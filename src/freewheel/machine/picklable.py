"""What the user gives has to reach other processes: whether it can."""

from __future__ import annotations

import sys
from multiprocessing import reduction
from typing import Any

from freewheel.machine.main_module import is_guarded, needs_main


def cannot_leave(env: Any, body: Any, loss: Any) -> str:
    """Why these cannot go to another process; "" if they can."""
    if hasattr(env, "step") and not isinstance(env, type):
        return "the env was given as an object, which lives in this process (give its id or a function that makes it)"
    if needs_main(env, body, loss) and not is_guarded(sys.modules["__main__"]):
        return (
            "the env, network or loss is defined in the script that runs, which has no if __name__ == '__main__': around "
            "what it does (add it, or put the definition into a module)"
        )
    for what, thing in (("env", env), ("network", body), ("loss", loss)):
        try:
            reduction.ForkingPickler.dumps(thing)
        except Exception as error:
            return f"the {what} cannot be sent to another process ({type(error).__name__}: {error})"
    return ""
