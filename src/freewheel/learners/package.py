"""An update as machine code: traced into one graph, compiled into a package that is kept on disk, loaded from there.

No Python runs between the kernels of a loaded package, and nothing is compiled again for a graph that was compiled before.
"""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

Function = Callable[..., Sequence[Tensor]]

# Packages that are kept; the least recently used go first. One of a small network has about 1 MB.
MOST_KEPT = 100


def compiled(function: Function, args: Sequence[Tensor]) -> Function:
    """`function`, which may change its arguments in place, for arguments of these shapes."""
    return load(make(function, args))


def make(function: Function, args: Sequence[Tensor]) -> Path:
    """The package of a function: from the disk, or compiled now."""
    graph = trace(function, args)
    path = folder() / f"{key_of(graph, args)}.pt2"
    if not path.exists():
        _compile(graph, args, path)
        _forget_oldest()
    return path


def load(path: Path) -> Function:
    loader = torch._inductor.aoti_load_package(str(path)).loader
    path.touch()  # it was used
    return lambda *args: loader.boxed_run(list(args))


def folder() -> Path:
    """Where packages are kept: XDG_CACHE_HOME, else ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "freewheel" / "packages"


def trace(function: Function, args: Sequence[Tensor]) -> torch.fx.GraphModule:
    """The operations that the function makes; none is carried out."""
    unfused = {torch.ops.aten.addmm.default: _addmm} if args[0].device.type == "cpu" else {}
    return make_fx(function, unfused, tracing_mode="fake", _allow_non_fake_inputs=True)(*args)


def _addmm(bias: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
    """A CPU's addmm copies the bias into every row first; so written it joins the activation that follows.

    Not a plain sum: the compiler would make an addmm of it again.
    """
    return torch.mm(rows, weight) - (-bias)


def key_of(graph: torch.fx.GraphModule, args: Sequence[Tensor]) -> str:
    """Equal for equal graphs on equal machines: whatever changes the code that comes out changes the key."""
    parts: list[Any] = [graph.code, torch.__version__, torch.get_num_threads(), platform.machine(), _cpu()]
    parts += [(tuple(arg.shape), arg.stride(), str(arg.dtype), str(arg.device)) for arg in args]
    parts += [(name, value.tolist()) for name, value in sorted(vars(graph).items()) if isinstance(value, Tensor)]
    parts += [(name, value.tolist()) for name, value in graph.named_buffers()]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _cpu() -> str:
    """What the compiler may use: code for one CPU may not run on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _compile(graph: torch.fx.GraphModule, args: Sequence[Tensor], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=path.parent) as temp, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about itself
        exported = torch.export.export(graph, tuple(args))
        made = torch._inductor.aoti_compile_and_package(exported, package_path=str(Path(temp) / path.name))
        os.replace(made, path)


def _forget_oldest() -> None:
    kept = sorted(folder().glob("*.pt2"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in kept[MOST_KEPT:]:
        path.unlink(missing_ok=True)
