"""A learner's process keeps its heap."""

from __future__ import annotations

import platform
import subprocess
import sys
from typing import Any

import pytest

from freewheel.machine import malloc as heap

# In a process of its own: the settings are the process's, and cannot be taken back.
CHILD = """
import resource, sys, torch
from freewheel.machine.malloc import keep_memory
torch.set_num_threads(1)
if sys.argv[1] == "kept":
    assert keep_memory()

def work():
    blocks = [torch.ones(1_000_000) for _ in range(20)] + [torch.ones(10_000_000)]
    del blocks

for _ in range(3):
    work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", CHILD, how], capture_output=True, text=True, timeout=100, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_memory_that_was_freed_is_taken_again_without_page_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in heap.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert faults("kept") < 500 < faults("usual")


def test_nothing_is_set_where_somebody_has_decided_or_the_library_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    class Library:
        def mallopt(self, option: int, value: int) -> int:
            asked.append((option, value))
            return 1

    def find() -> Any:
        return Library()

    for name in heap.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert not heap.keep_memory(lambda: object())  # type: ignore[arg-type,return-value]
    monkeypatch.setenv("MALLOC_TOP_PAD_", "0")
    assert not heap.keep_memory(find)
    assert asked == []
    monkeypatch.delenv("MALLOC_TOP_PAD_")
    assert heap.keep_memory(find)
    assert [option for option, _ in asked] == [-1, -2, -4]
