"""What the algorithms of the DQN family share: a network of action values, exploring by epsilon or noise, a replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from freewheel.actors.explore import Explorer
from freewheel.actors.infer import Infer
from freewheel.actors.value_policy import ValuePolicy
from freewheel.algos.algo import Defaults, Params, look_later, seeded
from freewheel.algos.from_replay import FromReplay, ReplaySettings, check_replay, unused_replay
from freewheel.config import ExploreConfig, QConfig
from freewheel.contracts import Batch, Draws, Forward, Hyper, Lookahead, Loss, ParamGroup, Seed, Spaces
from freewheel.errors import ConfigError
from freewheel.memory.dials import Dials
from freewheel.nets.build import QNet, build_net

CustomLoss = Callable[[Forward, Params, Params, Batch, Draws], tuple[Tensor, Any]]


@dataclass(frozen=True)
class ValueSettings(ReplaySettings):
    """Settings of an algorithm of action values."""

    q: QConfig = field(default_factory=QConfig)
    explore: ExploreConfig = field(default_factory=ExploreConfig)


class ValueBased(FromReplay, Defaults):
    """Subclasses give the loss, what an action's value is, and what the target network is asked for."""

    Settings = ValueSettings
    takes_loss = True
    dials = ("epsilon", "lr", "ratio")
    num_values: str | None = None  # the setting of `q` that says how many values an action has
    has_fractions = False
    num_act_taus = 0

    def __init__(
        self, config: Any, spaces: Spaces, seed: Seed, body: Any = None, loss: CustomLoss | None = None
    ) -> None:
        super().__init__(config, spaces, seed)
        q = config.q
        self.net: QNet = seeded(seed("net"), lambda: self._build(body))  # type: ignore[assignment]
        self.first_action, self.num_act_noise = self.net.first_action, self.net.num_noise
        self.groups = (ParamGroup("all", clip_norm=config.learner.clip_norm, target=self.target_rule()),)
        self.noises: tuple[str, ...] = ()
        if self.net.num_noise:
            self.noises = ("noise", "target_noise", *(["choose_noise"] if q.double else []))
        own = loss or self.loss
        if loss is None:
            self.lookahead: Lookahead | None = self.make_lookahead()
        else:
            self.lookahead, self.custom_loss = None, getattr(loss, "__name__", type(loss).__name__)

        def function(
            forward: Forward, params: Params, target: Params, batch: Batch, draws: Draws, hyper: Hyper
        ) -> tuple[Tensor, Any]:
            return own(forward, params, target, batch, draws)

        self.losses = (Loss(function),)

    def _build(self, body: Any) -> nn.Module:
        config = self.config
        count = getattr(config.q, self.num_values) if self.num_values else None
        return build_net(
            self.spaces.obs,
            self.spaces.action,
            config.net,
            config.q,
            config.algo,
            config.world.stack,
            body=body,
            num_values=count,
            has_fractions=self.has_fractions,
        )

    def loss(self, forward: Forward, params: Params, target: Params, batch: Batch, draws: Draws) -> tuple[Tensor, Any]:
        raise NotImplementedError

    def q_values(self, out: Tensor) -> Tensor:
        """From the network's outputs to action values [B, A]."""
        return out

    def make_lookahead(self) -> Lookahead:
        return Lookahead(("later",), look_later)

    def draws(self, rows: int, generator: torch.Generator) -> dict[str, Tensor]:
        return {name: torch.randn(self.net.num_noise, generator=generator) for name in self.noises}

    def policy(
        self, net: nn.Module, seed: Seed, lanes: range, all_lanes: int, dials: Dials | None = None
    ) -> ValuePolicy:
        config = self.config
        infer = Infer(net, self, self.spaces.action.dtype, seed("noise"), len(lanes), lanes.start)
        explorer = Explorer(
            config.explore,
            len(lanes),
            self.net.num_actions,
            seed("explore"),
            config.q.noisy,
            first_lane=lanes.start,
            all_lanes=all_lanes,
        )
        return ValuePolicy(infer, explorer, dials)

    @classmethod
    def unused_here(cls, spaces: Spaces, has_loss: bool) -> dict[str, str]:
        return dict.fromkeys(("q.double", "q.loss", "q.huber"), "the loss is one of yours") if has_loss else {}

    @classmethod
    def check(cls, config: Any) -> None:
        explore, q = config.explore, config.q
        check_replay(config, q.n_step)
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

    # Settings of `q` that belong to some algorithms alone.
    own_settings: tuple[str, ...] = ()

    @classmethod
    def unused(cls, config: Any) -> dict[str, str]:
        q, explore = config.q, config.explore
        found = unused_replay(config)

        def add(condition: bool, reason: str, *names: str) -> None:
            if condition:
                found.update(dict.fromkeys(names, reason))

        for name, owners in OWNERS.items():
            add(name not in cls.own_settings, f"it belongs to {owners}, and algo={config.algo}", name)
        add("q.loss" in cls.own_settings and q.loss == "mse", "q.loss=mse has no Huber part", "q.huber")
        add(not q.noisy, "q.noisy is off", "q.noisy_sigma")
        ladder = ("explore.ladder_base", "explore.ladder_power")
        add(explore.schedule != "ladder", f"explore.schedule={explore.schedule}", *ladder)
        add(explore.schedule == "constant", "explore.schedule=constant", "explore.start", "explore.over_steps")
        course = ("explore.start", "explore.end", "explore.over_steps")
        add(explore.schedule == "ladder", "explore.schedule=ladder", *course)
        add(q.noisy, "q.noisy explores in its place", "explore.schedule", *course, *ladder)
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
