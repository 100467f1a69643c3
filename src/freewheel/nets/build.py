"""The network of a run, from its spaces and settings."""

from __future__ import annotations

from gymnasium import spaces
from torch import Tensor, nn

from freewheel.config import NetConfig, QConfig
from freewheel.errors import ConfigError
from freewheel.nets.cnn import CnnBody
from freewheel.nets.custom import Body, given_body, make_body, output_of
from freewheel.nets.heads import FractionEmbedding, QHead
from freewheel.nets.impala import ImpalaBody
from freewheel.nets.inputs import Obs, is_image
from freewheel.nets.mlp import MlpBody
from freewheel.spec import Space


class QNet(nn.Module):
    """Observations to what the algorithm works on: [B, A], or [B, A, K] where an action has K quantiles or atoms.

    Nothing in it is random: `noise` is a vector of `num_noise` standard normals for the noisy layers (None: their means),
    `taus` [B, K], or [1, K] for all rows, the fractions at which IQN's quantiles are asked for. Place i of A is the action `first_action` + i.
    """

    def __init__(
        self, body: nn.Module, head: QHead | None, embedding: FractionEmbedding | None, actions: spaces.Discrete
    ) -> None:
        super().__init__()
        self.body, self.embedding, self.head = body, embedding, head
        self.num_noise = head.num_noise if head is not None else 0
        self.num_actions, self.first_action = int(actions.n), int(actions.start)

    def forward(self, obs: Obs, noise: Tensor | None = None, taus: Tensor | None = None) -> Tensor:
        features: Tensor = self.body(obs)
        if self.head is None:
            return features
        if self.embedding is None:
            out: Tensor = self.head(features, noise)
            return out
        if taus is None:
            raise TypeError("this network gives quantiles at fractions: call it with taus [B, N].")
        per_tau: Tensor = self.head(self.embedding(features, taus), noise)
        return per_tau.transpose(1, 2)


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
    """The network for these spaces and settings; `body` goes before net.body. First weights come from torch's generator.

    An action has `num_values` values, or with `has_fractions` one for each fraction that the network is asked for.
    """
    actions = _discrete(action_space, algo)
    given = given_body(body, net.body)
    made = own_body(given, obs_space, net, stack) or make_body(given, obs_space, stack)
    if net.complete:
        has_more = num_values is not None or has_fractions
        return QNet(_complete(made, obs_space, actions, given, q, algo, has_more, stack), None, None, actions)
    shape = (
        (made.num_features,) if isinstance(made, (MlpBody, CnnBody, ImpalaBody)) else output_of(made, obs_space, stack)
    )
    if len(shape) != 1:
        raise ConfigError(
            f"the network {type(made).__name__} gives {shape} for one observation; a body gives a vector of features. "
            "End it with .flatten(1), or set net.complete=true if it gives action values."
        )
    embedding = FractionEmbedding(shape[0], q.num_cosines) if has_fractions else None
    sigma = q.noisy_sigma if q.noisy else None
    head = QHead(shape[0], int(actions.n), num_values, dueling=q.dueling, noisy_sigma=sigma)
    return QNet(made, head, embedding, actions)


def own_body(given: Body, obs_space: Space, net: NetConfig, stack: int) -> nn.Module | None:
    if given in ("auto", "mlp") and not (given == "auto" and is_image(obs_space)):
        return MlpBody(obs_space, net.hidden, net.activation, net.norm, net.init, stack, net.rescale)
    return image_body(given, obs_space, net, net.init, stack)


def image_body(given: Body, obs_space: Space, net: NetConfig, init: str, stack: int) -> CnnBody | ImpalaBody | None:
    """A body of ours for images, if `given` names one."""
    how = (net.hidden, net.activation, net.norm, init, net.conv_bias, stack)
    if given in ("auto", "cnn"):
        return CnnBody(obs_space, net.channels, net.kernels, net.strides, *how)
    return ImpalaBody(obs_space, net.channels, *how) if given == "impala" else None


def _discrete(action_space: Space, algo: str) -> spaces.Discrete:
    if not isinstance(action_space, spaces.Discrete):
        raise ConfigError(
            f"{algo} chooses among a number of actions and needs a Discrete action space; this env has {action_space}. "
            "Wrap the env so that its actions are numbered (for a Box: a table of the actions worth choosing from)."
        )
    return action_space


def _complete(
    made: nn.Module,
    obs_space: Space,
    actions: spaces.Discrete,
    given: Body,
    q: QConfig,
    algo: str,
    has_more: bool,
    stack: int,
) -> nn.Module:
    if isinstance(given, str) and given in ("auto", "mlp", "cnn", "impala"):
        raise ConfigError(f"net.complete=true says that net.body is a whole network of yours, but net.body={given}.")
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
