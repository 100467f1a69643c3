"""F22: no wait hangs on a clock that can be set: the wall clock is read only where its time is what is meant."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "freewheel"
WALL = {"time", "time_ns", "now", "utcnow", "today", "localtime", "gmtime", "ctime"}

# Files that may read the wall clock, and why.
ALLOWED = {
    "report/sink.py": "a log's lines carry the time of day",
    "report/tensorboard.py": "its events carry the time of day",
    "store/folder.py": "a run's folder is named by the day, and its status says when it was written",
    "cli/runs.py": "the age of a run whose folder says when it began",
    "bench/harness.py": "a measurement says when it was made",
}


def wall_clocks(source: str) -> set[str]:
    """Calls that read the wall clock, by the name they are called."""
    tree = ast.parse(source)
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = ast.unparse(node.func)
            if node.func.attr in WALL and name.split(".")[0] in ("time", "datetime", "date", "dt"):
                found.add(name)
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            found |= {f"time.{alias.name}" for alias in node.names if alias.name in WALL}
    return found


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_f22_the_wall_clock_is_not_read(path: Path) -> None:
    if str(path.relative_to(SOURCE)) not in ALLOWED:
        assert wall_clocks(path.read_text()) == set(), "use time.monotonic()"


def test_f22_the_core_reads_the_monotonic_clock() -> None:
    for path in sorted((SOURCE.parents[1] / "core").glob("*.[ch]pp")):
        text = path.read_text()
        assert "system_clock" not in text, path
        assert "CLOCK_REALTIME" not in text, path
        assert "gettimeofday" not in text, path


@pytest.mark.parametrize(
    "source",
    [
        "import time\nend = time.time() + 5",
        "from time import time\nend = time() + 5",
        "import datetime\nstart = datetime.datetime.now()",
        "import time\nn = time.time_ns()",
    ],
)
def test_f22_a_wall_clock_is_seen(source: str) -> None:
    assert wall_clocks(source)
