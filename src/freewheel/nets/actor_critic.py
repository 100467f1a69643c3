"""The network of a policy and its value function, in torch and, to act on few rows, in the core."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from freewheel import _core
from freewheel.config import NetConfig
from freewheel.contracts import Array
from freewheel.errors import ConfigError
from freewheel.nets.bodies import build_body
from freewheel.nets.custom import Body, given_body
from freewheel.nets.inputs import Obs, takes_vector, vector_input
from freewheel.nets.layers import Output, dense, float32, initialize
from freewheel.nets.masks import FORBIDDEN, allowed_in, seen_of
from freewheel.spec import MASK, Space

NORM_BOUND = 10.0
NORM_EPS = 1e-8

Dense = tuple[int, int, int, int]  # addresses of weights and bias, inputs, outputs


class Normalizer(nn.Module):
    """Brings vectors to mean 0 and standard deviation 1, bounded. The algorithm keeps the statistics up to date.

    They are buffers, so they are published with the weights.
    """

    mean: Tensor
    var: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("var", torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return ((x - self.mean) * torch.rsqrt(self.var + NORM_EPS)).clamp(-NORM_BOUND, NORM_BOUND)


class ActorCritic(nn.Module):
    """Observations to [B, num_outputs + 1]: the outputs of the policy's distribution, then the value.

    `spans` are the outputs of each discrete choice, which a mask can forbid. `log_std` is for Box actions: the second half of the
    outputs is then this parameter, the same for all observations. Initial weights come from torch's generator.
    """

    inputs: nn.Module | None  # None: the bodies take raw observations

    def __init__(
        self,
        obs_space: Space,
        num_outputs: int,
        net: NetConfig,
        *,
        spans: Sequence[tuple[int, int]] = (),
        log_std: float | None = None,
        normalize: bool = False,
        stack: int = 1,
        body: Body | None = None,
    ) -> None:
        super().__init__()
        given = given_body(body, net.body)
        # The part of a Dict beside the mask; "" if there are several, None if there is no mask.
        space, self.rest = seen_of(obs_space, num_outputs if spans else 0)
        is_vector = takes_vector(given, space)
        if normalize and not is_vector:
            raise ConfigError(
                "ppo.normalize_obs works on vectors (net.body=mlp); images are scaled to 0..1 anyway, and your own network can "
                "normalise by itself. Leave it out."
            )
        self.inputs, size = vector_input(space, stack, net.rescale) if is_vector else (None, 0)
        self.norm = Normalizer(size) if normalize else None
        self.body, num_features = _body(given, space, net, stack, size)
        self.value_body = None if net.shared else _body(given, space, net, stack, size)[0]
        means = num_outputs if log_std is None else num_outputs // 2
        self.policy, self.value = Output(num_features, means), Output(num_features, 1)
        self.log_std = None if log_std is None else nn.Parameter(torch.full((means,), log_std))
        self.num_outputs = num_outputs
        if net.init == "orthogonal":
            # At the start all actions are about equally likely, whatever the observation.
            initialize(self.policy, "orthogonal", net.activation, 0.01)
            initialize(self.value, "orthogonal", net.activation, 1.0)

    def forward(self, obs: Obs) -> Tensor:
        seen = self.seen(obs)
        features: Tensor = self.body(seen)
        of_value: Tensor = features if self.value_body is None else self.value_body(seen)
        with float32(features.device):
            outputs: Tensor = self.policy(features.float())
            if self.log_std is not None:
                outputs = torch.cat([outputs, self.log_std.expand(len(outputs), -1)], 1)
            if self.rest is not None and isinstance(obs, dict):
                outputs = torch.where(allowed_in(obs[MASK], self.num_outputs), outputs, FORBIDDEN)
            return torch.cat([outputs, self.value(of_value.float())], 1)

    def seen(self, obs: Obs) -> Obs:
        """The input of the bodies."""
        raw = self.raw(obs)
        return raw if self.norm is None else self.norm(raw)

    def raw(self, obs: Obs) -> Obs:
        """The input of the bodies before it is normalised."""
        if self.rest and isinstance(obs, dict):
            obs = obs[self.rest]
        if self.inputs is None:
            return obs
        vector: Tensor = self.inputs(obs)
        return vector


def _body(given: Body, space: Space, net: NetConfig, stack: int, num_inputs: int) -> tuple[nn.Module, int]:
    """With the number of its features. `num_inputs` is 0 where it takes raw observations."""
    gain = math.sqrt(2)
    if not num_inputs:
        return build_body(given, space, net, stack, orthogonal_gain=gain)
    layers, num_features = dense(num_inputs, net.hidden, net.activation, net.norm)
    initialize(layers, net.init, net.activation, gain)
    return layers, num_features


def fast_forward(net: ActorCritic) -> FastMlp | None:
    """The same network in the core: on few rows the calls of torch, and of numpy, take longer than the arithmetic.

    None unless it is an MLP with tanh or relu over one vector of floats, whose weights are contiguous float32 in this machine's memory.
    """
    if not isinstance(net.inputs, nn.Flatten) or net.rest == "":
        return None
    bodies = [list(body) for body in (net.body, net.value_body) if isinstance(body, nn.Sequential)]
    linears: list[list[Any]] = [body[::2] for body in bodies]
    activations = {type(layer) for body in bodies for layer in body[1::2]}
    is_known = len(activations) <= 1 and activations <= {nn.Tanh, nn.ReLU}
    if not is_known or any(type(layer) is not nn.Linear for body in linears for layer in body):
        return None
    for tensor in net.parameters():
        if tensor.device.type != "cpu" or tensor.dtype != torch.float32 or not tensor.is_contiguous():
            return None
    return FastMlp(net, [[_dense(layer) for layer in body] for body in linears], nn.Tanh in activations)


class FastMlp:
    """From the fields of rows to outputs. Reads the network's weights in place at every call."""

    def __init__(self, net: ActorCritic, bodies: list[list[Dense]], is_tanh: bool) -> None:
        self._net = net  # kept: the core holds addresses
        self._name = f"obs.{net.rest}" if net.rest else "obs"
        self._mlp = _core.Mlp.make(bodies, _dense(net.policy), _dense(net.value), is_tanh)
        self._mask = None if net.rest is None else f"obs.{MASK}"
        self._norm = None if net.norm is None else (_array(net.norm.mean), _array(net.norm.var))
        self._log_std = None if net.log_std is None else _array(net.log_std)
        self._num_outputs = net.num_outputs

    def __call__(self, obs: Mapping[str, Array]) -> Array:
        x = obs[self._name]
        if x.ndim != 2:
            x = x.reshape(len(x), -1)
        if self._norm is not None:
            mean, var = self._norm
            x = np.clip((x - mean) / np.sqrt(var + np.float32(NORM_EPS)), -NORM_BOUND, NORM_BOUND)
        out = np.empty((len(x), self._num_outputs + 1), np.float32)
        self._mlp.run(np.ascontiguousarray(x), out)
        if self._log_std is not None:
            out[:, self._num_outputs - len(self._log_std) : -1] = self._log_std
        if self._mask is not None:
            out[:, :-1][~allowed_in(obs[self._mask], self._num_outputs)] = FORBIDDEN
        return out


def _dense(layer: nn.Linear) -> Dense:
    return layer.weight.data_ptr(), layer.bias.data_ptr(), layer.in_features, layer.out_features


def _array(tensor: Tensor) -> Array:
    """Over the tensor's own memory: it changes with the weights."""
    made: Array = tensor.detach().numpy()
    return made
