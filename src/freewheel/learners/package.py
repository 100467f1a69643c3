"""An update as machine code: traced into one graph, compiled into a package that is kept on disk, loaded from there.

No Python runs between the kernels of a loaded package, and nothing is compiled again for a graph that was compiled before. A package
runs with the user's rights, so only one that this user signed is loaded; the file is its signature and what torch made.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
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
from freewheel.machine import private
from freewheel.machine.cache import cache_folder
from freewheel.machine.cores import cpu_flags, cpu_info
from freewheel.machine.threads import environment_kept
from freewheel.store import disk, signature

Function = Callable[..., Sequence[Tensor]]

# Packages that are kept; the least recently used go first. One of a small network has about 1 MB.
MOST_KEPT = 100
MOST_BYTES = 1 << 30
COMPILER_CACHE = "TORCHINDUCTOR_CACHE_DIR"
SIGNED, SIGNATURE_BYTES = "package", 64


def compiled(function: Function, args: Sequence[Tensor]) -> tuple[Function, Path]:
    """`function`, which may change its arguments in place, for arguments of these shapes; and its package."""
    path = make(function, args)
    try:
        return load(path), path
    except FreewheelError:  # damaged, or of a library that is gone
        path.unlink(missing_ok=True)
        return load(make(function, args)), path


def find(function: Function, args: Sequence[Tensor]) -> Path | None:
    """The package of a function if this user compiled it before."""
    _, path = _named(function, args)
    return path if path.exists() and not _why_not(path) else None


def _named(function: Function, args: Sequence[Tensor]) -> tuple[torch.fx.GraphModule, Path]:
    with _refusing("trace"):
        graph = trace(function, args)
        return graph, folder() / f"{key_of(graph, args)}.pt2"


def make(function: Function, args: Sequence[Tensor]) -> Path:
    """The package of a function: from the disk, or compiled now."""
    graph, path = _named(function, args)
    is_there = os.path.lexists(path)
    if is_there and (why := _why_not(path)):
        print(f"warning: compiling an update again: {why}.", file=sys.stderr)
        disk.remove(path)
        is_there = False
    if not is_there:
        _check_compiler()
        _check_folder()
        with _refusing("compile"):
            _compile(graph, args, path)
        _forget_oldest()
        disk.sweep(folder())
    return path


def load(path: Path) -> Function:
    """The function of a package. Python's other threads stand still while it runs: torch keeps the GIL."""
    data, why = _read(path)
    if why:
        raise FreewheelError(f"the compiled update {path} is not loaded: {why}.")
    with disk.temp_folder(path.parent) as temp, environment_kept("TMPDIR"):
        # Torch unpacks the library there and needs its file no longer once it is loaded: nothing stays after a SIGKILL.
        os.environ["TMPDIR"] = str(temp)
        disk.write_new(temp / path.name, data, is_durable=False)  # what was checked, not what may be there by now
        try:
            loader = _loader(temp / path.name)
        except Exception as error:
            raise FreewheelError(f"the compiled update {path} does not load: {first_line(error)}.") from error
    with suppress(OSError):
        os.utime(path)  # it was used
    return lambda *args: loader.boxed_run(list(args))


def _why_not(path: Path) -> str:
    return _read(path)[1]


def _read(path: Path) -> tuple[bytes, str]:
    """What torch made, and why it must not be loaded."""
    try:
        private.make_folder(path.parent)
        data = private.read(path, MOST_BYTES)
    except OSError as error:
        return b"", f"{path.name} cannot be trusted: {error.strerror}"
    signed, data = data[:SIGNATURE_BYTES].decode("latin-1"), data[SIGNATURE_BYTES:]
    why = signature.why_foreign(SIGNED, _content(path, data), signed, spare=cache_folder())
    return data, f"of {path.name}, {why}" if why else ""


def _content(path: Path, data: bytes) -> bytes:
    """What is signed: code for other shapes would write elsewhere in memory, so a package keeps its name."""
    return path.name.encode() + b"\0" + data


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


def _check_folder() -> None:
    try:
        private.make_folder(cache_folder())
        private.make_folder(folder())
    except OSError as error:
        raise ConfigError(
            f"compiled updates cannot be kept: {error.strerror or error}. Give XDG_CACHE_HOME a folder of your own, or train with --compile off."
        ) from error
    if not signature.sign(SIGNED, b"", cache_folder()):
        raise ConfigError(f"compiled updates cannot be signed: {signature.why_no_key()}. Train with --compile off.")


def _compile(graph: torch.fx.GraphModule, args: Sequence[Tensor], path: Path) -> None:
    from torch._inductor import config

    # In this process alone: torch's own pool of compile workers outlives the compilation.
    own = {"compile_threads": 1, "aot_inductor.custom_ops_to_c_shims": kernels.shims(cpu_info())}
    with disk.temp_folder(path.parent) as temp, _compiler_cache(temp) as more, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about itself
        with config.patch({**own, **more}):
            exported = torch.export.export(graph, tuple(args))
            made = Path(torch._inductor.aoti_compile_and_package(exported, package_path=str(temp / path.name)))
        data = made.read_bytes()
        signed = signature.sign(SIGNED, _content(path, data), cache_folder())
        disk.write_new(temp / "signed", signed.encode() + data, is_durable=False)
        os.replace(temp / "signed", path)  # who compiled the same meanwhile has made the same


@contextmanager
def _compiler_cache(temp: Path) -> Iterator[dict[str, Any]]:
    """Settings of the compiler. Torch loads what it finds in a folder of /tmp whose name anybody can guess: where others have made
    it, or may write to it, the compiler gets one that it shares with nobody, which takes it some seconds more.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    with environment_kept(COMPILER_CACHE):
        default = default_cache_dir()
        if all(map(_is_private, {default, os.environ.get(COMPILER_CACHE, default)})):
            yield {}
        else:
            os.environ[COMPILER_CACHE] = str(temp / "compiler")
            yield {"aot_inductor.precompile_headers": False, "cpp_cache_precompile_headers": False}


def _is_private(folder: str) -> bool:
    with suppress(OSError):
        os.makedirs(folder, mode=0o700)
    return not private.why_not_private(Path(folder).absolute())


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
