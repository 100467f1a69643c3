"""How many processes work out the learner's gradients: as many as were asked for, or as many as are faster here."""

from __future__ import annotations

from collections.abc import Callable

from freewheel.errors import ConfigError
from freewheel.learners.loop import Learner
from freewheel.learners.nested import nth
from freewheel.learners.workers import Team, TeamStep, fastest
from freewheel.report.processes import is_alive
from freewheel.run.channel import Channel

# An update that takes less is not worth the hand-over of shares: more workers are not even tried.
LEAST_S = 5e-3
# The first updates are slower than those that follow.
LOOK_AFTER = 20
# So long each turn of the measurement may take, where one gradient does not take longer: nothing is learned meanwhile.
TURN_S = 0.1
# A second worker takes a core from somebody: it has to bring this much.
LEAST_GAIN = 1.15


def make_team(learner: Learner, num_actions: int, asked: int, cores: int, is_apart: bool = False) -> Team | None:
    """Shared memory for as many workers as may be needed, with a device each or not; None where there can only be one."""
    workers = asked or min(cores, learner.config.learner.batch_size)
    if workers < 2 or learner.config.learner.compile == "on":
        return None
    batch, draws = learner.example()
    if learner.step.unrolled > 1:
        batch, draws = nth(batch, 0), nth(draws, 0)
    try:
        return Team(workers, learner.step, batch, draws, num_actions, is_apart)
    except ConfigError:
        if asked:
            raise
        return None


class Helping:
    """The learner's side. With `workers` 0 the team is tried once an update is seen to be long enough.

    `may_wait` says whether a helper that died will be replaced; one that gives nothing for `timeout_s` is told of, and is replaced too.
    """

    def __init__(
        self,
        learner: Learner,
        team: Team | None,
        channel: Channel,
        may_wait: Callable[[], bool],
        timeout_s: float = 60.0,
    ) -> None:
        self._learner, self._team, self._channel = learner, team, channel
        self._may_wait, self._timeout_s = may_wait, timeout_s
        self._is_open = team is not None  # nothing is decided yet
        self._has_asked = False
        self._together: TeamStep | None = None
        if team is not None and learner.config.learner.workers > 1:
            self._together = self._joined(team)
            self._is_open = False

    def rest(self) -> None:
        """The team has nothing to do for now, as updates are compiled: those take one worker."""
        if self._together is not None:
            self._learner.step.gradient_by = self._learner.step.gradient

    def go_on(self) -> None:
        """After a rest."""
        if self._together is not None:
            self._learner.step.gradient_by = self._together.gradient

    def look(self) -> None:
        """Now and then, between two calls."""
        learner, team = self._learner, self._team
        if not self._is_open or team is None or learner.step.is_compiled or learner.updates < LOOK_AFTER:
            return
        if not self._has_asked:
            self._has_asked = True
            self._is_open = learner.update_s >= LEAST_S
            if self._is_open:
                self._ask_for_helpers(team)
            return
        if bool((team.pids[1:] > 0).all()):
            self._is_open = False
            self._measure(team)

    def close(self) -> None:
        """Lets the helpers go; nobody is asked for again."""
        self._together, self._is_open = None, False
        if self._team is not None:
            self._team.dismiss()

    def _joined(self, team: Team) -> TeamStep:
        return TeamStep(
            self._learner.step,
            team,
            self._timeout_s,
            self._may_wait,
            late=lambda worker: self._channel.send({"late_worker": worker}),
            mark=self._learner.mark_team,
        )

    def _ask_for_helpers(self, team: Team) -> None:
        """Some may be left from a learner before this one; those that it dismissed are none."""
        team.lead()
        for worker in range(1, team.num_workers):
            if not is_alive(int(team.pids[worker])):
                team.pids[worker] = 0
        self._channel.send({"helpers": team.num_workers - 1})

    def _measure(self, team: Team) -> None:
        step = self._learner.step
        batch, draws = self._learner.example()
        if step.unrolled > 1:
            batch, draws = nth(batch, 0), nth(draws, 0)
        together = self._joined(team)
        workers = team.num_workers
        calls = max(min(int(TURN_S / max(self._learner.update_s, 1e-9)), 10), 1)
        _, each = fastest(
            {1: lambda: _work(step.gradient(batch, draws)), workers: lambda: _work(together.gradient(batch, draws))},
            calls=calls,
        )
        takes = ", ".join(f"{n}: {1e3 * seconds:.2g} ms" for n, seconds in each.items())
        count = workers if each[1] >= each[workers] * LEAST_GAIN else 1
        if count == 1:
            step.gradient_by = step.gradient
            team.dismiss()
        else:
            self._together = together
        self._channel.send({"note": f"training workers: {count}, by measurement of one gradient ({takes})."})


def _work(gradient: object) -> None:
    """Only the time it took counts."""
