"""Thread limits reach the libraries, in this process and in its children."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from freewheel.errors import ConfigError
from freewheel.machine.threads import WAITING, limit_threads, wait_passively

CODE = """
import multiprocessing as mp
import sys
from freewheel.machine.threads import limit_threads

def threads(queue):
    import torch
    queue.put(torch.get_num_threads())

if __name__ == "__main__":
    if "late" in sys.argv:
        import torch
    limit_threads(1)
    import torch
    queue = mp.get_context("spawn").SimpleQueue()
    child = mp.get_context("spawn").Process(target=threads, args=(queue,))
    child.start()
    print(torch.get_num_threads(), queue.get())
    child.join()
"""


@pytest.mark.parametrize("when", ["early", "late"])
def test_limits_reach_torch_and_children(when: str, tmp_path: object) -> None:
    script = f"{tmp_path}/limits.py"
    with open(script, "w") as file:
        file.write(CODE)
    done = subprocess.run([sys.executable, script, when], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["1", "1"], done.stderr


def test_no_threads_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_threads=0"):
        limit_threads(0)


@pytest.mark.parametrize(
    ("said", "found"), [({}, ("passive", "1000")), ({"OMP_WAIT_POLICY": "active"}, ("active", None))]
)
def test_threads_look_around_before_they_sleep_unless_the_user_says_otherwise(
    said: dict[str, str], found: tuple[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in WAITING:
        monkeypatch.setenv(name, "")  # has it put back afterwards
        monkeypatch.delenv(name)
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    wait_passively()
    assert tuple(os.environ.get(name) for name in WAITING) == found
