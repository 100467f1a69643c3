"""The network of a policy that is learned itself: what to do, and what the state is worth."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from freewheel.config import NetConfig
from freewheel.errors import ConfigError
from freewheel.nets.build import image_body
from freewheel.nets.cnn import CnnBody
from freewheel.nets.custom import Body, given_body, make_body, output_of
from freewheel.nets.impala import ImpalaBody
from freewheel.nets.inputs import Obs, Vector, is_image, leaves
from freewheel.nets.layers import begin
from freewheel.nets.mlp import dense
from freewheel.spec import MASK, Space

# In place of a forbidden action's logit: its chance is 0 in float32, and all sums stay finite.
FORBIDDEN = -1e9
NORM_BOUND = 10.0
NORM_EPS = 1e-8


class Normal(nn.Module):
    """Brings vectors to mean 0 and deviation 1 by statistics that somebody else keeps; bounded.

    As buffers they travel with the weights: whoever has the one has the other.
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
    """Observations to [B, num_outputs + 1]: the outputs that make the policy's distribution, and last the value.

    With `log_std` the second half of the outputs is it, the same for all observations. Without a `value_body` both heads
    share one. `inputs` is None where the bodies take observations as they are.
    """

    def __init__(
        self,
        body: nn.Module,
        value_body: nn.Module | None,
        num_features: int,
        num_outputs: int,
        *,
        inputs: Vector | None,
        norm: Normal | None,
        log_std: float | None,
        rest: str | None,
        spans: Sequence[tuple[int, int]],
    ) -> None:
        super().__init__()
        self.inputs, self.norm = inputs, norm
        self.body, self.value_body = body, value_body
        means = num_outputs if log_std is None else num_outputs // 2
        self.policy, self.value = nn.Linear(num_features, means), nn.Linear(num_features, 1)
        self.log_std = None if log_std is None else nn.Parameter(torch.full((means,), log_std))
        self.num_outputs = num_outputs
        # Which part of a Dict is the observation proper, "" for all but the mask; None where there is no mask.
        self.rest = rest
        self.spans = list(spans)

    def forward(self, obs: Obs) -> Tensor:
        seen = self.seen(obs)
        features: Tensor = self.body(seen)
        outputs: Tensor = self.policy(features)
        if self.log_std is not None:
            outputs = torch.cat([outputs, self.log_std.expand(len(outputs), -1)], 1)
        if self.rest is not None and isinstance(obs, dict):
            outputs = torch.where(self.mask(obs), outputs, FORBIDDEN)
        value: Tensor = self.value(features if self.value_body is None else self.value_body(seen))
        return torch.cat([outputs, value], 1)

    def seen(self, obs: Obs) -> Obs:
        """What the bodies are given."""
        raw = self.raw(obs)
        return raw if self.norm is None else self.norm(raw)

    def raw(self, obs: Obs) -> Obs:
        """The same before it is normalised."""
        if self.rest and isinstance(obs, dict):
            obs = obs[self.rest]
        if self.inputs is None:
            return obs
        vector: Tensor = self.inputs(obs)
        return vector

    def mask(self, obs: dict[str, Tensor]) -> Tensor:
        mask = obs[MASK]
        # Of stacked frames the newest says what is allowed.
        return mask.reshape(len(mask), -1)[:, -self.num_outputs :] != 0


def build_actor_critic(
    obs_space: Space,
    num_outputs: int,
    net: NetConfig,
    *,
    spans: Sequence[tuple[int, int]] = (),
    log_std: float | None = None,
    normalize: bool = False,
    stack: int = 1,
    body: Body | None = None,
) -> ActorCritic:
    """`spans` are the outputs of each choice, where actions can be forbidden; `log_std` is for Box actions."""
    given = given_body(body, net.body)
    space, rest = _without_mask(obs_space, num_outputs, spans)
    inputs = None
    if given == "mlp" or (given == "auto" and not is_image(space)):
        inputs = Vector(space, stack, net.rescale)
        num_features = net.hidden[-1] if net.hidden else inputs.size
        made = [_mlp(inputs.size, net) for _ in range(1 if net.shared else 2)]
    else:
        made = [_body(given, space, net, stack) for _ in range(1 if net.shared else 2)]
        num_features = _num_features(made[0], space, stack)
    whole = ActorCritic(
        made[0],
        None if net.shared else made[1],
        num_features,
        num_outputs,
        inputs=inputs,
        norm=_norm(inputs) if normalize else None,
        log_std=log_std,
        rest=rest,
        spans=spans,
    )
    if net.init == "orthogonal":
        # The policy begins near even chances, whatever it sees.
        _orthogonal(whole.policy, 0.01)
        _orthogonal(whole.value, 1.0)
    return whole


def _norm(inputs: Vector | None) -> Normal:
    if inputs is None:
        raise ConfigError(
            "ppo.normalize_obs works on vectors (net.body=mlp); images are brought to 0..1 anyway, and a network of "
            "yours can hold a norm itself. Leave it out."
        )
    return Normal(inputs.size)


def _without_mask(space: Space, num_outputs: int, spans: Sequence[tuple[int, int]]) -> tuple[Space, str | None]:
    """The observation proper, and its name in the Dict: "" if it is still one of several parts, None without a mask."""
    if not isinstance(space, spaces.Dict) or MASK not in space.spaces:
        return space, None
    mask = space.spaces[MASK]
    size = int(np.prod(mask.shape or (), dtype=np.int64))
    if not spans or not isinstance(mask, (spaces.Box, spaces.MultiBinary)) or size != num_outputs:
        wants = f"a Box or MultiBinary of {num_outputs} numbers" if spans else "there only where actions are choices"
        raise ConfigError(
            f"the observation's part {MASK!r} is {mask}; an action mask is {wants}. Rename it if it is none."
        )
    others = {name: part for name, part in space.spaces.items() if name != MASK}
    if not others:
        raise ConfigError(f"the observation has the part {MASK!r} alone: there is nothing to choose by.")
    (name, part), *more = others.items()
    if not more and not isinstance(part, (spaces.Dict, spaces.Tuple)):
        return part, name
    return spaces.Dict(others), ""


def _mlp(size: int, net: NetConfig) -> nn.Module:
    made = dense(size, net.hidden, net.activation, net.norm)
    _begin(made, net)
    return made


def _body(given: Body, space: Space, net: NetConfig, stack: int) -> nn.Module:
    made = image_body(given, space, net, "default", stack)
    if made is not None:
        _begin(made, net)
        return made
    return make_body(given, space, stack)


def _num_features(made: nn.Module, space: Space, stack: int) -> int:
    if isinstance(made, (CnnBody, ImpalaBody)):
        return made.num_features
    shape = output_of(made, space, stack)
    if len(shape) != 1:
        raise ConfigError(
            f"the network {type(made).__name__} gives {shape} for one observation; a body gives a vector of features. "
            "End it with .flatten(1)."
        )
    return shape[0]


def _begin(module: nn.Module, net: NetConfig) -> None:
    if net.init != "orthogonal":
        begin(module, net.init, net.activation)
        return
    for layer in module.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            _orthogonal(layer, math.sqrt(2))


def _orthogonal(layer: nn.Linear | nn.Conv2d, gain: float) -> None:
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def mask_field(obs_space: Space) -> str | None:
    """The name of the mask among the fields of a row; None where there is none."""
    return next((f"obs.{name}" for name, _ in leaves(obs_space) if name == MASK), None)
