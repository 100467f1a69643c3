"""An update as machine code: traced into one graph, compiled into a package that is kept on disk, loaded from there.

No Python runs between the kernels of a loaded package, and nothing is compiled again for a graph that was compiled before.
"""

from __future__ import annotations

import hashlib
import os
import platform
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from freewheel.errors import ConfigError, FreewheelError
from freewheel.learners import kernels
from freewheel.learners.out_of_memory import first_line
from freewheel.machine.cache import cache_folder
from freewheel.machine.cores import cpu_flags, cpu_info
from freewheel.machine.threads import environment_kept
from freewheel.store import disk

Function = Callable[..., Sequence[Tensor]]

# Packages that are kept; the least recently used go first. One of a small network has about 1 MB.
MOST_KEPT = 100


def compiled(function: Function, args: Sequence[Tensor]) -> tuple[Function, Path]:
    """`function`, which may change its arguments in place, for arguments of these shapes; and its package."""
    path = make(function, args)
    try:
        return load(path), path
    except FreewheelError:  # damaged, or of a library that is gone
        path.unlink(missing_ok=True)
        return load(make(function, args)), path


def find(function: Function, args: Sequence[Tensor]) -> Path | None:
    """The package of a function if it was compiled before."""
    _, path = _named(function, args)
    return path if path.exists() else None


def _named(function: Function, args: Sequence[Tensor]) -> tuple[torch.fx.GraphModule, Path]:
    with _refusing("trace"):
        graph = trace(function, args)
        return graph, folder() / f"{key_of(graph, args)}.pt2"


def make(function: Function, args: Sequence[Tensor]) -> Path:
    """The package of a function: from the disk, or compiled now."""
    graph, path = _named(function, args)
    if not path.exists():
        _check_compiler()
        with _refusing("compile"):
            _compile(graph, args, path)
        _forget_oldest()
        disk.sweep(folder())
    return path


def load(path: Path) -> Function:
    """The function of a package. Python's other threads stand still while it runs: torch keeps the GIL."""
    with disk.temp_folder(path.parent) as temp, environment_kept("TMPDIR"):
        # Torch unpacks the library there and needs its file no longer once it is loaded: nothing stays after a SIGKILL.
        os.environ["TMPDIR"] = str(temp)
        try:
            loader = _loader(path)
        except Exception as error:
            raise FreewheelError(f"the compiled update {path} does not load: {first_line(error)}.") from error
    with suppress(OSError):
        os.utime(path)  # it was used
    return lambda *args: loader.boxed_run(list(args))


def _loader(path: Path) -> Any:
    try:
        # What torch's own function calls in the end; that imports the compiler first, which takes seconds.
        from torch._C._aoti import AOTIModelPackageLoader  # type: ignore[attr-defined,unused-ignore]
    except ImportError:
        return torch._inductor.aoti_load_package(str(path)).loader
    return AOTIModelPackageLoader(str(path), "model", False, 1, -1)


def folder() -> Path:
    return cache_folder() / "packages"


def trace(function: Function, args: Sequence[Tensor]) -> torch.fx.GraphModule:
    """The operations that the function makes; none is carried out."""
    own: dict[Any, Any] = {}
    if args[0].device.type == "cpu":
        own = {torch.ops.aten.addmm.default: _addmm, torch.ops.aten.tanh.default: _tanh}
        own |= kernels.decompositions(cpu_info())
    return make_fx(function, own, tracing_mode="fake", _allow_non_fake_inputs=True)(*args)


def _addmm(bias: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
    """A CPU's addmm copies the bias into every row first; so written it joins the activation that follows.

    Not a plain sum: the compiler would make an addmm of it again.
    """
    return torch.mm(rows, weight) - (-bias)


# tanh(x) / x is the quotient of these polynomials of x^2 to 2e-8 of its value where |x| < 9, fitted with equal ripples; beyond, tanh is 1.
TANH_ABOVE = (1.0, 0.133811161, 0.00349569297, 2.06107034e-05, 1.335669e-08)
TANH_BELOW = (1.0, 0.46714431, 0.0258773882, 0.000328580209, 7.77743537e-07)


def _tanh(x: Tensor) -> Tensor:
    """Within 4e-7 of torch's, whose own takes a third of an update with two tanh bodies of 64-64 and 2,048 rows."""
    if x.dtype != torch.float32:
        return NotImplemented  # type: ignore[no-any-return]
    near = x.clamp(-9.0, 9.0)
    square = near * near
    above, below = (_polynomial(square, factors) for factors in (TANH_ABOVE, TANH_BELOW))
    return (near * above / below).clamp(-1.0, 1.0)


def _polynomial(x: Tensor, factors: Sequence[float]) -> Tensor:
    *rest, highest = factors
    found: Tensor = x * highest + rest[-1]
    for factor in reversed(rest[:-1]):
        found = found * x + factor
    return found


def key_of(graph: torch.fx.GraphModule, args: Sequence[Tensor]) -> str:
    """Equal for equal graphs on equal machines: whatever changes the code that comes out changes the key."""
    parts: list[Any] = [graph.code, torch.__version__, torch.get_num_threads(), platform.machine(), cpu_flags()]
    parts.append(kernels.source(cpu_info()))
    parts += [(tuple(arg.shape), arg.stride(), str(arg.dtype), str(arg.device)) for arg in args]
    parts += [(name, value.tolist()) for name, value in sorted(vars(graph).items()) if isinstance(value, Tensor)]
    parts += [(name, value.tolist()) for name, value in graph.named_buffers()]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _check_compiler() -> None:
    from torch._inductor import cpp_builder, exc

    try:
        cpp_builder.get_cpp_compiler()
    except (exc.InvalidCxxCompiler, OSError) as error:
        raise ConfigError(
            "no C++ compiler found (g++, or the one that CXX names), so updates stay eager. "
            "Install one or train with --compile off."
        ) from error


def _compile(graph: torch.fx.GraphModule, args: Sequence[Tensor], path: Path) -> None:
    from torch._inductor import config

    # In this process alone: torch's own pool of compile workers outlives the compilation.
    own = {"compile_threads": 1, "aot_inductor.custom_ops_to_c_shims": kernels.shims(cpu_info())}
    with disk.temp_folder(path.parent) as temp, config.patch(own), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about itself
        exported = torch.export.export(graph, tuple(args))
        made = torch._inductor.aoti_compile_and_package(exported, package_path=str(temp / path.name))
        os.replace(made, path)  # who compiled the same meanwhile has made the same


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    """What torch cannot follow in a network or loss becomes a one-line error that says what to do."""
    try:
        yield
    except Exception as error:
        raise ConfigError(
            f"torch could not {what} the update: {type(error).__name__}: {first_line(error)}. "
            "Train with --compile off, or change the network or loss."
        ) from error


def _forget_oldest() -> None:
    """Packages beyond those that are kept."""
    kept = sorted(folder().glob("*.pt2"), key=_modified, reverse=True)
    for path in kept[MOST_KEPT:]:
        path.unlink(missing_ok=True)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # another process removed it just now
        return 0.0
