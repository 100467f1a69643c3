"""Small networks in the core: for the few rows of a step the calls of torch, and of numpy, take longer than the numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from freewheel import _core
from freewheel.nets.actor_critic import FORBIDDEN, NORM_BOUND, NORM_EPS, ActorCritic
from freewheel.nets.inputs import Numbers
from freewheel.spec import MASK

Array = np.ndarray[Any, Any]
Forward = Callable[[Mapping[str, Array]], Array]
Dense = tuple[int, int, int, int]  # where weights and bias lie, inputs, outputs

ACTIVATIONS: tuple[type[nn.Module], ...] = (nn.Tanh, nn.ReLU)


def fast_forward(net: ActorCritic) -> Forward | None:
    """The network as a function from the fields of rows to outputs, over the memory of its own weights.

    None where it is not one of linear maps and simple activations over one vector of floats.
    """
    name = _plain_input(net)
    bodies = [_layers(body) for body in (net.body, net.value_body) if body is not None]
    kinds = {kind for body in bodies if body is not None for kind in body[1]}
    if name is None or any(body is None for body in bodies) or len(kinds) > 1 or not _lies_well(net):
        return None
    return FastMlp(net, name, [body[0] for body in bodies if body is not None], nn.Tanh in kinds)


class FastMlp:
    """The network's weights are read at every call, where they lie."""

    def __init__(self, net: ActorCritic, name: str, bodies: list[list[Dense]], is_tanh: bool) -> None:
        self._net, self._name = net, name  # kept: the core holds addresses
        self._mlp = _core.Mlp.make(bodies, _dense(net.policy), _dense(net.value), is_tanh)
        self._mask = None if net.rest is None else f"obs.{MASK}"
        self._norm = None if net.norm is None else (_array(net.norm.mean), _array(net.norm.var))
        self._log_std = None if net.log_std is None else _array(net.log_std)
        self._num_outputs = net.num_outputs

    def __call__(self, obs: Mapping[str, Array]) -> Array:
        x = obs[self._name]
        x = x.reshape(len(x), -1)
        if self._norm is not None:
            mean, var = self._norm
            x = np.clip((x - mean) / np.sqrt(var + np.float32(NORM_EPS)), -NORM_BOUND, NORM_BOUND)
        out = np.empty((len(x), self._num_outputs + 1), np.float32)
        self._mlp.run(np.ascontiguousarray(x), out)
        if self._log_std is not None:
            out[:, self._num_outputs - len(self._log_std) : -1] = self._log_std
        if self._mask is not None:
            mask = obs[self._mask]
            allowed = mask.reshape(len(mask), -1)[:, -self._num_outputs :] != 0
            out[:, :-1][~allowed] = FORBIDDEN
        return out


def _plain_input(net: ActorCritic) -> str | None:
    if net.inputs is None or len(net.inputs.parts) != 1:
        return None
    part = net.inputs.parts[0]
    if not isinstance(part, Numbers) or part.middle is not None or not part.is_float:
        return None
    return f"obs.{net.rest}" if net.rest else ("obs" if net.rest is None else None)


def _layers(body: nn.Module) -> tuple[list[Dense], list[type[nn.Module]]] | None:
    """The linear maps and the activations of the hidden layers."""
    if not isinstance(body, nn.Sequential):
        return None
    modules = list(body)
    linears, kinds = modules[::2], [type(module) for module in modules[1::2]]
    if len(linears) != len(kinds) or not set(kinds) <= set(ACTIVATIONS):
        return None
    found = [_dense(linear) for linear in linears if type(linear) is nn.Linear and linear.bias is not None]
    return (found, kinds) if len(found) == len(linears) else None


def _lies_well(net: ActorCritic) -> bool:
    """Every number of it is a float of this machine's memory, row by row."""
    return all(
        tensor.device.type == "cpu" and tensor.dtype == torch.float32 and tensor.is_contiguous()
        for tensor in net.parameters()
    )


def _dense(layer: nn.Linear) -> Dense:
    return layer.weight.data_ptr(), layer.bias.data_ptr(), layer.in_features, layer.out_features


def _array(tensor: Tensor) -> Array:
    """Over the tensor's own memory: whoever changes the weights changes this."""
    made: Array = tensor.detach().numpy()
    return made
