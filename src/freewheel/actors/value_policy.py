"""A policy of action values: takes the best action, or explores by epsilon and noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from freewheel import _core
from freewheel.config import ExploreConfig
from freewheel.contracts import Array, Choice, Columns, ColumnSpec
from freewheel.memory.dials import Dials
from freewheel.nets.masks import allowed_in, first_forbidden
from freewheel.nets.value_net import midpoints
from freewheel.spec import as_observation
from freewheel.worlds.seeds import lane_key


class HasValues(Protocol):
    """How a network's outputs become action values, and the random inputs that it takes to act."""

    num_act_noise: int  # normals for all rows
    num_act_taus: int  # fractions for each row
    first_action: int

    def q_values(self, out: Tensor) -> Tensor: ...


class ValuePolicy:
    """`explorer` decides which lanes explore; the others take the best action of the network. The dial `epsilon` overrides the schedule.

    Each lane draws its own quantile fractions. `noise` feeds noisy layers: one draw for all lanes that are ready together,
    since each draw makes another network, and a draw for each lane would need a forward pass for each. `mask` names the field of
    allowed actions: the network gives the others no value, and exploration does not try them.
    """

    extra: Mapping[str, ColumnSpec] = {}

    def __init__(
        self,
        net: nn.Module,
        algo: HasValues,
        explorer: Explorer,
        action_dtype: Any,
        seed: int,
        num_lanes: int = 1,
        first_lane: int = 0,
        dials: Dials | None = None,
        mask: str | None = None,
    ) -> None:
        self.algo, self.explorer, self._dials, self._mask = algo, explorer, dials, mask
        self._dial_version = -1
        self._dtype = np.dtype(action_dtype)
        self.refresh: Callable[[], None] = lambda: None  # replaced where a copy of the network follows the weights
        self._epsilon = explorer.epsilon(0)
        # Actors of one run have different lanes and need different noise.
        self.noise = torch.Generator().manual_seed(lane_key(seed, first_lane) >> 1 if first_lane else seed)
        self.taus = LaneUniforms(seed, num_lanes, algo.num_act_taus, first_lane)
        self.use(net)

    @property
    def epsilon(self) -> float | None:
        return float(self._epsilon.mean())

    def use(self, net: nn.Module) -> None:
        self.net = net
        self._device = next((tensor.device for tensor in net.parameters()), torch.device("cpu"))

    def choose(self, obs: Columns, lanes: Array, first: Array, step: int) -> Choice:
        if self._dials is not None and self._dials.version != self._dial_version:
            self._dial_version = self._dials.version
            asked = self._dials.value("epsilon")
            self.explorer.override = self.explorer.config.override if asked is None else asked
        self._epsilon = self.explorer.epsilon(step)
        allowed = None if self._mask is None else allowed_in(obs[self._mask], self.explorer.num_actions)
        tries = self.explorer.explore(self._epsilon, lanes, first, allowed)
        columns = {"action": self.act(obs, lanes, *tries)}
        return Choice(columns, columns)

    def act(self, obs: Mapping[str, Array], lanes: Array, explores: Array, tried: Array) -> Array:
        """The best action of each row, or the one that was tried where it explores. `tried` counts actions from 0."""
        if np.count_nonzero(explores) == len(explores):  # faster than all()
            if self.algo.num_act_taus:
                self.taus.skip(lanes)  # what a lane draws next must not depend on whether other lanes explore
            return self._numbered(tried)
        best = self.values(obs, lanes).argmax(1).numpy()
        return self._numbered(np.where(explores, tried, best))

    def values(self, obs: Mapping[str, Array], lanes: Array | None = None) -> Tensor:
        """Action values [k, A] with the random inputs of these lanes; without lanes, of the greedy policy."""
        noise = taus = None
        num_taus = self.algo.num_act_taus
        with torch.inference_mode():
            if lanes is None:
                if num_taus:
                    taus = midpoints(num_taus).expand(len(next(iter(obs.values()))), -1)
            else:
                if self.algo.num_act_noise:
                    noise = torch.randn(self.algo.num_act_noise, generator=self.noise)
                if num_taus:
                    taus = torch.from_numpy(self.taus.draw(lanes)).float()
            seen = {name: torch.from_numpy(rows) for name, rows in obs.items()}
            if self._device.type != "cpu":
                seen = {name: rows.to(self._device) for name, rows in seen.items()}
                noise, taus = (None if x is None else x.to(self._device) for x in (noise, taus))
            return self.algo.q_values(self.net(as_observation(seen), noise, taus)).cpu()

    def greedy(self, obs: Columns) -> Columns:
        return {"action": self._numbered(self.values(obs).argmax(1).numpy())}

    def bootstrap(self, obs: Columns) -> Array | None:
        return None

    def refuse(self, obs: Columns) -> tuple[int, str] | None:
        return None if self._mask is None else first_forbidden(obs[self._mask], ((0, self.explorer.num_actions),))

    def state(self) -> dict[str, Any]:
        return {
            "random.noise": self.noise.get_state(),
            "random.taus": self.taus.drawn,
            "explore.drawn": self.explorer.uniforms.drawn,
            "explore.held": self.explorer.held,
        }

    def set_state(self, state: Mapping[str, Any]) -> list[str]:
        self.noise.set_state(state["random.noise"])
        self.explorer.held[...] = np.asarray(state["explore.held"])
        if "explore.drawn" not in state:
            return [
                "exploration starts a new random stream: the checkpoint is of a version that drew for all lanes together"
            ]
        self.taus.drawn[...] = np.asarray(state["random.taus"])
        self.explorer.uniforms.drawn[...] = np.asarray(state["explore.drawn"])
        return []

    def _numbered(self, indices: Array) -> Array:
        return (indices + self.algo.first_action).astype(self._dtype)


class Explorer:
    """Decides which lanes explore, and which actions they try.

    Epsilon of a lane is the schedule's, or `override` if that is set, raised by pulses, never below the floor.
    `override` may change during the run. Noisy networks have no schedule: their noise explores.
    These are the lanes from `first_lane` on of `all_lanes`, over which the ladder spreads. What a lane tries depends on the seed,
    its number in the run and its own steps, not on which lanes are ready together with it.
    """

    def __init__(
        self,
        config: ExploreConfig,
        num_lanes: int,
        num_actions: int,
        seed: int,
        has_noise: bool = False,
        first_lane: int = 0,
        all_lanes: int | None = None,
    ) -> None:
        self.config, self.override = config, config.override
        self.uniforms = LaneUniforms(seed, num_lanes, 2 if config.hold_steps == 1 else 3, first_lane)
        self.held = np.zeros((2, num_lanes), np.int64)  # per lane: steps left to repeat its action, and that action
        self.num_actions, self._has_noise = num_actions, has_noise
        self._rungs = _ladder(config, all_lanes or num_lanes)[first_lane : first_lane + num_lanes]
        self._epsilon = self._rungs
        self._made_of: tuple[float | None, float] | None = None

    def epsilon(self, step: int) -> Array:
        """One number per lane; the same array for as long as nothing changes."""
        config = self.config
        level: float | None = 0.0  # None: each lane has its own
        if self.override is not None:
            level = self.override
        elif not self._has_noise:
            level = None if config.schedule == "ladder" else scheduled(config, step)
        least = max(config.floor, config.pulse_epsilon) if is_pulse(config, step) else config.floor
        if (level, least) != self._made_of:
            self._made_of = level, least
            own = self._rungs if level is None else np.full(len(self._rungs), level)
            self._epsilon = np.maximum(own, least)
        return self._epsilon

    def explore(self, epsilon: Array, lanes: Array, first: Array, allowed: Array | None = None) -> tuple[Array, Array]:
        """Which of these lanes explore, and the action that each of them would try, counted from 0: one of those that are `allowed`
        [k, num_actions], or any.
        """
        # Drawn even where it is not needed: a lane makes one draw per step.
        drawn = self.uniforms.draw(lanes)
        begins = drawn[:, 0] < epsilon[lanes]
        if allowed is None:
            tried = (drawn[:, 1] * self.num_actions).astype(np.int64)
        else:
            rank = (drawn[:, 1] * np.count_nonzero(allowed, 1)).astype(np.int64)
            tried = (allowed.cumsum(1) > rank[:, None]).argmax(1)
        if self.config.hold_steps == 1:
            return begins, tried
        left, action = self.held[:, lanes]
        left[first] = 0
        if allowed is not None:
            left[~allowed[np.arange(len(lanes)), action]] = 0  # it is not repeated where it is forbidden
        begins &= left == 0
        lengths = 1 + (drawn[:, 2] * self.config.hold_steps).astype(np.int64)
        left, action = np.where(begins, lengths, left), np.where(begins, tried, action)
        explores = left > 0
        self.held[:, lanes] = left - explores, action
        return explores, action


class LaneUniforms:
    """`width` numbers per draw, uniform in [0, 1): each is a hash of the seed, the lane and the number of the lane's draw.

    `drawn` counts the draws of each lane and is the whole state.
    """

    def __init__(self, seed: int, num_lanes: int, width: int, first_lane: int = 0) -> None:
        self.drawn = np.zeros(num_lanes, np.int64)
        self._keys = np.array([lane_key(seed, first_lane + lane) for lane in range(num_lanes)], np.uint64)
        self._width = width

    def draw(self, lanes: Array) -> Array:
        """float64[k, width] for these lanes."""
        drawn = np.empty((len(lanes), self._width))
        _core.draw_lanes(self._keys, self.drawn, lanes, drawn)
        return drawn

    def skip(self, lanes: Array) -> None:
        """Counts a draw of these lanes whose numbers are not needed."""
        self.drawn[lanes] += 1


def scheduled(config: ExploreConfig, step: int) -> float:
    if config.schedule == "constant":
        return config.end
    share = min(step / config.over_steps, 1.0)
    if config.schedule == "linear":
        return config.start + share * (config.end - config.start)
    return float(config.start * (config.end / config.start) ** share)


def is_pulse(config: ExploreConfig, step: int) -> bool:
    """A pulse begins every `pulse_every_steps` steps, but not at step 0."""
    every = config.pulse_every_steps
    return every > 0 and step >= every and step % every < config.pulse_steps


def _ladder(config: ExploreConfig, num_lanes: int) -> Array:
    """base ** (1 + power * i / (n - 1)): most lanes are nearly greedy, a few explore a lot."""
    rung = np.arange(num_lanes) / max(num_lanes - 1, 1)
    return np.asarray(config.ladder_base ** (1 + config.ladder_power * rung), np.float64)
