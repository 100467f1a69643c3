"""An actor's process: acts with the newest weights, is held back by the governor, tells of its episodes."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import astuple, replace
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from freewheel.actors.bf16 import narrowed
from freewheel.actors.compare import Compared, agreement_of, speed_of
from freewheel.actors.explore import Explorer
from freewheel.actors.infer import Infer
from freewheel.actors.int8 import quantized
from freewheel.actors.loop import Actor
from freewheel.actors.on_device import placed
from freewheel.actors.on_policy import RolloutActor
from freewheel.errors import EnvError, RoleLost
from freewheel.learners.device import prepare
from freewheel.learners.precision import LEAST_GAIN
from freewheel.learners.ratio import WAIT_S
from freewheel.memory.lanes import Writer
from freewheel.nets.flat import Flat
from freewheel.nets.inputs import any_observations, has_images
from freewheel.report.episodes import Episode
from freewheel.report.ledger import Page
from freewheel.report.phases import COUNTERS, GAUGES, PHASES
from freewheel.run.channel import Channel, Message
from freewheel.run.job import FIRST_ACTOR, Job
from freewheel.run.parts import build_policy, seed_of
from freewheel.worlds.make import make_world
from freewheel.worlds.pool import PoolWorld
from freewheel.worlds.world import World

START, FETCH, WAIT, REPORT, STOP = (PHASES.index(n) for n in ("start", "fetch", "wait_ratio", "report", "stop"))
BEATS, STEPS, EPISODES, FETCHED, DROPPED_ROWS, DROPPED, CUT = (
    COUNTERS.index(n)
    for n in ("beats", "steps", "episodes", "fetched", "dropped_rows", "dropped_messages", "cut_episodes")
)
EPSILON, LAG, VERSION = (GAUGES.index(n) for n in ("epsilon", "policy_lag", "version"))

REPORT_S = 0.1
# A pool replaces a worker that hangs before the supervisor would replace the whole actor.
POOL_SHARE = 0.8
EPISODES_A_MESSAGE = 200
# The learner publishes into the next of several slots, and would have to do so that often during one copy each time.
FETCHES = 1000


A = TypeVar("A", Actor, RolloutActor)


class ActorLife(ABC, Generic[A]):
    """One actor's life, from building its envs to the end of the run; what it acts by is up to the algorithm."""

    def __init__(self, job: Job, index: int, life: int, channel: Channel) -> None:
        self.job, self.index, self.life, self.channel = job, index, life, channel
        self.page: Page = job.ledger.page(FIRST_ACTOR + index)
        self.page.enter(START)  # goes on with what the supervisor began when it asked for this process
        self.governor = job.governor()
        self.version = 0
        self._finished: list[Episode] = []
        self._report_due = 0.0
        self._worlds = self._dropped = self._cut = 0

    def run(self) -> None:
        torch.set_num_threads(1)
        self._build()
        while self.job.board.version == 0 and not self.governor.is_stopping:
            self.page.count(BEATS, 1)
            self.job.board.wait(0, WAIT_S)
        actor: A | None = None
        try:
            while not self._is_over():
                if actor is None:
                    actor = self._begin()
                try:
                    self._turn(actor)
                except EnvError as error:
                    if error.__cause__ is not None or self.job.config.world.bad_rows == "stop":
                        raise
                    actor = self._begin_again(actor, error)
        finally:
            self.page.enter(STOP)
            if actor is not None:
                self._tell_of_workers(actor)
                actor.world.close()
            self._report()

    @abstractmethod
    def _build(self) -> None:
        """The policy, over `vector`."""

    @abstractmethod
    def _actor(self, world: World, writer: Writer, first_lane: int) -> A: ...

    @abstractmethod
    def _turn(self, actor: A) -> None: ...

    def _obey(self, actor: A, commands: list[Message]) -> None:
        """Now and then, with what the supervisor said."""

    def _bound(self, net: nn.Module) -> None:
        """Its numbers are those of `vector` from now on."""
        flat = Flat(net)
        self.vector = flat.vector(net)
        flat.bind(net, self.vector).eval().requires_grad_(False)

    def _begin(self) -> A:
        config, lanes = self.job.config, self.job.lanes_of(self.index)
        # Never the same seeds again: an actor that was started anew would repeat its first episodes.
        world = make_world(
            self.job.env,
            replace(config.world, lanes=len(lanes)),
            self._world_seed(),
            first_lane=lanes.start,
            step_timeout_s=POOL_SHARE * config.local.step_timeout_s,
            restarts=config.local.restarts,
        )
        self._worlds, self._cut = self._worlds + 1, 0
        self._check(world)
        return self._actor(world, self.job.lanes.writer(lanes), lanes.start)

    def _begin_again(self, actor: A, error: EnvError) -> A:
        """What broke the contract is left out; the lanes of this actor begin new episodes with new envs."""
        self.page.count(DROPPED_ROWS, actor.world.num_lanes)
        self.channel.send({"note": f"actor-{self.index} left rows out: {error}"})
        actor.world.close()
        return self._begin()

    def _check(self, world: World) -> None:
        mine, theirs = (world.obs_space, world.action_space), (self.job.obs_space, self.job.action_space)
        if mine != theirs:
            world.close()
            raise EnvError(f"{world.name} has the spaces {mine} in an actor, and {theirs} when the run began.")

    def _is_over(self) -> bool:
        return self.governor.is_stopping or self.governor.steps >= self.job.config.steps

    def _fetch(self) -> None:
        """Again when the learner overtook the copy: the vector then holds no version, and nobody may act by it."""
        for _ in range(FETCHES):
            found = self.job.board.fetch(self.vector)
            if found is not None:
                self.version = found
                self.page.count(FETCHED, 1)
                return
        raise RoleLost(
            f"actor-{self.index} was overtaken {FETCHES} times by new weights while it copied them. Publish less often "
            "(local.publish_every_updates, local.publish_every_s)."
        )

    def _tell(self, actor: A) -> None:
        now = time.monotonic()
        if now < self._report_due:
            return
        self._report_due = now + REPORT_S
        self._tell_of_workers(actor)
        self.page.enter(REPORT)
        self.page.set(LAG, float(self.job.board.version - self.version))
        self.page.set(VERSION, float(self.version))
        self._obey(actor, self.channel.commands())  # read in any case: its end is the supervisor's
        self._report()

    def _tell_of_workers(self, actor: A) -> None:
        """Of a pool: who was replaced, and the episodes that were cut with them."""
        if isinstance(actor.world, PoolWorld) and (notes := actor.world.take_notes()):
            for note in notes:
                self.channel.send({"note": note})
            self.page.count(CUT, actor.world.num_truncated - self._cut)
            self._cut = actor.world.num_truncated

    def _acted(self, steps: int, finished: list[Episode]) -> None:
        self.governor.add_steps(steps)
        self.page.count(STEPS, steps)
        if finished:
            self.page.count(EPISODES, len(finished))
            self._finished += finished

    def _report(self) -> None:
        first = self.job.lanes_of(self.index).start
        finished, self._finished = self._finished, []
        for i in range(0, len(finished), EPISODES_A_MESSAGE):
            self.channel.send({"episodes": _as_rows(finished[i : i + EPISODES_A_MESSAGE], first)})
        self.channel.flush()
        self.page.count(DROPPED, self.channel.num_dropped - self._dropped)
        self._dropped = self.channel.num_dropped

    def _world_seed(self) -> int:
        return self._seed(f"world.{self._worlds}")

    def _seed(self, what: str) -> int:
        """Of all lanes alike: what a lane draws does not depend on which actor has it. A resumed run goes on with other chances."""
        return seed_of(self.job.config, f"{what}.{self.life}.{self.job.resumed_at}")


class Acting(ActorLife[Actor]):
    """An actor of action values, which explores by epsilon or noise."""

    _refresh: Callable[[], None] | None = None  # where it acts in fewer bits or on a device: with new weights
    _tells = False

    def _build(self) -> None:
        config, lanes = self.job.config, self.job.lanes_of(self.index)
        net, algo = build_policy(config, self.job.obs_space, self.job.action_space, self.job.body, self.job.loss)
        self._bound(net)
        device = self.job.placing.actors[self.index]
        acts: nn.Module = net
        if device != "cpu":
            prepare(device)
            acts, self._refresh = placed(net, self.vector, device)
        self._infer = Infer(acts, algo, self.job.action_space.dtype, self._seed("noise"), len(lanes), lanes.start)
        self._plain = Infer(net, algo, self.job.action_space.dtype, 0)
        if device == "cpu":
            self._narrow(net)
        self._explorer = Explorer(
            config.explore,
            len(lanes),
            net.num_actions,
            self._seed("explore"),
            config.q.noisy,
            first_lane=lanes.start,
            all_lanes=config.world.lanes,
        )

    def _actor(self, world: World, writer: Writer, first_lane: int) -> Actor:
        return Actor(
            world, writer, self._infer, self._explorer, self.job.config.world, first_lane=first_lane, page=self.page
        )

    def _fetch(self) -> None:
        super()._fetch()
        if self._refresh is not None:
            self._refresh()
            if self._tells:
                self._tells = False
                self.channel.send(
                    {"note": f"local.act_precision={self._bits}: {self._compared()}, by its first weights."}
                )

    def _narrow(self, net: nn.Module) -> None:
        """Fewer bits, if they were asked for or are faster here."""
        asked: str = self.job.config.local.act_precision
        self._bits = asked
        if asked == "auto":
            has_it = self.job.form.precision == "bf16" and self.job.device == "cpu"
            self._bits = "bf16" if has_it and has_images(net) else "fp32"
        if self._bits == "fp32":
            return
        self._infer.net, refresh = quantized(net) if self._bits == "int8" else narrowed(net)
        if asked == "auto" and self._compared().speed < LEAST_GAIN:
            self._infer.net = net
            return
        self._refresh, self._tells = refresh, self.index == 0 and self.life == 0

    def _compared(self) -> Compared:
        """With the weights as they are and pixels or numbers of any kind."""
        space, stack, lanes = self.job.obs_space, self.job.config.world.stack, len(self.job.lanes_of(self.index))
        seen = {name: rows.numpy() for name, rows in any_observations(space, stack, max(lanes, 32)).items()}
        few = {name: rows[:lanes] for name, rows in seen.items()}
        plain, narrow = self._plain, self._infer
        same = agreement_of(plain.values(seen), narrow.values(seen))
        return Compared(speed_of(lambda: plain.values(few), lambda: narrow.values(few)), same)

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
        self._acted(steps, finished)
        self._tell(actor)

    def _obey(self, actor: Actor, commands: list[Message]) -> None:
        self.page.set(EPSILON, float(actor.epsilon.mean()))
        for command in commands:
            if "epsilon" in command:
                actor.explorer.override = command["epsilon"]


def _as_rows(episodes: list[Episode], first_lane: int) -> list[list[Any]]:
    return [[episode.lane + first_lane, *astuple(episode)[1:]] for episode in episodes]
