"""F15: memory is checked against the machine and its control groups before anything is taken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from freewheel import _core
from freewheel.errors import ConfigError
from freewheel.memory.lanes import Lanes
from freewheel.memory.segment import RESERVE_SHARE, Segment, allowed_bytes, format_bytes
from freewheel.spec import RowSpec

GB = 10**9


def machine(root: Path, available: int, cgroup: str, files: dict[str, str]) -> Path:
    """A root folder with the files that tell of a machine's memory."""
    for name, text in {
        "proc/meminfo": f"MemTotal: 99999999 kB\nMemAvailable: {available // 1024} kB\n",
        "proc/self/cgroup": cgroup,
        **files,
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def usable(count: int) -> int:
    return int(count * (1 - RESERVE_SHARE))


def test_f15_the_machine_is_the_limit_without_a_group(tmp_path: Path) -> None:
    root = machine(tmp_path, 8 * 1024**3, "0::/\n", {})
    assert allowed_bytes(root) == (usable(8 * 1024**3), "this machine")


def test_f15_a_version_2_group_and_the_ones_above_it(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/pods/mine"
    root = machine(
        tmp_path,
        64 * GB,
        "0::/pods/mine\n",
        {
            f"{group}/memory.max": "max\n",
            f"{group}/memory.current": "5000000000\n",
            f"{group}/memory.stat": "inactive_file 0\n",
            "sys/fs/cgroup/pods/memory.max": "10000000000\n",
            "sys/fs/cgroup/pods/memory.current": "6000000000\n",
            "sys/fs/cgroup/pods/memory.stat": "anon 1\ninactive_file 1000000000\n",
        },
    )
    assert allowed_bytes(root) == (usable(5 * GB), "this container")


def test_f15_a_version_1_group(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory/job"
    root = machine(
        tmp_path,
        64 * GB,
        "9:name=systemd:/\n4:cpu,memory:/job\n0::/\n",
        {
            f"{group}/memory.limit_in_bytes": "3000000000",
            f"{group}/memory.usage_in_bytes": "2500000000",
            f"{group}/memory.stat": "cache 5\ntotal_inactive_file 500000000\n",
        },
    )
    assert allowed_bytes(root) == (usable(1 * GB), "this container")


def test_f15_a_group_that_is_over_its_limit_allows_nothing(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        64 * GB,
        "0::/\n",
        {
            "sys/fs/cgroup/memory.max": "1000",
            "sys/fs/cgroup/memory.current": "2000",
            "sys/fs/cgroup/memory.stat": "inactive_file 0",
        },
    )
    assert allowed_bytes(root)[0] == 0


def test_f15_too_much_is_refused_before_anything_is_made() -> None:
    spec = RowSpec.of(spaces.Box(0, 255, (210, 160, 3), np.uint8), spaces.Discrete(6))
    with pytest.raises(
        ConfigError,
        match=r"replay of 100,000,000 rows needs 10\.\d TB, this .* allows .* GB\. Try lane_rows=50_000_000 \(5\.\d TB\)",
    ):
        Lanes(spec, 1, 100_000_000)


@pytest.mark.parametrize("share", [0.5, 0.9, 1.0, 1.02, 1.1, 2])
def test_f15_sizes_around_the_limit(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 4_000_000
    monkeypatch.setattr("freewheel.memory.segment.allowed_bytes", lambda: (limit, "this container"))
    needed = int(limit * share)
    if needed <= limit:
        assert Segment.create(needed, "it").num_bytes == needed
    else:
        with pytest.raises(ConfigError, match=r"it needs .* MB, this container allows 4\.0 MB\. Ask for less"):
            Segment.create(needed, "it")


def test_f15_what_the_kernel_refuses_is_said_too() -> None:
    code = """
import resource
from freewheel.errors import ConfigError
from freewheel.memory.segment import Segment
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
try:
    Segment.create(2_000_000, "it")
except ConfigError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "it needs 2.0 MB: the machine does not give that much shared memory" in done.stdout, done.stderr
    assert done.stdout.strip().endswith("Ask for less.")


def test_f15_a_real_group_is_the_limit() -> None:
    """A control group of 200 MB: 300 MB are refused with both numbers, 50 MB are given."""
    top = Path("/sys/fs/cgroup/memory")
    group = top / f"freewheel-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(200 * 10**6))
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    code = """
import sys
open(sys.argv[1] + "/cgroup.procs", "w").write("0")
from freewheel.errors import ConfigError
from freewheel.memory.segment import Segment
Segment.create(50_000_000, "it")
try:
    Segment.create(300_000_000, "it")
except ConfigError as error:
    print(error)
"""
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, str(group)], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "it needs 300.0 MB, this container allows" in done.stdout
    finally:
        group.rmdir()


def test_a_segment_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="0 bytes"):
        Segment.create(0)


def test_parts_that_do_not_fit_their_segment_are_refused() -> None:
    from freewheel.errors import ReplayError

    small = _core.Segment.create(100, "small")
    with pytest.raises(ReplayError, match="segment has 100"):
        _core.Board.make(small, 3, 1000, format_at=0)
    with pytest.raises(ReplayError, match="segment has 100"):
        _core.Lanes.make(small, 1, 10, [("obs", "f", 4, [3], True)], format_at=0)


def test_bytes_are_written_as_people_read_them() -> None:
    assert [format_bytes(n) for n in (12, 41_200_000_000, 1_500, 2e15)] == [
        "12 bytes",
        "41.2 GB",
        "1.5 kB",
        "2000.0 TB",
    ]
