"""Small networks in numpy: for the few rows of a step torch's calls take longer than the numbers.

64 rows through two bodies of 64-64: 24 us here, 32 us as plain calls of torch, 101 us as its modules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from freewheel.nets.actor_critic import FORBIDDEN, MASK, NORM_BOUND, NORM_EPS, ActorCritic
from freewheel.nets.inputs import Numbers

Array = np.ndarray[Any, Any]
Forward = Callable[[Mapping[str, Array]], Array]
Layer = tuple[nn.Linear, Callable[[Array], Array]]

ACTIVATIONS: dict[type[nn.Module], Callable[[Array], Array]] = {
    nn.Tanh: lambda x: np.tanh(x, out=x),
    nn.ReLU: lambda x: np.maximum(x, 0, out=x),
}


def fast_forward(net: ActorCritic) -> Forward | None:
    """The network as a function from the fields of rows to outputs, over the memory of its own weights.

    None where it is not one of linear maps and simple activations over one vector of floats.
    """
    # Stacked weights are views of one vector: a network that was not bound to one has none.
    if len({tensor.untyped_storage().data_ptr() for tensor in net.parameters()}) != 1:
        return None
    name = _plain_input(net)
    bodies = [_layers(body) for body in (net.body, net.value_body) if body is not None]
    if name is None or any(body is None for body in bodies):
        return None
    return FastMlp(net, name, [body for body in bodies if body is not None])


class FastMlp:
    """All bodies at once: weights [bodies, in, out], so that two cost as many calls as one."""

    def __init__(self, net: ActorCritic, name: str, bodies: list[list[Layer]]) -> None:
        self._name = name
        self._layers = [
            (
                _stacked([layer.weight.t() for layer, _ in same]),
                _stacked([layer.bias[None] for layer, _ in same]),
                same[0][1],
            )
            for same in zip(*bodies, strict=True)
        ]
        self._mask = None if net.rest is None else f"obs.{MASK}"
        self._policy, self._value = _linear(net.policy), _linear(net.value)
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
        features = x[None]
        for weights, biases, activate in self._layers:
            features = features @ weights
            features += biases
            activate(features)
        weight, bias = self._policy
        means = out[:, : weight.shape[1]]
        np.add(features[0] @ weight, bias, out=means)
        if self._log_std is not None:
            out[:, weight.shape[1] : -1] = self._log_std
        if self._mask is not None:
            mask = obs[self._mask]
            allowed = mask.reshape(len(mask), -1)[:, -self._num_outputs :] != 0
            out[:, :-1][~allowed] = FORBIDDEN
        weight, bias = self._value
        np.add(features[-1] @ weight, bias, out=out[:, -1:])
        return out


def _plain_input(net: ActorCritic) -> str | None:
    if net.inputs is None or len(net.inputs.parts) != 1:
        return None
    part = net.inputs.parts[0]
    if not isinstance(part, Numbers) or part.middle is not None or not part.is_float:
        return None
    return f"obs.{net.rest}" if net.rest else ("obs" if net.rest is None else None)


def _layers(body: nn.Module) -> list[Layer] | None:
    """The linear map and activation of each hidden layer."""
    if not isinstance(body, nn.Sequential):
        return None
    modules = list(body)
    found = []
    for linear, act in zip(modules[::2], modules[1::2], strict=False):
        if not isinstance(linear, nn.Linear) or type(act) not in ACTIVATIONS:
            return None
        found.append((linear, ACTIVATIONS[type(act)]))
    return found if len(modules) == 2 * len(found) else None


def _linear(layer: nn.Linear) -> tuple[Array, Array]:
    return _array(layer.weight).T, _array(layer.bias)


def _stacked(tensors: list[Tensor]) -> Array:
    """[n, ...] over the memory of n tensors of one shape that lie in one vector at any distance."""
    first = tensors[0].detach()
    apart = (tensors[-1].data_ptr() - first.data_ptr()) // first.element_size()
    made: Array = torch.as_strided(first, (len(tensors), *first.shape), (apart, *first.stride())).numpy()
    return made


def _array(tensor: Tensor) -> Array:
    """Over the tensor's own memory: whoever changes the weights changes this."""
    made: Array = tensor.detach().numpy()
    return made
