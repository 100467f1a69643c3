"""Code of our own in compiled updates: operations that a trace takes for torch's, and the C++ text that a package gets for them.

torch multiplies with a library of Intel's, which keeps its best code for Intel's processors. On an AMD EPYC (Zen 4) a product of
128 x 128 matrices took 45-48 us by it and 37-41 us by ours, one of 128 x 128 with 128 x 4 21 us and 5 us.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from freewheel.nets import pixels

SOURCE = Path(__file__).with_name("products.hpp")
# Flags of a processor that must be there, with the floats in its registers and what the compiler calls it.
KINDS = (
    ({"avx512f", "avx512vl", "avx512bw", "fma"}, 16, "avx512f,avx512vl,avx512bw,avx2,fma"),
    ({"avx2", "fma"}, 8, "avx2,fma"),
)
# The generated code declares functions of ours; where it does so the whole text goes in.
DECLARED = (
    "AOTITorchError aoti_torch_cpu_freewheel_mm(AtenTensorHandle a, AtenTensorHandle b, AtenTensorHandle* result)"
)

_torch_library: Any = torch.library  # which has no types
_own = _torch_library.Library("freewheel", "FRAGMENT")
_own.define("freewheel_mm(Tensor a, Tensor b) -> Tensor")
_own.impl("freewheel_mm", torch.mm, "CPU")
_torch_library.register_fake("freewheel::freewheel_mm", lambda a, b: a.new_empty(a.shape[0], b.shape[1]), lib=_own)


def decompositions(text: str) -> dict[Any, Any]:
    """For a trace on a processor that /proc/cpuinfo describes so: operations that our code replaces, and ours that torch must do."""
    own: dict[Any, Any] = {torch.ops.aten.mm.default: _mm} if products(text) else {}
    if not _pixels(text):
        own |= {pixels.operation(dtype): partial(pixels.plain, dtype=dtype) for dtype in pixels.OPERATIONS}
    return own


def shims(text: str) -> dict[Any, list[str]]:
    """C++ declarations and code of our operations, for the compiler."""
    own = {}
    if code := products(text):
        own[torch.ops.freewheel.freewheel_mm.default] = [_spliced(DECLARED, code)]
    code = _pixels(text)
    for dtype, (name, number, torch_name) in pixels.OPERATIONS.items() if code else ():
        declared = f"AOTITorchError aoti_torch_cpu_{name}(AtenTensorHandle x, AtenTensorHandle* result)"
        body = f"return freewheel_pixels::turn_batch<{number}>(x, {torch_name}, result);"
        own[pixels.operation(dtype)] = [_spliced(declared, f'{code}extern "C" {declared} {{ {body} }}')]
    return own


def source(text: str) -> str:
    """All that may become part of a package: where it changes, other packages are made."""
    return products(text) + _pixels(text)


def products(text: str) -> str:
    """The code for products of matrices on such a processor, "" where torch's own products are as good, or the compiler is not the one it is written for."""
    found = _kind(text)
    if found is None or "AuthenticAMD" not in text:
        return ""
    floats, target = found
    given = {"VECTOR": floats, "TARGET": f'"{target}"', "THREADS": torch.get_num_threads()}
    head = "".join(f"#define FREEWHEEL_{name} {value}\n" for name, value in given.items())
    return f"#include <algorithm>\n{head}{SOURCE.read_text()}"


def _kind(text: str) -> tuple[int, str] | None:
    """The floats in a register and what the compiler calls the processor; None for one, or a compiler, that our code is not written for."""
    if "clang" in os.environ.get("CXX", ""):
        return None
    flags = set(next((line for line in text.splitlines() if line.startswith("flags")), "").split())
    return next(((floats, target) for needed, floats, target in KINDS if needed <= flags), None)


def _pixels(text: str) -> str:
    """Once in a package, however many of the operations it has; "" where the code is not written for processor or compiler."""
    found = _kind(text)
    if found is None:
        return ""
    given = {"TARGET": f'"{found[1]}"', "THREADS": torch.get_num_threads()}
    head = "".join(f"#define FREEWHEEL_PIXELS_{name} {value}\n" for name, value in given.items())
    return f"#ifndef FREEWHEEL_PIXELS_TARGET\n{head}{pixels.SOURCE.read_text()}#endif\n"


def _spliced(declared: str, code: str) -> str:
    """Code where the compiler writes 'extern "C" { extern', what it is given, and ';}': the braces close and open that again."""
    return f'{declared};\n}}\n{code}\nextern "C" {{\nextern {declared}'


def _mm(a: Tensor, b: Tensor) -> Tensor:
    if a.dtype != torch.float32 or b.dtype != torch.float32:
        return NotImplemented  # type: ignore[no-any-return]
    made: Tensor = torch.ops.freewheel.freewheel_mm(a, b)
    return made
