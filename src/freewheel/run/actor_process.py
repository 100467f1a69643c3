"""An actor's process: builds its envs and policies, takes turns, reports its episodes."""

from __future__ import annotations

import time
from dataclasses import astuple, replace
from functools import partial
from typing import Any

import torch

from freewheel.actors.acting_copy import Comparison, act_in, act_on
from freewheel.actors.actor import Actor
from freewheel.algos.make import stream_seed
from freewheel.errors import EnvError
from freewheel.machine.device import prepare
from freewheel.machine.precision import LEAST_GAIN
from freewheel.memory.counts import WAIT_S
from freewheel.nets.inputs import has_images
from freewheel.report.episodes import Episode
from freewheel.report.phases import COUNTERS, GAUGES, PHASES, epsilon_of
from freewheel.run.build import Acting, Player, build_actor, build_pace
from freewheel.run.channel import Channel
from freewheel.run.plan import Plan, PolicyPlan
from freewheel.worlds.make import make_world
from freewheel.worlds.pool import PoolWorld
from freewheel.worlds.world import World

START, WAIT, REPORT, STOP = (PHASES.index(n) for n in ("start", "wait_ratio", "report", "stop"))
BEATS, STEPS, EPISODES, DROPPED_ROWS, DROPPED, CUT = (
    COUNTERS.index(n) for n in ("beats", "steps", "episodes", "dropped_rows", "dropped_messages", "cut_episodes")
)
LAG, VERSION = (GAUGES.index(n) for n in ("policy_lag", "version"))

REPORT_S = 0.1
# A pool replaces a worker that hangs before the supervisor would replace the whole actor.
POOL_SHARE = 0.8
EPISODES_A_MESSAGE = 200
# A policy in fewer bits is compared with fp32 once this share of the run is over, on so many observations.
TRAINED_SHARE, COMPARED_ROWS = 0.1, 500


class ActorProcess:
    """One life of an actor, from building its envs to the end of the run."""

    def __init__(self, plan: Plan, index: int, life: int, channel: Channel) -> None:
        self.plan, self.index, self.life, self.channel = plan, index, life, channel
        self.page = plan.ledger.page(plan.first_actor + index)
        self.page.enter(START)  # the supervisor began this phase when it started the process
        self.copies = plan.copies_of(index)
        self._report_due = 0.0
        self._worlds = self._dropped = self._cut = 0
        self._comparisons: dict[int, Comparison] = {}  # by policy, until they are told

    def run(self) -> None:
        torch.set_num_threads(1)
        plan, page = self.plan, self.page
        self.policies = [self._act_for(policy) for policy in plan.policies]
        for policy in plan.policies:
            while policy.board.version == 0 and not plan.counts.is_stopping:
                page.count(BEATS, 1)
                policy.board.wait(0, WAIT_S)
        actor: Actor | None = None
        try:
            while not plan.counts.is_stopping and plan.counts.steps < plan.config.steps:
                actor = actor or self._begin()
                try:
                    self._turn(actor)
                except EnvError as error:
                    if error.__cause__ is not None or plan.config.world.bad_rows == "stop":
                        raise
                    actor = self._begin_again(actor, error)
            if actor is not None:
                self._compare(actor, is_last=True)
        finally:
            page.enter(STOP)
            if actor is not None:
                self._take(actor)
                actor.end()
            self._report()

    def _act_for(self, policy: PolicyPlan) -> Acting:
        """A policy on this actor's device, in its precision."""
        lanes = policy.own_lanes(self.copies)
        acting = Acting(policy, partial(self._seed, policy=policy.name), lanes)
        device, local = policy.placing.actors[self.index], policy.config.local
        if device != "cpu":
            prepare(device)
            act_on(acting.policy, acting.net, acting.weights.vector, device)
            return acting
        precision, least_gain = local.act_precision, 0.0
        if precision == "auto":
            learner_has_bf16 = policy.form.precision == "bf16" and policy.device == "cpu"
            precision = "bf16" if learner_has_bf16 and has_images(acting.net) else "fp32"
            least_gain = LEAST_GAIN
        if precision != "fp32":
            acting.weights.fetch()
            stack = self.plan.config.world.stack
            found = act_in(acting.policy, acting.net, precision, policy.spaces.obs, stack, len(lanes), least_gain)
            if found is not None and self.index == 0 and self.life == 0:
                who = f"{policy.prefix}local.act_precision={precision}"
                self.channel.send({"note": f"{who}: {found.speed:.2f} times as fast as fp32."})
                self._comparisons[policy.index] = found
        return acting

    def _begin(self) -> Actor:
        config, plan = self.plan.config, self.plan
        world = make_world(
            plan.env,
            replace(config.world, lanes=len(self.copies)),
            # New seeds each time: a restarted actor must not repeat its first episodes.
            self._seed(f"world.{self._worlds}"),
            first_lane=self.copies.start,
            step_timeout_s=POOL_SHARE * config.local.step_timeout_s,
            restarts=config.local.restarts,
        )
        self._worlds, self._cut = self._worlds + 1, 0
        self._check(world)
        players = [
            Player(acting.policy, acting.weights, build_pace(plan, policy, acting.algo))
            for policy, acting in zip(plan.policies, self.policies, strict=True)
        ]
        return build_actor(plan, world, players, self.page, self.copies)

    def _begin_again(self, actor: Actor, error: EnvError) -> Actor:
        """Drops the rows that broke the contract. The lanes of this actor begin new episodes with new envs."""
        self.page.count(DROPPED_ROWS, sum(group.group.num_lanes for group in actor.groups))
        self.channel.send({"note": f"actor-{self.index} dropped rows: {error}"})
        actor.world.close()
        return self._begin()

    def _check(self, world: World) -> None:
        mine = [(group.obs_space, group.action_space) for group in world.groups]
        planned = [(policy.spaces.obs, policy.spaces.action) for policy in self.plan.policies]
        if mine != planned:
            world.close()
            raise EnvError(
                f"{world.name} has the spaces {mine} in an actor, but had {planned} when the run began. Make each copy with the "
                "same spaces."
            )

    def _turn(self, actor: Actor) -> None:
        page = self.page
        page.count(BEATS, 1)
        actor.seconds = time.monotonic() - self.plan.began_s
        before = sum(group.num_steps for group in actor.groups)
        if not actor.turn():
            page.enter(WAIT)
            actor.wait()
        page.count(STEPS, sum(group.num_steps for group in actor.groups) - before)
        now = time.monotonic()
        if now >= self._report_due:
            self._report_due = now + REPORT_S
            self._tell(actor)

    def _tell(self, actor: Actor) -> None:
        page, first = self.page, self.policies[0]
        page.enter(REPORT)
        page.set(LAG, float(first.weights.lag))
        page.set(VERSION, float(first.weights.version))
        for index, own in enumerate(self.policies):
            if own.policy.epsilon is not None:
                page.set(self.plan.ledger.gauges.index(epsilon_of(index)), own.policy.epsilon)
        self.channel.commands()  # ends this process when the supervisor is gone
        self._compare(actor)
        self._take(actor)
        self._report()

    def _compare(self, actor: Actor, is_last: bool = False) -> None:
        """How often a policy in fewer bits acts as it would in fp32, told once: with trained weights, in what its envs show."""
        plan = self.plan
        for index, found in list(self._comparisons.items()):
            is_trained = self.policies[index].weights.version > 1 or plan.resumed_at > 0
            seen = actor.groups[index].seen
            if is_trained and any(map(len, seen.values())) and plan.counts.steps >= TRAINED_SHARE * plan.config.steps:
                found.add(seen)
            if found.num_rows >= COMPARED_ROWS or (is_last and found.num_rows):
                del self._comparisons[index]
                self.channel.send(
                    {
                        "note": f"{plan.policies[index].prefix}local.act_precision={found.precision}: the same action as in fp32 "
                        f"in {100 * found.agreement:.1f} % of {found.num_rows} observations at step {plan.counts.steps:,}."
                    }
                )

    def _take(self, actor: Actor) -> None:
        """Sends finished episodes; from a pool also notes on replaced workers, and the episodes that were cut."""
        finished = actor.take_finished()
        self.page.count(EPISODES, len(finished))
        for i in range(0, len(finished), EPISODES_A_MESSAGE):
            self.channel.send({"episodes": [self._row(*each) for each in finished[i : i + EPISODES_A_MESSAGE]]})
        if isinstance(actor.world, PoolWorld) and (notes := actor.world.take_notes()):
            for note in notes:
                self.channel.send({"note": note})
            self.page.count(CUT, actor.world.num_truncated - self._cut)
            self._cut = actor.world.num_truncated

    def _report(self) -> None:
        self.channel.flush()
        self.page.count(DROPPED, self.channel.num_dropped - self._dropped)
        self._dropped = self.channel.num_dropped

    def _row(self, group: int, episode: Episode) -> list[Any]:
        first = self.plan.policies[group].own_lanes(self.copies).start
        return [group, episode.lane + first, *astuple(episode)[1:]]

    def _seed(self, stream: str, policy: str = "") -> int:
        """The same for all actors: what a lane draws does not depend on its actor. A restarted or resumed actor draws other numbers."""
        return stream_seed(self.plan.config, policy, f"{stream}.{self.life}.{self.plan.resumed_at}")
