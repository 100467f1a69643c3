"""A command on a terminal of its own, which a test closes; or below a shell on it, which a test kills."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from freewheel.cli.main import main as freewheel


def main(given: dict[str, Any]) -> int:
    """The nursery has made this process the leader of a session: the terminal that it opens controls it."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    terminal = os.open(given["terminal"], os.O_RDWR)
    for fd in range(3):
        os.dup2(terminal, fd)
    os.close(terminal)
    if given["has_shell"]:
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
            return 0
        os.setpgid(0, 0)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        os.tcsetpgrp(0, os.getpid())
    code = freewheel(given["words"])
    Path("code").write_text(str(code))
    return code
