"""What the algorithms of the DQN family share: a network of action values, exploration by epsilon or noise, a replay, and the
mathematics of their losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from freewheel.actors.value_policy import Explorer, ValuePolicy
from freewheel.algos.algo import Outcome, Params, seeded
from freewheel.algos.from_replay import FromReplay, ReplaySettings
from freewheel.config import ExploreConfig, QConfig
from freewheel.contracts import Batch, Draws, Forward, Lookahead, Loss, ParamGroup, Seed, Spaces
from freewheel.errors import ConfigError
from freewheel.memory.dials import Dials
from freewheel.nets.masks import MaskedNet, mask_field, seen_of
from freewheel.nets.value_net import QNet, build_net
from freewheel.spec import choices

CustomLoss = Callable[[Forward, Params, Params, Batch, Draws], tuple[Tensor, Any]]


@dataclass(frozen=True)
class ValueSettings(ReplaySettings):
    """Settings of an algorithm of action values."""

    q: QConfig = field(default_factory=QConfig)
    explore: ExploreConfig = field(default_factory=ExploreConfig)


class ValueBased(FromReplay):
    """Subclasses define the loss, the value of an action, and what the loss needs of the target network."""

    Settings = ValueSettings
    takes_loss = takes_complete = True
    dials = ("epsilon", "lr", "ratio", "prioritized")
    uses_mask = True
    num_values: str | None = None  # name of the setting of `q`: how many values an action has
    has_fractions = False
    num_act_taus = 0

    def __init__(
        self, config: Any, spaces: Spaces, seed: Seed, body: Any = None, loss: CustomLoss | None = None
    ) -> None:
        super().__init__(config, spaces, seed)
        q = config.q
        seen, rest = seen_of(spaces.obs, sum(choices(spaces.action)[0]))
        net: QNet = seeded(
            seed("net"),
            build_net,
            seen,
            spaces.action,
            config.net,
            q,
            config.algo,
            config.world.stack,
            body=body,
            num_values=getattr(q, self.num_values) if self.num_values else None,
            has_fractions=self.has_fractions,
        )
        self.net: QNet | MaskedNet = net if rest is None else MaskedNet(net, rest)
        self.first_action, self.num_act_noise = self.net.first_action, self.net.num_noise
        self.groups = (ParamGroup("all", clip_norm=config.learner.clip_norm, target=self.target_rule()),)
        self.noises: tuple[str, ...] = ()
        if self.net.num_noise:
            self.noises = ("noise", "target_noise", *(["choose_noise"] if q.double else []))
        own = loss or self.loss
        if loss is None:
            self.lookahead = self.make_lookahead()
        else:
            self.custom_loss = getattr(loss, "__name__", type(loss).__name__)
        self.losses = (Loss(lambda *given: own(*given[:-1])),)  # these losses take no `hyper`

    def loss(self, forward: Forward, params: Params, target: Params, batch: Batch, draws: Draws) -> tuple[Tensor, Any]:
        raise NotImplementedError

    def q_values(self, out: Tensor) -> Tensor:
        """From the network's outputs to action values [B, A]: [B, A, N] has values of equal weight, such as quantiles."""
        return out if out.ndim == 2 else out.mean(-1)

    def make_lookahead(self) -> Lookahead | None:
        return Lookahead(("next_out",), self.look_ahead)

    def look_ahead(self, forward: Forward, target: Params, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """What the target network gives for the next states."""
        return {"next_out": forward(target, batch["next_obs"], draws.get("target_noise"), None)}

    def next_outputs(
        self, forward: Forward, params: Params, target: Params, batch: Batch, draws: Draws
    ) -> tuple[Tensor, Tensor]:
        """For the next states: the target network's outputs, and those that choose the best action (with double the online network's)."""
        found = batch if "next_out" in batch else self.look_ahead(forward, target, batch, draws)
        valued: Tensor = found["next_out"]
        if not self.config.q.double:
            return valued, valued
        return valued, forward(params, batch["next_obs"], draws.get("choose_noise"), None)

    def draws(self, rows: int, generator: torch.Generator) -> dict[str, Tensor]:
        return {name: torch.randn(self.net.num_noise, generator=generator) for name in self.noises}

    def policy(
        self, net: nn.Module, seed: Seed, lanes: range, all_lanes: int, dials: Dials | None = None
    ) -> ValuePolicy:
        config = self.config
        explorer = Explorer(
            config.explore,
            len(lanes),
            self.net.num_actions,
            seed("explore"),
            config.q.noisy,
            first_lane=lanes.start,
            all_lanes=all_lanes,
        )
        dtype = self.spaces.action.dtype
        mask = mask_field(self.spaces.obs)
        return ValuePolicy(net, self, explorer, dtype, seed("noise"), len(lanes), lanes.start, dials, mask)

    @classmethod
    def unused_here(cls, spaces: Spaces, has_loss: bool) -> dict[str, str]:
        return dict.fromkeys(("q.double", "q.loss", "q.huber"), "the loss is your own") if has_loss else {}

    @classmethod
    def check(cls, config: Any) -> None:
        explore, q = config.explore, config.q
        super().check(config)
        if q.v_min >= q.v_max:
            raise ConfigError(f"q.v_min={q.v_min} must be below q.v_max={q.v_max}.")
        if explore.schedule == "exponential" and min(explore.start, explore.end) <= 0:
            raise ConfigError(
                f"explore.schedule=exponential never reaches 0: explore.start={explore.start} and "
                f"explore.end={explore.end} must be above it."
            )
        if explore.pulse_every_steps and explore.pulse_steps > explore.pulse_every_steps:
            raise ConfigError(
                f"explore.pulse_steps={explore.pulse_steps} exceeds explore.pulse_every_steps={explore.pulse_every_steps}: "
                "the pulse would never end."
            )

    # Settings of `q` that only some algorithms have.
    own_settings: tuple[str, ...] = ()

    @classmethod
    def unused(cls, config: Any) -> dict[str, str]:
        q, explore = config.q, config.explore
        found = super().unused(config)

        def add(condition: bool, reason: str, *names: str) -> None:
            if condition:
                found.update(dict.fromkeys(names, reason))

        for name, owners in OWNERS.items():
            add(name not in cls.own_settings, f"it belongs to {owners}, and algo={config.algo}", name)
        add("q.loss" in cls.own_settings and q.loss == "mse", "q.loss=mse has no Huber part", "q.huber")
        add(not q.noisy, "q.noisy is off", "q.noisy_sigma")
        add(":" in config.net.body, f"net.body={config.net.body} is your own network", "q.head")
        is_plain = not (q.dueling or q.noisy or cls.has_fractions)
        add(is_plain, f"{config.algo} without q.dueling and q.noisy has one linear head", "q.head")
        least = 2 if cls.has_fractions and config.net.body == "mlp" else 1
        add(len(config.net.hidden) < least, f"net.hidden={config.net.hidden} leaves no layer for the head", "q.head")
        ladder = ("explore.ladder_base", "explore.ladder_power")
        add(explore.schedule != "ladder", f"explore.schedule={explore.schedule}", *ladder)
        add(explore.schedule == "constant", "explore.schedule=constant", "explore.start", "explore.over_steps")
        course = ("explore.start", "explore.end", "explore.over_steps")
        add(explore.schedule == "ladder", "explore.schedule=ladder", *course)
        add(q.noisy, "q.noisy explores instead", "explore.schedule", *course, *ladder)
        never_tries = q.noisy and explore.floor == 0 and explore.override is None and not explore.pulse_every_steps
        add(never_tries, "q.noisy explores, and no epsilon is set", "explore.hold_steps")
        pulse = ("explore.pulse_steps", "explore.pulse_epsilon")
        add(not explore.pulse_every_steps, "explore.pulse_every_steps is 0", *pulse)
        return found


OWNERS = {
    "q.loss": "dqn",
    "q.huber": "dqn, qrdqn and iqn",
    "q.num_quantiles": "qrdqn",
    **dict.fromkeys(("q.num_taus", "q.num_target_taus", "q.num_act_taus", "q.num_cosines"), "iqn"),
    **dict.fromkeys(("q.num_atoms", "q.v_min", "q.v_max"), "c51 and rainbow"),
}


def chosen(values: Tensor, actions: Tensor) -> Tensor:
    """values [B, A, ...] of each row's action: [B, ...]."""
    index = actions.long().reshape(-1, *[1] * (values.ndim - 1)).expand(-1, 1, *values.shape[2:])
    return values.gather(1, index).squeeze(1)


def quantile_huber(online: Tensor, goal: Tensor, taus: Tensor, kappa: float) -> Tensor:
    """[B]: online quantiles [B, N], whose fractions are taus [B, N] or [N], against samples of the target [B, M].

    Each pair's error u weighs tau if the target lies above and 1 - tau below; the mean of all pairs. The papers add up the online ones:
    Adam takes the same steps for both, but clipping would depend on their number.
    """
    u = goal.unsqueeze(1) - online.unsqueeze(2)
    far = u.abs()
    huber = torch.where(far <= kappa, 0.5 * u.square(), kappa * (far - 0.5 * kappa))
    side = (taus.unsqueeze(-1) - (u.detach() < 0).float()).abs()
    return (side * huber / kappa).mean((1, 2))


def quantile_goal(batch: Batch, next_out: Tensor, best: Tensor) -> Tensor:
    """[B, M]: each quantile of the next state's best action, discounted, plus the reward."""
    goal: Tensor = batch["reward"].unsqueeze(1) + batch["discount"].unsqueeze(1) * chosen(next_out, best)
    return goal


def quantile_loss(
    out: Tensor, goal: Tensor, taus: Tensor, batch: Batch, huber: float, first_action: int
) -> tuple[Tensor, Outcome]:
    """Of the quantiles out [B, A, N] at the fractions taus."""
    online = chosen(out, batch["action"] - first_action)
    rows = quantile_huber(online, goal, taus, huber)
    total = (batch["weight"] * rows).mean()
    # The error of the means, as in DQN: a wide distribution is no reason to sample a row more often.
    td = (goal.mean(1) - online.mean(1)).detach()
    return total, Outcome(td.abs(), out.detach().mean(-1), td)
