"""Bytes of pictures in compiled networks: the same numbers as torch's own operations, however many channels and however they lie."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from freewheel.learners import kernels, package
from freewheel.machine import cores
from freewheel.nets import pixels
from freewheel.nets.inputs import Image, set_memory_format

AVX512 = "flags : avx512f avx512vl avx512bw avx2 fma\n"
AVX2 = "flags : avx2 fma\n"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def processor_is(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (package, cores):
        monkeypatch.setattr(module, "cpu_info", lambda: text)


def pictures() -> list[Tensor]:
    """Of every number of channels that has code of its own and one that has none; parts of longer stacks; every byte."""
    generator = torch.Generator().manual_seed(0)
    made = [
        torch.randint(0, 256, (rows, channels + 1, 7, 13), dtype=torch.uint8, generator=generator)[:, :channels]
        for rows, channels in ((3, 1), (3, 2), (3, 3), (3, 4), (3, 5), (3, 8))
    ]
    made.append(torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16).expand(2, 4, 16, 16))
    made.append(torch.randint(0, 256, (33, 4, 40, 40), dtype=torch.uint8, generator=generator))  # threads share it
    made.append(made[-1].movedim(1, 3).contiguous().movedim(3, 1))  # pixels that are not side by side
    return made


@pytest.mark.parametrize(("text", "threads"), [(AVX512, 2), (AVX2, 1)], ids=["avx512", "avx2"])
def test_bytes_become_the_same_numbers(text: str, threads: int, cache: None, monkeypatch: pytest.MonkeyPatch) -> None:
    if not set(text.split()[2:]) <= set(cores.cpu_flags().split()):
        pytest.skip("has no such registers")
    processor_is(text, monkeypatch)
    given = pictures()

    def function(*images: Tensor) -> list[Tensor]:
        wide = [pixels.channels_last(image) for image in images]
        with torch.autocast("cpu", torch.bfloat16):
            narrow = [pixels.channels_last(image) for image in images]
        return [image for image in (*wide, *narrow) if image is not None]

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        run, _ = package.compiled(function, given)
        found = run(*given)
    finally:
        torch.set_num_threads(before)
    expected = [pixels.plain(image, dtype) for dtype in (torch.float32, torch.bfloat16) for image in given]
    for one, right in zip(found, expected, strict=True):
        assert one.dtype == right.dtype
        assert one.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(one, right)


def image(memory_format: str, stack: int = 4) -> Image:
    made = Image(spaces.Box(0, 255, (12, 12), np.uint8), stack)
    set_memory_format(made, memory_format)
    return made


def traced(net: Image, text: str, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype | None = None) -> str:
    processor_is(text, monkeypatch)
    x = torch.zeros(2, 4, 12, 12, dtype=torch.uint8)

    def function(x: Tensor) -> list[Tensor]:
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            return [net(x)]

    return str(package.trace(function, [x]).code)


def test_a_trace_takes_them_by_one_operation_where_channels_are_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    assert "freewheel_pixels.default" in traced(image("channels_last"), AVX512, monkeypatch)
    assert "freewheel_pixels_bf16.default" in traced(image("channels_last"), AVX512, monkeypatch, torch.bfloat16)
    assert "freewheel_pixels" not in traced(image("channels_last"), AVX512, monkeypatch, torch.float16)
    assert "freewheel_pixels" not in traced(image("contiguous"), AVX512, monkeypatch)


def test_elsewhere_they_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    assert "freewheel_pixels" not in traced(image("channels_last"), "flags : sse2\n", monkeypatch)
    assert kernels.source("flags : sse2\n") == ""
    monkeypatch.setenv("CXX", "clang++")
    assert "freewheel_pixels" not in traced(image("channels_last"), AVX512, monkeypatch)
    assert kernels.shims(AVX512) == {}


def test_outside_of_a_trace_nothing_changes() -> None:
    x = torch.randint(0, 256, (2, 4, 12, 12), dtype=torch.uint8)
    assert pixels.channels_last(x) is None
    assert torch.equal(image("channels_last")(x), x.float() / 255)


@pytest.mark.parametrize("dtype", list(pixels.OPERATIONS), ids=str)
def test_the_operation_itself_gives_them_too(dtype: torch.dtype) -> None:
    x = torch.randint(0, 256, (2, 4, 12, 12), dtype=torch.uint8)
    assert torch.equal(pixels.operation(dtype)(x), pixels.plain(x, dtype))
