"""An on-policy actor's process: collects as far ahead of the learner as it may, and shows what it has when it stops."""

from __future__ import annotations

import time

from freewheel.actors.on_policy import RolloutActor
from freewheel.actors.sample import Sampler
from freewheel.learners.pace import Pace
from freewheel.memory.lanes import Writer
from freewheel.run.acting import BEATS, FETCH, WAIT, ActorLife
from freewheel.run.on_policy_parts import build_actor
from freewheel.worlds.world import World


class OnPolicyActing(ActorLife[RolloutActor]):
    """Between an outcome and the next action it looks whether it may go on, and for newer weights."""

    governor: Pace

    def _build(self) -> None:
        job, lanes = self.job, self.job.lanes_of(self.index)
        net, actions = build_actor(job.config, job.obs_space, job.action_space, job.body)
        self._bound(net)
        self._sampler = Sampler(net, actions, self._seed("act"), len(lanes), lanes.start)

    def _actor(self, world: World, writer: Writer, first_lane: int) -> RolloutActor:
        return RolloutActor(world, writer, self._sampler, self.job.config.world, first_lane, self.page)

    def _turn(self, actor: RolloutActor) -> None:
        page, governor = self.page, self.governor
        page.count(BEATS, 1)
        steps, finished = actor.receive(governor.steps, time.monotonic() - self.job.began_s)
        self._acted(steps, finished)
        if self._is_over() or not governor.may_go_on(steps):
            self._show_tail(actor, steps)
            steps = 0
            if not self._wait(actor):
                return
        if self.job.board.version != self.version:
            page.enter(FETCH)
            self._fetch()
        actor.answer(self.version)
        governor.show(steps)
        self._tell(actor)

    def _show_tail(self, actor: RolloutActor, steps: int) -> None:
        """What it has in hand, before it sleeps: the learner may be waiting for just that."""
        assert self.job.tails is not None
        self.job.tails.put(actor.tail(), self.job.lanes)
        self.governor.show(steps)

    def _wait(self, actor: RolloutActor) -> bool:
        """False when the run ends meanwhile."""
        while not self._is_over():
            if self.governor.may_go_on(0):
                return True
            self.page.count(BEATS, 1)
            self.page.enter(WAIT)
            self.governor.wait_to_act()
            self._tell(actor)
        return False
