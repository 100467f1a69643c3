"""A command under limits of the system, which it sets for itself."""

from __future__ import annotations

import os
import resource
import tempfile
from pathlib import Path
from typing import Any

from freewheel.cli.main import main as command


def main(plan: dict[str, Any]) -> int:
    if "nofile" in plan:
        resource.setrlimit(resource.RLIMIT_NOFILE, (plan["nofile"],) * 2)
    if "group" in plan:
        (Path(plan["group"]) / "cgroup.procs").write_text(str(os.getpid()))
    if "tmpdir" in plan:
        os.makedirs(plan["tmpdir"])
        os.environ["TMPDIR"] = tempfile.tempdir = plan["tmpdir"]
    return command(plan["words"])
