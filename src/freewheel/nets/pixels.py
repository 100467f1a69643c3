"""Bytes of images as floats in channels-last order, as one operation of a traced graph.

The compiler's own code for it is scalar: 32 stacks of four 84 x 84 images took 0.94 ms of a 14 ms update on an AMD
EPYC, and take 0.13 ms with `pixels.hpp`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

SOURCE = Path(__file__).with_name("pixels.hpp")
# By dtype of the result: the name of the operation, and its type and dtype in C++.
OPERATIONS = {
    torch.float32: ("freewheel_pixels", "float", "aoti_torch_dtype_float32()"),
    torch.bfloat16: ("freewheel_pixels_bf16", "uint16_t", "aoti_torch_dtype_bfloat16()"),
}

_torch_library: Any = torch.library  # which has no types
_own = _torch_library.Library("freewheel", "FRAGMENT")


def plain(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The same by torch's own operations."""
    return (x.float() / 255).to(dtype).contiguous(memory_format=torch.channels_last)


def _define(dtype: torch.dtype, name: str) -> None:
    def fake(x: Tensor) -> Tensor:
        return torch.empty_like(x, dtype=dtype, memory_format=torch.channels_last)

    _own.define(f"{name}(Tensor x) -> Tensor")
    _own.impl(name, lambda x: plain(x, dtype), "CPU")
    _torch_library.register_fake(f"freewheel::{name}", fake, lib=_own)


for _dtype, (_name, *_) in OPERATIONS.items():
    _define(_dtype, _name)


def operation(dtype: torch.dtype) -> Any:
    return getattr(torch.ops.freewheel, OPERATIONS[dtype][0]).default


def channels_last(x: Tensor) -> Tensor | None:
    """Bytes [B, C, H, W] in the dtype of the layers that follow; None where there is no such operation: outside a trace, or not on a CPU."""
    if get_proxy_mode() is None or x.device.type != "cpu" or x.dtype != torch.uint8:
        return None
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
    if dtype not in OPERATIONS:
        return None
    if x.stride()[2:] != (x.shape[3], 1):
        x = x.contiguous()
    made: Tensor = operation(dtype)(x)
    return made
