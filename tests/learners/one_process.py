"""A run in one process, taken step by step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from freewheel.config import Config
from freewheel.memory.counts import ALLOWED
from freewheel.memory.rollout import Collected
from freewheel.run.layout import choose
from freewheel.run.plan import Setup
from freewheel.run.runtime import make_sequential


class Parts:
    """The parts of a sequential run with one policy."""

    def __init__(self, config: Config, env: Any) -> None:
        self.runtime = make_sequential(Setup(config, env, choose(replace(config, runtime="sequential"), 1)))
        self.actor, (self.learner,) = self.runtime.actor, self.runtime.learners
        self.memory: Any = self.learner.memory
        (self.group,) = self.actor.groups
        self.policy: Any = self.group.policy

    def __enter__(self) -> Parts:
        return self

    def __exit__(self, *_: object) -> None:
        self.runtime.close()

    @property
    def weights(self) -> Any:
        return self.learner.update.state.weights

    def receive(self) -> dict[str, Any]:
        """What the world has ready, not answered yet; the observations."""
        (ready,) = self.actor.world.recv()
        self.group.receive(ready, 0.0)
        return {name: rows.copy() for name, rows in self.group._seen.items()}

    def answer(self) -> None:
        self.group.answer(self.actor.world)

    def collect(self) -> None:
        """Turns until a lesson is due."""
        while not self.learner.pace.due():
            self.actor.turn()

    def take(self, has_bootstraps: bool = True) -> Collected:
        """A whole rollout, past the learner; without bootstraps every lane is cut before a row."""
        bootstraps = self.group.bootstraps
        assert bootstraps is not None
        while True:
            self.actor.turn()
            taken: Collected | None = self.memory.rollout.take(0, bootstraps.of if has_bootstraps else None)
            if taken is not None:
                return taken
            if self.actor.waiting:
                self.group.counts.parts[ALLOWED].add(self.group.group.num_lanes)

    def learn(self, versions: int) -> list[int]:
        """Learns from so many rollouts; the rows that each one's updates were made with."""
        samples = []
        while self.learner.version < versions:
            self.actor.turn()
            before = self.learner.version
            while self.learner.turn():
                pass
            if self.learner.version > before:
                samples.append(self.memory.num_samples)
        return samples
