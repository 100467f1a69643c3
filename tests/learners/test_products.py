"""Our own products in compiled updates: right for any shape and strides, and taken only where they were measured to be faster."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from freewheel.learners import kernels, package
from freewheel.machine import cores

# Of A's rows, B's columns and what is summed over: whole registers, parts of them, single rows, more than one block of depth.
SHAPES = [
    (128, 128, 128),
    (128, 4, 128),
    (2, 128, 128),
    (128, 2, 128),
    (13, 37, 5),
    (1, 1, 1),
    (7, 16, 300),
    (64, 64, 600),
    (9, 33, 257),
    (37, 3, 100),
    (5, 1, 1100),
    (6, 4, 17),
]


def cpuinfo(*without: str) -> str:
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "flags : ")
    kept = [flag for flag in flags.split() if flag not in without]
    return f"vendor_id : AuthenticAMD\n{' '.join(kept)}\n"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.skipif(not kernels.products(cpuinfo()), reason="has no such registers")
@pytest.mark.parametrize(("without", "threads"), [((), 2), (("avx512f",), 1)], ids=["avx512", "avx2"])
def test_products_are_right(
    without: tuple[str, ...], threads: int, cache: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (package, cores):
        monkeypatch.setattr(module, "cpu_info", lambda: cpuinfo(*without))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(m, k, generator=generator) for m, _, k in SHAPES]
    given += [torch.randn(k, n, generator=generator) for _, n, k in SHAPES]
    # One that threads share.
    given += [torch.randn(2051, 64, generator=generator), torch.randn(64, 64, generator=generator)]

    def function(*matrices: Tensor) -> list[Tensor]:
        pairs = list(zip(matrices[: len(SHAPES)], matrices[len(SHAPES) : -2], strict=True))
        plain = [a @ b for a, b in pairs]
        # Both transposed: what was a row is a column, as in the gradient of weights.
        turned = [a.t().contiguous().t() @ b.t().contiguous().t() for a, b in pairs]
        large, square = matrices[-2:]
        return [*plain, *turned, large @ square.t(), large.t() @ large]

    try:
        graph = package.trace(function, given)
        assert str(graph.code).count("freewheel.freewheel_mm") == 2 * len(SHAPES) + 2
        run, _ = package.compiled(function, given)
        for found, expected in zip(run(*given), function(*(one.double() for one in given)), strict=True):
            assert found.dtype == torch.float32
            torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)
    finally:
        torch.set_num_threads(before)


def test_they_are_ours_only_where_torch_has_code_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    assert kernels.products(cpuinfo().replace("AuthenticAMD", "GenuineIntel")) == ""
    assert kernels.products("vendor_id : AuthenticAMD\nflags : sse2\n") == ""
    assert kernels.products("") == ""
    wide, narrow = (
        kernels.products(f"vendor_id : AuthenticAMD\nflags : fma avx2 {more}\n")
        for more in ("avx512f avx512vl avx512bw", "")
    )
    assert "FREEWHEEL_VECTOR 16" in wide
    assert "FREEWHEEL_VECTOR 8" in narrow
    monkeypatch.setenv("CXX", "/usr/bin/clang++-17")
    assert kernels.products("vendor_id : AuthenticAMD\nflags : fma avx2\n") == ""


def test_tanh_is_near_torchs() -> None:
    x = torch.cat([torch.linspace(-12, 12, 200_001), torch.tensor([0.0, -0.0, 1e-30, math.inf, -math.inf, math.nan])])
    found, expected = package._tanh(x), x.double().tanh()
    is_number = ~x.isnan()
    assert (found - expected)[is_number].abs().max() < 4e-7
    assert found[is_number].abs().max() <= 1
    assert found[-1].isnan()
    assert ((found / expected - 1)[expected.abs() > 1e-20]).nan_to_num(0).abs().max() < 5e-7
