"""The parts of a run that learns from its own newest rows, built in the order in which data flows through them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from freewheel.actors.on_policy import RolloutActor
from freewheel.actors.sample import Sampler
from freewheel.algos.distributions import Choices, Gaussian, actions_of
from freewheel.algos.ppo import PPO
from freewheel.config import Config
from freewheel.errors import ConfigError
from freewheel.learners.forms import settled_here
from freewheel.learners.ppo_loop import PPOLearner
from freewheel.learners.ppo_step import PPOStep
from freewheel.learners.step import unrolled
from freewheel.memory.lanes import Lanes, forecast_bytes
from freewheel.memory.rollout import EXTRA, Rollout, lane_rows
from freewheel.memory.segment import allowed_bytes, format_bytes
from freewheel.nets.actor_critic import ActorCritic, build_actor_critic
from freewheel.nets.inputs import set_memory_format
from freewheel.report.ledger import Ledger
from freewheel.report.phases import new_ledger
from freewheel.run.machine import num_cores
from freewheel.run.parts import make_world_in_turn, seed_of
from freewheel.spec import RowSpec, Space
from freewheel.worlds.world import World


@dataclass
class PolicyParts:
    """World → actor → lanes → rollout → learner, and its weights back to the actor."""

    world: World
    lanes: Lanes
    actor: RolloutActor
    rollout: Rollout
    learner: PPOLearner
    ledger: Ledger  # one page: actor and learner take turns
    precision: str = "fp32"
    why_precision: str = ""

    @property
    def obs_space(self) -> Space:
        return self.world.obs_space

    def close(self) -> None:
        self.world.close()


def build_on_policy(config: Config, env: Any, body: Any = None) -> PolicyParts:
    """Everything that a run needs, checked against each other; nothing is started yet."""
    torch.set_num_threads(config.learner.threads or 1)
    world = make_world_in_turn(env, config)
    try:
        return _around(world, config, body)
    except BaseException:
        world.close()
        raise


def build_actor(
    config: Config, obs_space: Space, action_space: Space, body: Any = None
) -> tuple[ActorCritic, Choices | Gaussian]:
    """The network with its first weights, the same in every process, and what its outputs mean."""
    actions = actions_of(action_space)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(config, "net"))
        net = build_actor_critic(
            obs_space,
            actions.num_outputs,
            config.net,
            spans=actions.spans,
            log_std=config.ppo.log_std if isinstance(actions, Gaussian) else None,
            normalize=config.ppo.normalize_obs,
            stack=config.world.stack,
            body=body,
        )
    return net, actions


def build_lanes(config: Config, obs_space: Space, action_space: Space, ahead: int = 0) -> Lanes:
    """Lanes for what is collected before it is learned from: a rollout, and so many ahead of it."""
    spec = RowSpec.of(obs_space, action_space, EXTRA)
    num_lanes = config.world.lanes
    rows = lane_rows(config.rollout.rows * (1 + ahead), num_lanes, config.world.stack)
    _forecast(spec, config, num_lanes, rows)
    return Lanes(spec, num_lanes, rows)


def build_step(config: Config, net: ActorCritic, actions: Choices | Gaussian) -> PPOStep:
    together = unrolled(config.ppo.minibatches) if config.learner.compile == "on" else 1
    return PPOStep(net, PPO(config.ppo, actions), config.learner, unrolled=together)


def build_rollout(config: Config, lanes: Lanes) -> Rollout:
    return Rollout(
        lanes,
        config.rollout.rows * lanes.num_lanes,
        stack=config.world.stack,
        max_lag=config.rollout.max_lag,
        revalues=config.algo == "appo",
        by_episodes=config.rollout.collect == "episodes",
    )


def _around(world: World, config: Config, body: Any) -> PolicyParts:
    net, actions = build_actor(config, world.obs_space, world.action_space, body)
    lanes = build_lanes(config, world.obs_space, world.action_space)
    form = settled_here(config.learner, net, num_cores())
    torch.set_num_threads(form.threads)
    set_memory_format(net, form.memory_format)
    step = build_step(config, net, actions)
    # The actor reads the learner's own numbers: in one process, in turn, there is nothing to copy.
    sampler = Sampler(step.act_net, actions, seed_of(config, "act"), world.num_lanes)
    ledger = new_ledger(1)
    page = ledger.page(0)
    actor = RolloutActor(world, lanes.writer(), sampler, config.world, page=page)
    rollout = build_rollout(config, lanes)
    learner = PPOLearner(step, rollout, config, seed_of(config, "learner"), page)
    if config.learner.compile == "on":
        step.compile(learner.example())
    return PolicyParts(world, lanes, actor, rollout, learner, ledger)


def _forecast(spec: RowSpec, config: Config, num_lanes: int, rows: int) -> None:
    """Refuses lanes that this machine cannot hold, twice: the rows of a rollout are gathered once, and again for those that are kept."""
    kept = config.rollout.reuse * forecast_bytes(spec, num_lanes, config.rollout.rows)
    needed = 2 * forecast_bytes(spec, num_lanes, rows) + kept
    allowed, source = allowed_bytes()
    if needed > allowed:
        raise ConfigError(
            f"rollout.rows={config.rollout.rows} on {num_lanes} lanes needs {format_bytes(needed)}, {source} allows "
            f"{format_bytes(allowed)}. Lower rollout.rows or world.lanes."
        )
