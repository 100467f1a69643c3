"""Facts about the machine: cores by affinity and quota, limits and what is missing, each with a cure."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from freewheel.config import assemble
from freewheel.doctor import machine_facts as machine
from freewheel.doctor.facts import Fact
from freewheel.doctor.machine_facts import machine_facts
from freewheel.machine.cores import cpu_quota, num_cores


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def facts(**given: object) -> dict[str, Fact]:
    return {
        fact.name: fact for fact in machine_facts(assemble("E-v0", {k.replace("__", "."): v for k, v in given.items()}))
    }


def test_the_smallest_quota_above_us_counts(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/a/b\n")
    write(tmp_path / "sys/fs/cgroup/a/b/cpu.max", "max 100000\n")
    assert cpu_quota(tmp_path) is None
    write(tmp_path / "sys/fs/cgroup/a/cpu.max", "250000 100000\n")
    assert cpu_quota(tmp_path) == 2.5
    write(tmp_path / "sys/fs/cgroup/a/b/cpu.max", "400000 100000\n")
    assert cpu_quota(tmp_path) == 2.5


@pytest.mark.parametrize("name", ["cpu", "cpu,cpuacct"])
def test_quotas_of_the_older_interface(tmp_path: Path, name: str) -> None:
    write(tmp_path / "proc/self/cgroup", f"4:memory:/x\n3:{name}:/docker/1\n")
    write(tmp_path / f"sys/fs/cgroup/{name}/cpu.cfs_quota_us", "-1\n")
    write(tmp_path / f"sys/fs/cgroup/{name}/cpu.cfs_period_us", "100000\n")
    assert cpu_quota(tmp_path) is None
    write(tmp_path / f"sys/fs/cgroup/{name}/cpu.cfs_quota_us", "150000\n")
    assert cpu_quota(tmp_path) == 1.5


def test_cores_are_those_of_affinity_and_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)))
    assert num_cores(tmp_path) == 6
    write(tmp_path / "proc/self/cgroup", "0::/\n")
    for quota, cores in (("350000", 3), ("50000", 1), ("900000", 6)):
        write(tmp_path / "sys/fs/cgroup/cpu.max", f"{quota} 100000\n")
        assert num_cores(tmp_path) == cores


def test_this_machine_can_train() -> None:
    found = facts()
    assert [fact for fact in found.values() if fact.state == "problem"] == []
    assert found["cores"].value["usable"] == num_cores() >= 1
    assert found["shared memory"].value is True
    assert found["waits"].value is True
    assert found["torch"].value.startswith("2.")
    assert {"memory", "/dev/shm", "open files", "processes", "locked memory", "file size", "address space"} <= set(
        found
    )


def test_one_core_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    fact = facts()["cores"]
    assert fact.state == "warning"
    assert "runtime=sequential" in fact.cure


@pytest.mark.parametrize(
    ("limit", "value", "name", "state", "cure"),
    [
        (resource.RLIMIT_NOFILE, 64, "open files", "problem", "ulimit -n"),
        (resource.RLIMIT_NOFILE, 512, "open files", "warning", "ulimit -n"),
        (resource.RLIMIT_NPROC, 100, "processes", "warning", "ulimit -u"),
        (resource.RLIMIT_FSIZE, 10**9, "file size", "warning", "ulimit -f"),
        (resource.RLIMIT_AS, 10**9, "address space", "warning", "ulimit -v"),
        (resource.RLIMIT_MEMLOCK, 65536, "locked memory", "ok", ""),
        (resource.RLIMIT_NOFILE, resource.RLIM_INFINITY, "open files", "ok", ""),
    ],
)
def test_low_limits_are_told(
    limit: int, value: int, name: str, state: str, cure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {limit: (value, value)}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: given.get(kind, (resource.RLIM_INFINITY,) * 2))
    fact = {fact.name: fact for fact in machine._limits()}[name]
    assert fact.state == state
    assert cure in fact.cure


@pytest.mark.parametrize(("compile", "state"), [("auto", "warning"), ("on", "problem"), ("off", "ok")])
def test_a_missing_compiler(compile: str, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    fact = facts(learner__compile=compile)["C++ compiler"]
    assert fact.state == state
    assert "no-such-compiler" in fact.shown


def test_a_compiler_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    assert "does not work" in facts()["C++ compiler"].shown


def test_threads_of_the_environment_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "13")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    fact = facts()["threads"]
    assert fact.state == "ok"
    assert "overrides OMP_NUM_THREADS=13" in fact.shown
    assert facts(learner__threads=4)["threads"].state == "warning"


def test_a_busy_machine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 0.0, 0.0))
    assert facts()["load"].state == "warning"
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 9.0, 9.0))
    assert facts()["load"].state == "ok"


def test_little_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "allowed_bytes", lambda: (10**8, "this container"))
    fact = facts()["memory"]
    assert (fact.state, fact.value["allowed_bytes"]) == ("warning", 10**8)
    assert "this container" in fact.shown


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert facts(log__folder=str(tmp_path / "new" / "runs"))["run folder"].state == "ok"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    fact = facts(log__folder=str(tmp_path / "new" / "runs"))["run folder"]
    assert fact.state == "problem"
    assert str(tmp_path) in fact.shown
