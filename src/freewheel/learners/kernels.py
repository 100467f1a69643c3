"""Code of our own in compiled updates: operations that a trace takes for torch's, and the C++ text that a package gets for them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from freewheel.learners import products
from freewheel.nets import pixels


def decompositions(text: str) -> dict[Any, Any]:
    """For a trace on a processor that /proc/cpuinfo describes so: operations that our code replaces, and ours that torch must do."""
    own = products.decompositions(text)
    if not _pixels(text):
        own |= {pixels.operation(dtype): partial(pixels.plain, dtype=dtype) for dtype in pixels.OPERATIONS}
    return own


def shims(text: str) -> dict[Any, list[str]]:
    """C++ declarations and code of our operations, for the compiler."""
    own, code = products.shims(text), _pixels(text)
    for dtype, (name, number, torch_name) in pixels.OPERATIONS.items() if code else ():
        declared = f"AOTITorchError aoti_torch_cpu_{name}(AtenTensorHandle x, AtenTensorHandle* result)"
        body = f"return freewheel_pixels::turn_batch<{number}>(x, {torch_name}, result);"
        own[pixels.operation(dtype)] = [products.spliced(declared, f'{code}extern "C" {declared} {{ {body} }}')]
    return own


def source(text: str) -> str:
    """All that may become part of a package: where it changes, other packages are made."""
    return products.source(text) + _pixels(text)


def _pixels(text: str) -> str:
    """Once in a package, however many of the operations it has; "" where the code is not written for processor or compiler."""
    found = products.kind(text)
    if found is None:
        return ""
    given = {"TARGET": f'"{found[1]}"', "THREADS": torch.get_num_threads()}
    head = "".join(f"#define FREEWHEEL_PIXELS_{name} {value}\n" for name, value in given.items())
    return f"#ifndef FREEWHEEL_PIXELS_TARGET\n{head}{pixels.SOURCE.read_text()}#endif\n"
