"""Tries a precision, in a process that may die of it: `python -m freewheel.learners.probe bf16 cpu`.

Prints one line of JSON: the seconds of a pass and its backward in fp32 and in that precision.
"""

from __future__ import annotations

import ctypes
import json
import resource
import signal
import sys
import time

import torch
from torch import Tensor
from torch.nn import functional as F

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
ROUNDS = 5
PR_SET_PDEATHSIG = 1  # it dies with the process that asked


def main(precision: str, device: str) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # its death is no news
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    size = 512
    rows, matrix = (torch.randn(size, size, device=device, requires_grad=True) for _ in range(2))
    image = torch.randn(4, 4, 16, 16, device=device, requires_grad=True)
    kernel = torch.randn(8, 4, 3, 3, device=device, requires_grad=True)

    def passes(dtype: torch.dtype | None) -> float:
        begun = time.perf_counter()
        with torch.autocast(device, dtype, enabled=dtype is not None):
            out = rows @ matrix
            total = out.float().square().mean() + F.conv2d(image, kernel).float().square().mean()
        made = torch.autograd.grad(total, [rows, matrix, image, kernel])
        _wait(made[0])
        return time.perf_counter() - begun

    dtype = DTYPES[precision]
    passes(None), passes(dtype)  # what is allocated and chosen once
    # In turn, so that a busy machine slows both.
    times = [(passes(None), passes(dtype)) for _ in range(ROUNDS)]
    plain, tried = (min(of) for of in zip(*times, strict=True))
    print(json.dumps({"fp32": plain, precision: tried}))


def _wait(tensor: Tensor) -> None:
    """Until the device is done."""
    tensor.flatten()[0].item()


if __name__ == "__main__":
    main(*sys.argv[1:])
