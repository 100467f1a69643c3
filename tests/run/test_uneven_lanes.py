"""Lanes that come at different times: the slow hold nobody, and no row is lost, repeated or mixed up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from run_cases import built as built_small

import freewheel
from freewheel.run.sequential import Sequential
from freewheel.store.checkpoint import load_newest
from freewheel.worlds.world import Ready


class Uneven:
    """A world whose lane i takes i + 1 turns for a step: recv gives whichever are ready."""

    def __init__(self, world: Any) -> None:
        self.inner = world
        self._turn = 0
        self._held: dict[int, tuple[int, Any]] = {}  # lane: the turn it is ready at, and its action

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def send(self, group: int, lanes: Any, actions: Any) -> None:
        for lane, action in zip(lanes.tolist(), actions["action"], strict=True):
            self._held[lane] = (self._turn + lane + 1, action)

    def recv(self, timeout_s: float = 60.0) -> tuple[Ready, ...]:
        while self._held:
            self._turn += 1
            ready = [lane for lane, (at, _) in self._held.items() if at <= self._turn]
            if ready:
                actions = np.array([self._held.pop(lane)[1] for lane in ready])
                self.inner.send(0, np.array(ready), {"action": actions})
                break
        made: tuple[Ready, ...] = self.inner.recv(timeout_s)
        return made


def built(is_even: bool = False, **more: Any) -> Sequential:
    given = {"rollout.rows": 10, "net.hidden": (8,), "ppo.epochs": 1, "ppo.minibatches": 4, **more}
    made = built_small("ppo", **given)
    if not is_even:
        made.actor.world = Uneven(made.actor.world)
    return made


def watched(made: Sequential, look: Any) -> Any:
    """`look` sees each rollout, and what was made of it, before it is learned from."""
    (learner,) = made.learners
    prepare = learner.algo.prepare

    def prepared(rows: Any, of: Any, is_new: bool) -> Any:
        found = prepare(rows, of, is_new)
        look(rows, found)
        return found

    learner.algo.prepare = prepared  # type: ignore[method-assign]
    return learner


def run(made: Sequential, rollouts: int) -> None:
    (learner,) = made.learners
    while learner.version < rollouts:
        made.actor.turn()
        while learner.turn():
            pass


def test_every_row_is_learned_from_once_with_the_outcome_of_its_action() -> None:
    made = built(**{"rollout.max_lag": 1000})
    seen: list[Any] = []
    counts: list[list[int]] = []
    lags: list[int] = []

    def look(rows: Any, found: Any) -> None:
        seen.append(found["obs"].clone())
        counts.append(rows.kept.sum(1).tolist())
        lags.append(int(rows.lag.max()))
        assert (rows.reward[rows.kept] == 1).all()  # every step of CartPole pays 1

    learner = watched(made, look)
    try:
        run(made, 12)
        learner.pace.before_save(learner.memory)
        rollout = learner.memory.rollout
        assert rollout.available == made.plan.counts.steps - 12 * 40
        every = torch.cat(seen)
        assert len(torch.unique(every, dim=0)) == len(every) == 12 * 40
        total = np.sum(counts, 0)
        assert total[0] > 1.7 * total[1] > 1.7 * total[3] > 0
        assert max(lags) >= 1
        assert (rollout.overwritten, rollout.stale, rollout.lost) == (0, 0, 0)
    finally:
        made.close()


def test_rows_that_waited_too_long_are_counted_not_learned_from() -> None:
    made = built(**{"rollout.max_lag": 0})
    lags: list[int] = []
    learner = watched(made, lambda rows, found: lags.append(int(rows.lag.max())))
    try:
        run(made, 10)
        assert set(lags) == {0}
        assert 0 < learner.memory.rollout.stale <= 4 * 10
    finally:
        made.close()


def test_actions_come_from_the_newest_weights() -> None:
    """The first rows of a rollout are acted on after the updates: their log-chances are those of the new policy."""
    made = built(is_even=True, **{"learner.lr": 0.05, "ppo.minibatches": 1})
    ratios: list[float] = []

    def look(rows: Any, found: Any) -> None:
        with torch.no_grad():
            out = made.learners[0].update.passes.eval_net(found["obs"])
            log_prob, _ = made.learners[0].algo.actions.log_prob(out[:, :-1], found["action"])
        ratios.append((log_prob - found["log_prob"]).abs().max().item())
        torch.testing.assert_close(out[:, -1].numpy(), rows.value[rows.kept], rtol=1e-4, atol=1e-5)

    watched(made, look)
    try:
        run(made, 3)
        assert len(ratios) == 3
        assert max(ratios) < 1e-4
    finally:
        made.close()


def actions_of_lane_0(made: Sequential) -> list[int]:
    actions: list[int] = []
    world = made.actor.world
    send = world.send

    def look(group: int, lanes: Any, sent: Any) -> None:
        actions.extend(sent["action"][lanes == 0].tolist())
        send(group, lanes, sent)

    world.send = look  # type: ignore[method-assign]
    try:
        while len(actions) < 60:
            made.actor.turn()
    finally:
        made.close()
    return actions[:60]


def test_a_lane_acts_the_same_in_whatever_company() -> None:
    """Chance belongs to lanes: with the same weights lane 0 takes the same actions, however the others come."""
    uneven, even = (built(is_even, **{"rollout.rows": 400}) for is_even in (False, True))
    assert actions_of_lane_0(uneven) == actions_of_lane_0(even)


def test_a_pool_of_workers_feeds_it(tmp_path: Path) -> None:
    settings = {"log.folder": str(tmp_path), "log.tensorboard": False, "world.kind": "pool", "world.lanes": 4}
    settings |= {"rollout.rows": 30, "net.hidden": (8,), "ppo.epochs": 1, "ppo.minibatches": 2, "eval_episodes": 0}
    run = freewheel.train("CartPole-v1", algo="ppo", steps=600, settings=settings, preset="none", is_quiet=True)
    assert run.result["updates"] == 600 // 120 * 2
    rollout = load_newest(run.folder / "checkpoints").state["rollout"]
    assert (rollout["lost"], rollout["stale"], rollout["overwritten"]) == (0, 0, 0)
