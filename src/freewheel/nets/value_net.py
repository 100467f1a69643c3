"""The network of action values: a body that gives features, and a head that gives values or their distributions."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn

from freewheel.config import NetConfig, QConfig
from freewheel.errors import ConfigError
from freewheel.nets.bodies import BUILT_IN, build_body
from freewheel.nets.custom import Body, given_body, make_body, output_of
from freewheel.nets.inputs import Obs, takes_vector
from freewheel.nets.layers import Output, activation, float32, initialize, norm
from freewheel.spec import Space


class QNet(nn.Module):
    """Observations to [B, A], or to [B, A, K] where an action has K quantiles or atoms.

    Nothing in it is random: `noise` is a vector of `num_noise` standard normals for the noisy layers (None: their means),
    `taus` [B, K], or [1, K] for all rows, the fractions of IQN's quantiles. Index i of A is the action `first_action` + i.
    """

    def __init__(
        self, body: nn.Module, head: QHead | None, embedding: FractionEmbedding | None, actions: spaces.Discrete
    ) -> None:
        super().__init__()
        self.body, self.embedding, self.head = body, embedding, head
        self.num_noise = head.num_noise if head is not None else 0
        self.num_actions, self.first_action = int(actions.n), int(actions.start)

    def forward(self, obs: Obs, noise: Tensor | None = None, taus: Tensor | None = None) -> Tensor:
        if self.head is None:  # where its head begins only the user knows
            with float32(next(self.body.parameters()).device):
                values: Tensor = self.body(obs)
                return values
        features: Tensor = self.body(obs)
        if self.embedding is None:
            out: Tensor = self.head(features, noise)
            return out
        if taus is None:
            raise TypeError("this network gives quantiles at fractions: call it with taus [B, N].")
        per_tau: Tensor = self.head(self.embedding(features, taus), noise)
        return per_tau.transpose(1, 2)


class QHead(nn.Module):
    """Features [..., num_features] to [..., A], or to [..., A, num_values] where an action has several values.

    Dueling: one stream gives the state's value, another each action's advantage. The mean advantage is subtracted, so that the two
    cannot drift against each other. With several values per action, each is split like this. `hidden` is the width of the streams'
    hidden layer, 0 for none; `shared` makes it one for both. With `noisy_sigma` all linear maps are noisy.
    """

    def __init__(
        self,
        num_features: int,
        num_actions: int,
        num_values: int | None = None,
        *,
        dueling: bool = False,
        noisy_sigma: float | None = None,
        hidden: int = 0,
        shared: bool = False,
        net: NetConfig = NetConfig(),  # noqa: B008 (frozen)
    ) -> None:
        super().__init__()
        width = num_values or 1
        self.shape = (num_actions,) if num_values is None else (num_actions, num_values)
        self.num_noise = 0

        def linear(num_inputs: int, num_outputs: int, kind: type[nn.Linear] = Output) -> nn.Linear | NoisyLinear:
            if noisy_sigma is None:
                return kind(num_inputs, num_outputs)
            made = NoisyLinear(num_inputs, num_outputs, noisy_sigma, self.num_noise)
            self.num_noise += made.num_noise
            return made

        count = 0 if not hidden else 2 if dueling and not shared else 1
        self.hidden = nn.ModuleList(
            HiddenLayer(linear(num_features, hidden, nn.Linear), hidden, net) for _ in range(count)
        )
        initialize(self.hidden, net.init, net.activation)
        self.advantage = linear(hidden or num_features, num_actions * width)
        self.value = linear(hidden or num_features, width) if dueling else None

    def forward(self, features: Tensor, noise: Tensor | None = None) -> Tensor:
        given = (noise,) if self.num_noise else ()
        rows, x = features.shape[:-1], features.flatten(0, -2)
        streams = [layer(x, *given) for layer in self.hidden] or [x]
        with float32(x.device):
            advantage: Tensor = self.advantage(streams[0].float(), *given).reshape(*rows, *self.shape)
            if self.value is None:
                return advantage
            value: Tensor = self.value(streams[-1].float(), *given).reshape(*rows, 1, *self.shape[1:])
            return value + advantage - advantage.mean(len(rows), keepdim=True)


class HiddenLayer(nn.Module):
    """A hidden layer of a head: its linear map, then norm and activation as in the body."""

    def __init__(self, linear: nn.Module, size: int, net: NetConfig) -> None:
        super().__init__()
        self.linear, self.norm, self.activation = linear, norm(net.norm, size), activation(net.activation)

    def forward(self, x: Tensor, *noise: Tensor | None) -> Tensor:
        x = self.linear(x, *noise)
        out: Tensor = self.activation(x if self.norm is None else self.norm(x))
        return out


class NoisyLinear(nn.Module):
    """weight = mean + sigma * outer(f(noise of outputs), f(noise of inputs)), f(x) = sign(x) sqrt(|x|).

    Reads `num_noise` standard normals of the network's noise vector, from `first_noise` on. Without noise it is the mean.
    """

    def __init__(self, num_inputs: int, num_outputs: int, sigma: float, first_noise: int) -> None:
        super().__init__()
        self.num_inputs, self.num_noise, self.first_noise = num_inputs, num_inputs + num_outputs, first_noise
        bound = 1 / math.sqrt(num_inputs)
        self.weight = nn.Parameter(torch.empty(num_outputs, num_inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_outputs).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((num_outputs, num_inputs), sigma * bound))
        self.bias_sigma = nn.Parameter(torch.full((num_outputs,), sigma * bound))

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        if noise is None:
            return F.linear(x, self.weight, self.bias)
        mine = noise[self.first_noise : self.first_noise + self.num_noise]
        mine = mine.sign() * mine.abs().sqrt()
        of_inputs, of_outputs = mine[: self.num_inputs], mine[self.num_inputs :]
        weight = self.weight + self.weight_sigma * torch.outer(of_outputs, of_inputs)
        return F.linear(x, weight, self.bias + self.bias_sigma * of_outputs)


class FractionEmbedding(nn.Module):
    """Features [B, F] and fractions taus [B, N], or [1, N] for all rows, to [B, N, F]: features times a learned function of each fraction.

    The function is relu(linear(cos(pi i tau))), i = 0 .. num_cosines - 1.
    """

    def __init__(self, num_features: int, num_cosines: int) -> None:
        super().__init__()
        self.num_cosines = num_cosines
        self.linear = nn.Linear(num_cosines, num_features)

    def forward(self, features: Tensor, taus: Tensor) -> Tensor:
        # Made here: as a float buffer they would be published with the weights.
        waves = torch.arange(self.num_cosines, device=taus.device, dtype=taus.dtype) * math.pi
        of_taus = F.relu(self.linear(torch.cos(taus.unsqueeze(-1) * waves)))
        return features.unsqueeze(1) * of_taus


def midpoints(count: int, device: torch.device | None = None) -> Tensor:
    """The midpoints of `count` equal parts of 0..1."""
    return (torch.arange(count, device=device, dtype=torch.float32) + 0.5) / count


def build_net(
    obs_space: Space,
    action_space: Space,
    net: NetConfig,
    q: QConfig,
    algo: str,
    stack: int = 1,
    body: Body | None = None,
    num_values: int | None = None,
    has_fractions: bool = False,
) -> QNet:
    """The network for these spaces and settings; `body` overrides net.body. Initial weights come from torch's generator.

    An action has `num_values` values, or with `has_fractions` one for each fraction that the network is given.
    """
    if not isinstance(action_space, spaces.Discrete):
        raise ConfigError(
            f"{algo} chooses among a number of actions and needs a Discrete action space; this env has {action_space}. "
            "Wrap the env so that its actions are numbered (for a Box: a table of the actions worth choosing from)."
        )
    given = given_body(body, net.body)
    if net.complete:
        has_more = num_values is not None or has_fractions
        return QNet(_complete(obs_space, action_space, given, q, algo, has_more, stack), None, None, action_space)
    hint = ", or set net.complete=true if it gives action values"
    hidden = _hidden_of_head(obs_space, given, net, q, has_fractions)
    own = replace(net, hidden=net.hidden[:-1]) if hidden else net
    made, num_features = build_body(given, obs_space, own, stack, hint=hint)
    embedding = FractionEmbedding(num_features, q.num_cosines) if has_fractions else None
    head = QHead(
        num_features,
        int(action_space.n),
        num_values,
        dueling=q.dueling,
        noisy_sigma=q.noisy_sigma if q.noisy else None,
        hidden=hidden,
        shared=q.head == "shared",
        net=net,
    )
    return QNet(made, head, embedding, action_space)


def _hidden_of_head(obs_space: Space, given: Body, net: NetConfig, q: QConfig, has_fractions: bool) -> int:
    """The width of the layer of net.hidden that belongs to the head; 0 if they are all the body's."""
    is_built_in = isinstance(given, str) and given in BUILT_IN
    if q.head == "linear" or not net.hidden or not is_built_in or not (q.dueling or q.noisy or has_fractions):
        return 0
    if has_fractions and len(net.hidden) == 1 and takes_vector(given, obs_space):
        return 0  # fractions would multiply the observations themselves, which may be 0
    return net.hidden[-1]


def _complete(
    obs_space: Space, actions: spaces.Discrete, given: Body, q: QConfig, algo: str, has_more: bool, stack: int
) -> nn.Module:
    """A network of the user's that gives action values itself."""
    if isinstance(given, str) and given in BUILT_IN:
        raise ConfigError(f"net.complete=true needs your own network in net.body, but net.body={given}.")
    made = make_body(given, obs_space, stack)
    if has_more or q.dueling or q.noisy:
        asked = [algo] + [name for name, on in (("dueling", q.dueling), ("noisy", q.noisy)) if on]
        raise ConfigError(
            f"net.complete=true: {type(made).__name__} gives action values itself, which {' with '.join(asked)} cannot use. "
            "Take algo dqn with q.dueling=false and q.noisy=false, or set net.complete=false and let it give features."
        )
    shape = output_of(made, obs_space, stack)
    if shape != (int(actions.n),):
        raise ConfigError(
            f"net.complete=true: {type(made).__name__} gives {shape} for one observation; it should give the values of "
            f"the {actions.n} actions, ({actions.n},)."
        )
    return made
