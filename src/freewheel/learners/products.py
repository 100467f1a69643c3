"""Products of small matrices in compiled updates: our own, on processors where torch's library is slow.

torch multiplies with a library of Intel's, which keeps its best code for Intel's processors. On an AMD EPYC (Zen 4) a product of
128 x 128 matrices took 45-48 us by it and 37-41 us by ours, one of 128 x 128 with 128 x 4 21 us and 5 us.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

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
    """For a trace on a processor that /proc/cpuinfo describes so: products that our code replaces."""
    return {torch.ops.aten.mm.default: _mm} if source(text) else {}


def shims(text: str) -> dict[Any, list[str]]:
    """Their C++ declarations and code, for the compiler."""
    code = source(text)
    return {torch.ops.freewheel.freewheel_mm.default: [spliced(DECLARED, code)]} if code else {}


def source(text: str) -> str:
    """The code for such a processor, "" where torch's own products are as good, or the compiler is not the one it is written for."""
    found = kind(text)
    if found is None or "AuthenticAMD" not in text:
        return ""
    floats, target = found
    given = {"VECTOR": floats, "TARGET": f'"{target}"', "THREADS": torch.get_num_threads()}
    head = "".join(f"#define FREEWHEEL_{name} {value}\n" for name, value in given.items())
    return f"#include <algorithm>\n{head}{SOURCE.read_text()}"


def kind(text: str) -> tuple[int, str] | None:
    """The floats in a register and what the compiler calls the processor; None for one, or a compiler, that our code is not written for."""
    if "clang" in os.environ.get("CXX", ""):
        return None
    flags = set(next((line for line in text.splitlines() if line.startswith("flags")), "").split())
    return next(((floats, target) for needed, floats, target in KINDS if needed <= flags), None)


def spliced(declared: str, code: str) -> str:
    """Code where the compiler writes 'extern "C" { extern', what it is given, and ';}': the braces close and open that again."""
    return f'{declared};\n}}\n{code}\nextern "C" {{\nextern {declared}'


def _mm(a: Tensor, b: Tensor) -> Tensor:
    if a.dtype != torch.float32 or b.dtype != torch.float32:
        return NotImplemented  # type: ignore[no-any-return]
    made: Tensor = torch.ops.freewheel.freewheel_mm(a, b)
    return made
