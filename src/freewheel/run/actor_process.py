"""An actor's process: builds its envs and policies, takes turns, tells of its episodes."""

from __future__ import annotations

import time
from dataclasses import astuple, replace
from functools import partial
from typing import Any

import torch

from freewheel.actors.acting_copy import act_in, act_on
from freewheel.actors.actor import Actor
from freewheel.algos.make import seed_of
from freewheel.errors import EnvError
from freewheel.machine.device import prepare
from freewheel.machine.precision import LEAST_GAIN
from freewheel.memory.counts import WAIT_S
from freewheel.nets.inputs import has_images
from freewheel.report.episodes import Episode
from freewheel.report.phases import COUNTERS, GAUGES, PHASES, epsilon_of
from freewheel.run.build import Acting, build_pace, seat
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


class ActorProcess:
    """One actor's life, from building its envs to the end of the run."""

    def __init__(self, plan: Plan, index: int, life: int, channel: Channel) -> None:
        self.plan, self.index, self.life, self.channel = plan, index, life, channel
        self.page = plan.ledger.page(plan.first_actor + index)
        self.page.enter(START)  # goes on with what the supervisor began when it asked for this process
        self.copies = plan.copies_of(index)
        self._report_due = 0.0
        self._finished: list[tuple[int, Episode]] = []
        self._worlds = self._dropped = self._cut = self._steps = 0

    def run(self) -> None:
        torch.set_num_threads(1)
        plan, page = self.plan, self.page
        self.seats = [self._act_for(policy) for policy in plan.policies]
        for policy in plan.policies:
            while policy.board.version == 0 and not plan.counts.is_stopping:
                page.count(BEATS, 1)
                policy.board.wait(0, WAIT_S)
        actor: Actor | None = None
        try:
            while not self._is_over():
                actor = actor or self._begin()
                try:
                    self._turn(actor)
                except EnvError as error:
                    if error.__cause__ is not None or plan.config.world.bad_rows == "stop":
                        raise
                    actor = self._begin_again(actor, error)
        finally:
            page.enter(STOP)
            if actor is not None:
                self._tell_of_workers(actor)
                actor.end()
            self._report()

    def _act_for(self, policy: PolicyPlan) -> Acting:
        """A policy of this actor, on its device and in its bits."""
        lanes = policy.own_lanes(self.copies)
        acting = Acting(policy, partial(self._seed, policy.name), lanes)
        device, local = policy.placing.actors[self.index], policy.config.local
        if device != "cpu":
            prepare(device)
            act_on(acting.policy, acting.net, acting.weights.vector, device)
            return acting
        bits, asked = local.act_precision, local.act_precision
        if asked == "auto":
            has_it = policy.form.precision == "bf16" and policy.device == "cpu"
            bits = "bf16" if has_it and has_images(acting.net) else "fp32"
        if bits != "fp32":
            acting.weights.fetch()
            stack = self.plan.config.world.stack
            least = LEAST_GAIN if asked == "auto" else 0.0
            found = act_in(acting.policy, acting.net, bits, policy.spaces.obs, stack, len(lanes), least)
            if found is not None and self.index == 0 and self.life == 0:
                self.channel.send({"note": f"local.act_precision={bits}: {found}, by its first weights."})
        return acting

    def _begin(self) -> Actor:
        config, plan = self.plan.config, self.plan
        world = make_world(
            plan.env,
            replace(config.world, lanes=len(self.copies)),
            # Never the same seeds again: an actor that was started anew would repeat its first episodes.
            seed_of(config, self._stream(f"world.{self._worlds}")),
            first_lane=self.copies.start,
            step_timeout_s=POOL_SHARE * config.local.step_timeout_s,
            restarts=config.local.restarts,
        )
        self._worlds, self._cut = self._worlds + 1, 0
        self._check(world)
        groups = []
        for policy, acting in zip(plan.policies, self.seats, strict=True):
            pace, lanes = build_pace(plan, policy, acting.algo), policy.own_lanes(self.copies)
            groups.append(seat(plan, policy, world, acting.policy, acting.weights, pace, lanes, self.page))
        return Actor(world, groups, self.page)

    def _begin_again(self, actor: Actor, error: EnvError) -> Actor:
        """What broke the contract is left out; the lanes of this actor begin new episodes with new envs."""
        self.page.count(DROPPED_ROWS, sum(group.group.num_lanes for group in actor.groups))
        self.channel.send({"note": f"actor-{self.index} left rows out: {error}"})
        actor.world.close()
        return self._begin()

    def _check(self, world: World) -> None:
        mine = [(group.obs_space, group.action_space) for group in world.groups]
        planned = [(policy.spaces.obs, policy.spaces.action) for policy in self.plan.policies]
        if mine != planned:
            world.close()
            raise EnvError(f"{world.name} has the spaces {mine} in an actor, and {planned} when the run began.")

    def _is_over(self) -> bool:
        counts = self.plan.counts
        return counts.is_stopping or counts.steps >= self.plan.config.steps

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
        self._tell_of_workers(actor)
        page, first = self.page, self.seats[0]
        page.enter(REPORT)
        page.set(LAG, float(first.weights.lag))
        page.set(VERSION, float(first.weights.version))
        for index, own in enumerate(self.seats):
            if own.policy.epsilon is not None:
                page.set(page.gauge(epsilon_of(index)), own.policy.epsilon)
        self.channel.commands()  # its end is the supervisor's
        self._take(actor)
        self._report()

    def _tell_of_workers(self, actor: Actor) -> None:
        """Of a pool: who was replaced, and the episodes that were cut with them."""
        self._take(actor)
        if isinstance(actor.world, PoolWorld) and (notes := actor.world.take_notes()):
            for note in notes:
                self.channel.send({"note": note})
            self.page.count(CUT, actor.world.num_truncated - self._cut)
            self._cut = actor.world.num_truncated

    def _take(self, actor: Actor) -> None:
        finished = actor.take_finished()
        self.page.count(EPISODES, len(finished))
        self._finished += finished

    def _report(self) -> None:
        finished, self._finished = self._finished, []
        for i in range(0, len(finished), EPISODES_A_MESSAGE):
            self.channel.send({"episodes": [self._row(*each) for each in finished[i : i + EPISODES_A_MESSAGE]]})
        self.channel.flush()
        self.page.count(DROPPED, self.channel.num_dropped - self._dropped)
        self._dropped = self.channel.num_dropped

    def _row(self, group: int, episode: Episode) -> list[Any]:
        first = self.plan.policies[group].own_lanes(self.copies).start
        return [group, episode.lane + first, *astuple(episode)[1:]]

    def _stream(self, what: str) -> str:
        """Of all lanes alike: what a lane draws does not depend on which actor has it. A resumed run goes on with other chances."""
        return f"{what}.{self.life}.{self.plan.resumed_at}"

    def _seed(self, policy: str, what: str) -> int:
        own = f"{policy}.{what}" if policy else what
        return seed_of(self.plan.config, self._stream(own))
