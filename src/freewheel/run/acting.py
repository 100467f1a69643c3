"""An actor's process: acts with the newest weights, is held back by the governor, tells of its episodes."""

from __future__ import annotations

import time
from dataclasses import astuple, replace
from typing import Any

import torch

from freewheel.actors.explore import Explorer
from freewheel.actors.infer import Infer
from freewheel.actors.loop import Actor
from freewheel.errors import EnvError
from freewheel.learners.ratio import WAIT_S
from freewheel.nets.flat import Flat
from freewheel.report.episodes import Episode
from freewheel.report.ledger import Page
from freewheel.report.phases import COUNTERS, GAUGES, PHASES
from freewheel.run.channel import Channel
from freewheel.run.job import FIRST_ACTOR, Job
from freewheel.run.parts import build_policy, seed_of
from freewheel.worlds.make import make_world
from freewheel.worlds.pool import PoolWorld
from freewheel.worlds.world import World

START, FETCH, WAIT, REPORT, STOP = (PHASES.index(n) for n in ("start", "fetch", "wait_ratio", "report", "stop"))
BEATS, STEPS, EPISODES, FETCHED, DROPPED = (
    COUNTERS.index(n) for n in ("beats", "steps", "episodes", "fetched", "dropped_messages")
)
EPSILON, LAG, VERSION = (GAUGES.index(n) for n in ("epsilon", "policy_lag", "version"))

REPORT_S = 0.1
# A pool replaces a worker that hangs before the supervisor would replace the whole actor.
POOL_SHARE = 0.8
EPISODES_A_MESSAGE = 200


class Acting:
    """One actor's life, from building its envs to the end of the run."""

    def __init__(self, job: Job, index: int, life: int, channel: Channel) -> None:
        self.job, self.index, self.life, self.channel = job, index, life, channel
        self.governor = job.governor()
        self.page: Page = job.ledger.page(FIRST_ACTOR + index)
        self.page.start(START)
        self._finished: list[Episode] = []
        self._report_due = 0.0
        self._worlds = self._dropped = 0

    def run(self) -> None:
        torch.set_num_threads(1)
        config, lanes = self.job.config, self.job.lanes_of(self.index)
        net, algo = build_policy(config, self.job.obs_space, self.job.action_space, self.job.body, self.job.loss)
        flat = Flat(net)
        self.vector = flat.vector(net)
        flat.bind(net, self.vector).eval().requires_grad_(False)
        infer = Infer(net, algo, self.job.action_space.dtype, self._seed("noise"))
        explorer = Explorer(
            config.explore,
            len(lanes),
            net.num_actions,
            self._seed("explore"),
            config.q.noisy,
            first_lane=lanes.start,
            all_lanes=config.world.lanes,
        )
        self.version = 0
        while self.job.board.version == 0 and not self.governor.is_stopping:
            self.page.count(BEATS, 1)
            self.job.board.wait(0, WAIT_S)
        actor: Actor | None = None
        try:
            while not self._is_over():
                if actor is None:
                    actor = self._begin(infer, explorer)
                try:
                    self._turn(actor)
                except EnvError as error:
                    if error.__cause__ is not None or config.world.bad_rows == "stop":
                        raise
                    actor = self._begin_again(actor, error)
        finally:
            self.page.enter(STOP)
            if actor is not None:
                actor.world.close()
            self._report()

    def _begin(self, infer: Infer, explorer: Explorer) -> Actor:
        config, lanes = self.job.config, self.job.lanes_of(self.index)
        # Never the same seeds again: an actor that was started anew would repeat its first episodes.
        world = make_world(
            self.job.env,
            replace(config.world, lanes=len(lanes)),
            self._seed(f"world.{self._worlds}"),
            step_timeout_s=POOL_SHARE * config.local.step_timeout_s,
            restarts=config.local.restarts,
        )
        self._worlds += 1
        self._check(world)
        return Actor(
            world, self.job.lanes.writer(lanes), infer, explorer, config.world, first_lane=lanes.start, page=self.page
        )

    def _begin_again(self, actor: Actor, error: EnvError) -> Actor:
        """What broke the contract is left out; the lanes of this actor begin new episodes with new envs."""
        self.channel.send({"dropped": {"rows": actor.world.num_lanes, "why": str(error)}})
        actor.world.close()
        return self._begin(actor.infer, actor.explorer)

    def _check(self, world: World) -> None:
        mine, theirs = (world.obs_space, world.action_space), (self.job.obs_space, self.job.action_space)
        if mine != theirs:
            world.close()
            raise EnvError(f"{world.name} has the spaces {mine} in an actor, and {theirs} when the run began.")

    def _is_over(self) -> bool:
        return self.governor.is_stopping or self.governor.steps >= self.job.config.steps

    def _turn(self, actor: Actor) -> None:
        page, governor = self.page, self.governor
        page.count(BEATS, 1)
        if not governor.may_act():
            page.enter(WAIT)
            governor.wait_to_act()
            self._tell(actor)
            return
        if self.job.board.version != self.version:
            page.enter(FETCH)
            self._fetch()
        step = governor.steps
        steps, finished = actor.turn(step, self.version, time.monotonic() - self.job.began_s)
        governor.add_steps(steps)
        page.count(STEPS, steps)
        if finished:
            page.count(EPISODES, len(finished))
            self._finished += finished
        self._tell(actor)

    def _fetch(self) -> None:
        """Again when the learner overtook the copy: the vector then holds no version, and nobody may act by it."""
        found = None
        while found is None:
            found = self.job.board.fetch(self.vector)
        self.version = found
        self.page.count(FETCHED, 1)

    def _tell(self, actor: Actor) -> None:
        now = time.monotonic()
        if now < self._report_due:
            return
        self._report_due = now + REPORT_S
        if isinstance(actor.world, PoolWorld):
            for note in actor.world.take_notes():
                self.channel.send({"note": note})
        self.page.enter(REPORT)
        self.page.set(EPSILON, float(actor.epsilon.mean()))
        self.page.set(LAG, float(self.job.board.version - self.version))
        self.page.set(VERSION, float(self.version))
        for command in self.channel.commands():
            if "epsilon" in command:
                actor.explorer.override = command["epsilon"]
        self._report()

    def _report(self) -> None:
        first = self.job.lanes_of(self.index).start
        finished, self._finished = self._finished, []
        for i in range(0, len(finished), EPISODES_A_MESSAGE):
            rows: list[Any] = [[e.lane + first, *astuple(e)[1:]] for e in finished[i : i + EPISODES_A_MESSAGE]]
            self.channel.send({"episodes": rows})
        self.channel.flush()
        self.page.count(DROPPED, self.channel.num_dropped - self._dropped)
        self._dropped = self.channel.num_dropped

    def _seed(self, what: str) -> int:
        return seed_of(self.job.config, f"{what}.{self.index}.{self.life}")
