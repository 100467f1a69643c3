"""Acting by a copy of the network that follows the weights: in bf16, in int8, or on another device. The learner is not affected."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from freewheel.contracts import Array, Columns, Policy
from freewheel.errors import ConfigError
from freewheel.machine.trial import measure
from freewheel.nets.flat import Flat
from freewheel.nets.inputs import any_observations, set_memory_format
from freewheel.spec import Space

INT8_MAX = 127
Copied = tuple[nn.Module, Callable[[], None]]  # the copy, and a function that makes it follow the weights


def act_on(policy: Policy, net: nn.Module, vector: Tensor, device: str) -> None:
    """The policy acts by a copy of the network on this device from now on."""
    made, policy.refresh = on_device(net, vector, device)
    policy.use(made)


def act_in(
    policy: Policy, net: nn.Module, precision: str, space: Space, stack: int, lanes: int, min_speedup: float
) -> Comparison | None:
    """The policy acts in int8 or bf16 from now on if that is `min_speedup` times as fast; None if it is not."""
    made, refresh = int8_copy(net) if precision == "int8" else bf16_copy(net)
    seen = {name: rows.numpy() for name, rows in any_observations(space, stack, lanes).items()}
    found = Comparison(policy, net, made, precision)
    times = measure({"fp32": lambda: found.greedy(net, seen), precision: lambda: found.greedy(made, seen)})
    found.speed = min(times["fp32"]) / min(times[precision])
    if found.speed < min_speedup:
        policy.use(net)
        return None
    policy.use(made)
    policy.refresh = refresh
    return found


class Comparison:
    """A policy that acts by a copy of its network in fewer bits: `speed` times as fast, and with the same actions as in fp32
    in a share of the observations that `add` was shown. The share means little before the weights are trained."""

    def __init__(self, policy: Policy, net: nn.Module, made: nn.Module, precision: str) -> None:
        self.policy, self.net, self.made, self.precision = policy, net, made, precision
        self.speed = 0.0
        self.num_rows = 0
        self._num_same = 0.0

    @property
    def agreement(self) -> float:
        return self._num_same / max(self.num_rows, 1)

    def add(self, obs: Columns) -> None:
        """Compares the best actions for these observations; needs the newest weights in both networks."""
        plain, narrow = self.greedy(self.net, obs), self.greedy(self.made, obs)
        rows = len(next(iter(plain.values())))
        self._num_same += rows * agreement(plain, narrow)
        self.num_rows += rows

    def greedy(self, by: nn.Module, obs: Columns) -> Columns:
        """The policy acts by this network from now on."""
        self.policy.use(by)
        return self.policy.greedy(dict(obs))


def agreement(plain: Mapping[str, Array], narrow: Mapping[str, Array]) -> float:
    """The share of rows whose best action is the same."""
    same: Any = np.ones(len(next(iter(plain.values()))), np.bool_)
    for name, actions in plain.items():
        same &= (actions == narrow[name]).reshape(len(actions), -1).all(1)
    return float(same.mean())


def on_device(net: nn.Module, vector: Tensor, device: torch.device | str) -> Copied:
    """A copy on the device of a network that is bound to the vector. It follows by one copy of the vector."""
    flat = Flat(net)
    made = copy.deepcopy(net).to(device)
    there = flat.vector(made)
    flat.bind(made, there).eval().requires_grad_(False)

    def refresh() -> None:
        there.copy_(vector)

    return made, refresh


def bf16_copy(net: nn.Module) -> Copied:
    """A copy whose linear maps and convolutions are in bf16, except for the last; the rest is shared with `net`.

    Their weights are stored in bf16: to convert them in each pass would take longer than the pass.
    """
    made = _sharing_copy(net)
    set_memory_format(made, "channels_last")
    pairs: list[tuple[Tensor, Tensor]] = []
    for module in made.modules():
        if type(module) in (nn.Linear, nn.Conv2d):  # not an Output
            for name, wide in list(module.named_parameters(recurse=False)):
                own = nn.Parameter(wide.detach().to(torch.bfloat16, copy=True), requires_grad=False)
                setattr(module, name, own)
                pairs.append((own, wide))

    def refresh() -> None:
        for own, wide in pairs:
            own.copy_(wide)

    return Bf16Net(made), refresh


class Bf16Net(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, *given: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            out: Tensor = self.net(*given)
        return out.float()


def int8_copy(net: nn.Module) -> Copied:
    """A copy whose linear maps, except for the last, are in int8 (weights scaled per output, inputs per batch); the rest is shared."""
    made = _sharing_copy(net)
    layers: list[Int8Linear] = []
    for name, module in list(made.named_modules()):
        if type(module) is nn.Linear:
            parent, _, own = name.rpartition(".")
            try:
                layers.append(Int8Linear(module))
            except RuntimeError as error:
                raise ConfigError(
                    f"local.act_precision=int8 does not run on this machine ({str(error).splitlines()[0]}). Leave it out."
                ) from error
            setattr(made.get_submodule(parent), own, layers[-1])
    if not layers:
        raise ConfigError(
            "local.act_precision=int8: the network has no torch.nn.Linear before its output. Leave it out."
        )

    def refresh() -> None:
        for layer in layers:
            layer.refresh()

    return made, refresh


class Int8Linear(nn.Module):
    """Replaces a linear map, whose weights it follows at each `refresh`."""

    def __init__(self, source: nn.Linear) -> None:
        super().__init__()
        self._source = [source]  # in a list: not a submodule
        self.refresh()

    def refresh(self) -> None:
        source = self._source[0]
        weight = source.weight.detach()
        scales = (weight.abs().amax(1) / INT8_MAX).clamp(min=1e-12).double()
        zeros = torch.zeros(len(scales), dtype=torch.int64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch plans to drop quantized tensors; nothing else is as fast yet
            whole = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        self._packed = torch.ops.quantized.linear_prepack(whole, source.bias)

    def forward(self, x: Tensor) -> Tensor:
        # Sums of full 8-bit products overflow on older CPUs: inputs have 7 bits.
        out: Tensor = torch.ops.quantized.linear_dynamic(x, self._packed, True)
        return out


def _sharing_copy(net: nn.Module) -> nn.Module:
    """A copy of the modules over the same tensors, so that what is not replaced follows by itself."""
    memo = {id(tensor): tensor for tensor in (*net.parameters(), *net.buffers())}
    return copy.deepcopy(net, memo)
