"""Lanes that come at different times: the slow hold nobody, and no row is lost, repeated or mixed up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

import freewheel
from freewheel.config import assemble
from freewheel.run.checkpoint import load_newest
from freewheel.run.on_policy_parts import PolicyParts, build_on_policy
from freewheel.worlds.world import Ready


class Uneven:
    """A world whose lane i takes i + 1 turns for a step: recv gives whichever are ready."""

    def __init__(self, world: Any) -> None:
        self.inner = world
        self._turn = 0
        self._held: dict[int, tuple[int, Any]] = {}  # lane: the turn it is ready at, and its action

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def send(self, lanes: Any, actions: Any) -> None:
        for lane, action in zip(lanes.tolist(), actions, strict=True):
            self._held[lane] = (self._turn + lane + 1, action)

    def recv(self, timeout_s: float = 60.0) -> Ready:
        while self._held:
            self._turn += 1
            ready = [lane for lane, (at, _) in self._held.items() if at <= self._turn]
            if ready:
                actions = np.array([self._held.pop(lane)[1] for lane in ready])
                self.inner.send(np.array(ready), actions)
                break
        made: Ready = self.inner.recv(timeout_s)
        return made


def built(**more: Any) -> PolicyParts:
    given = {"algo": "ppo", "world.lanes": 4, "rollout.rows": 10, "net.hidden": (8,), "ppo.epochs": 1, **more}
    parts = build_on_policy(assemble("CartPole-v1", given, "none"), "CartPole-v1")
    parts.actor.world = Uneven(parts.world)
    return parts


def run(parts: PolicyParts, rollouts: int) -> int:
    steps = 0
    while parts.learner.version < rollouts:
        taken, _ = parts.actor.receive(steps)
        steps += taken
        parts.rollout.available += taken
        if parts.learner.is_due():
            parts.learner.call(steps, parts.actor.tail())
        parts.actor.answer(parts.learner.version)
    return steps


def test_every_row_is_learned_from_once_with_the_outcome_of_its_action() -> None:
    parts = built(**{"rollout.max_lag": 1000})
    seen: list[Any] = []
    counts: list[list[int]] = []
    lags: list[int] = []
    prepare = parts.learner.prepared

    def look(rows: Any) -> Any:
        made = prepare(rows)
        seen.append(made["obs"].clone())
        counts.append(rows.kept.sum(1).tolist())
        lags.append(int(rows.lag.max()))
        assert (rows.reward[rows.kept] == 1).all()  # every step of CartPole pays 1
        return made

    parts.learner.prepared = look  # type: ignore[method-assign]
    try:
        steps = run(parts, 12)
        assert parts.rollout.available == steps - 12 * 40
        every = torch.cat(seen)
        assert len(torch.unique(every, dim=0)) == len(every) == 12 * 40
        total = np.sum(counts, 0)
        assert total[0] > 1.7 * total[1] > 1.7 * total[3] > 0
        assert max(lags) >= 1
        assert parts.rollout.figures() == {"overwritten_rows": 0, "stale_rows": 0, "lost_rows": 0}
    finally:
        parts.close()


def test_rows_that_waited_too_long_are_counted_not_learned_from() -> None:
    parts = built(**{"rollout.max_lag": 0})
    lags: list[int] = []
    prepare = parts.learner.prepared

    def look(rows: Any) -> Any:
        lags.append(int(rows.lag.max()))
        return prepare(rows)

    parts.learner.prepared = look  # type: ignore[method-assign]
    try:
        run(parts, 10)
        assert set(lags) == {0}
        assert 0 < parts.rollout.stale <= 4 * 10
    finally:
        parts.close()


def actions_of_lane_0(parts: PolicyParts) -> list[int]:
    actions: list[int] = []
    send = parts.actor.world.send

    def look(lanes: Any, sent: Any) -> None:
        actions.extend(sent[lanes == 0].tolist())
        send(lanes, sent)

    parts.actor.world.send = look  # type: ignore[method-assign]
    try:
        while len(actions) < 60:
            parts.actor.receive(0)
            parts.actor.answer(0)
    finally:
        parts.close()
    return actions[:60]


def test_a_lane_acts_the_same_in_whatever_company() -> None:
    """Chance belongs to lanes: with the same weights lane 0 takes the same actions, however the others come."""
    uneven, even = built(), built()
    even.actor.world = even.world
    assert actions_of_lane_0(uneven) == actions_of_lane_0(even)


def test_a_pool_of_workers_feeds_it(tmp_path: Path) -> None:
    settings = {"log.folder": str(tmp_path), "log.tensorboard": False, "world.kind": "pool", "world.lanes": 4}
    settings |= {"rollout.rows": 30, "net.hidden": (8,), "ppo.epochs": 1, "ppo.minibatches": 2, "eval_episodes": 0}
    run = freewheel.train("CartPole-v1", algo="ppo", steps=600, settings=settings, preset="none", is_quiet=True)
    assert run.result["updates"] == 600 // 120 * 2
    rollout = load_newest(run.folder / "checkpoints").state["rollout"]
    assert (rollout["lost"], rollout["stale"], rollout["overwritten"]) == (0, 0, 0)
