"""The verdict: what binds a run and what to change, in plain words. It is decided by who waits for whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from freewheel.report.phases import WAITS

# A side that waits less than this keeps up: the binding role should spend 95 % of its time on useful work.
KEEPS_UP = 0.05
# If both sides sleep for more than this, neither limits the run.
BOTH_WAIT = 0.2
# A phase that takes more than this is named in the verdict.
WORTH_A_WORD = 0.1
# Pace promises to hold the replay ratio within 5 %; beyond that it missed the target.
RATIO_MISSED = 0.05

_PUBLISH = "publish less often (--local.publish-every-updates, --local.publish-every-s)"
_SMALLER = "use smaller observations (uint8 instead of floats)"
_LOG = "log less often (--log.every-s)"
# The name of a phase in a sentence, and how to make it shorter.
WORDS = {
    "env": (
        "env steps",
        "use a faster env or, if cores are free, a pool (--world pool) or more actors (--local.actors)",
    ),
    "infer": ("choosing actions", "use more lanes per actor (--lanes) or a smaller network"),
    "write": ("writing rows", _SMALLER),
    "fetch": ("fetching weights", _PUBLISH),
    "sample": ("sampling batches", "prepare more batches in advance (--local.prefetch) or use smaller observations"),
    "transfer": ("moving batches to the device", _SMALLER),
    "compute": (
        "updates",
        "compile updates (--compile on) if they are eager{fewer}, or use a smaller network",
    ),
    "wait_workers": ("waiting for gradient workers", "use fewer of them (--learner.workers 1)"),
    "priorities": ("writing priorities back", "use uniform replay (--replay.no-prioritized)"),
    "publish": ("publishing weights", _PUBLISH),
    "checkpoint": ("saving checkpoints", "save less often (--checkpoint.every-steps)"),
    "compile": ("compiling", "use --compile auto, which compiles in the background"),
    "report": ("reporting metrics", _LOG),
    "log": ("writing logs", _LOG),
}
# Other advice for a single process, which has neither actors nor batches prepared in advance.
ALONE = {
    "env": "use a faster env or, if cores are free, a pool (--world pool)",
    "sample": "use smaller observations",
}


@dataclass(frozen=True)
class Side:
    """All roles of one kind together: their seconds added up.

    Of the wait for data, `warmup_s` was to be expected. `fewer_updates` is the setting for fewer updates per step, if there is one.
    """

    phases_s: Mapping[str, float]
    wall_s: float
    warmup_s: float = 0.0
    fewer_updates: str = ""

    @property
    def running_s(self) -> float:
        """Without start, stop and warm-up: the time in between decides what binds."""
        return max(self.wall_s - self._of("start") - self._of("stop") - self._warmup_s, 0.0)

    @property
    def wait(self) -> float:
        return min(sum(self.share(phase) for phase in WAITS), 1.0)

    def share(self, phase: str) -> float:
        """Share of the running time."""
        spent = self._of(phase) - (self._warmup_s if phase == "wait_data" else 0.0)
        return min(max(spent, 0.0) / self.running_s, 1.0) if self.running_s > 0 else 0.0

    def work(self) -> list[str]:
        """The phase that takes most, then all others that are worth a word."""
        names = [name for name in self.phases_s if name not in WAITS | {"start", "stop"} and self.share(name) > 0]
        names.sort(key=self.share, reverse=True)
        return names[:1] + [name for name in names[1:] if self.share(name) > WORTH_A_WORD]

    @property
    def _warmup_s(self) -> float:
        return min(self.warmup_s, self._of("wait_data"))

    def _of(self, phase: str) -> float:
        return self.phases_s.get(phase, 0.0)


def judge(actors: Side, learners: Side, ratio_target: float, ratio: float, is_free: bool) -> tuple[str, str]:
    """What binds (learner, actors, neither, start, warmup, one, nothing) and the sentence. A side without time was not there."""
    sides = [side for side in (actors, learners) if side.wall_s > 0]
    if not sides:
        return "nothing", "Nothing ran: no actor or learner has any time in the ledger."
    total_s = sum(side.wall_s for side in sides)
    start, stop = (sum(side.phases_s.get(name, 0.0) for side in sides) / total_s for name in ("start", "stop"))
    is_untrained = len(sides) == 2 and learners.phases_s.get("compute", 0.0) <= 0
    if is_untrained:
        return "warmup", _no_update(actors, learners, ratio_target)
    if start + stop >= 0.5:
        what = "Start-up" if start >= stop else "Stopping"
        return (
            "start",
            f"{what} took most of the time ({percent(max(start, stop))}). Run longer (--steps) to see what binds.",
        )
    if len(sides) == 1:
        return "one", f"One role did everything: {_work(sides[0], 'its')}. {_advice(sides[0], instead=ALONE)}"
    return _who_waits(actors, learners, ratio_target, ratio, is_free)


def _no_update(actors: Side, learners: Side, ratio_target: float) -> str:
    if learners.share("compile") > WORTH_A_WORD:
        return f"No update was made: the learner was still compiling. To go faster: {WORDS['compile'][1]}."
    early = (
        "during the warm-up (--replay.warmup-rows)"
        if ratio_target
        else "before a rollout was complete (--rollout.rows)"
    )
    acting = _work(actors, "the actors'")
    return f"No update was made: the run ended {early}. Until then {acting}."


def _who_waits(actors: Side, learners: Side, ratio_target: float, ratio: float, is_free: bool) -> tuple[str, str]:
    held, starved = actors.wait, learners.wait
    actors_waited = f"the actors waited {percent(held)} of their time"
    if min(held, starved) > BOTH_WAIT:
        what, change = "the learner", "work at the same time (--algo appo)"
        if ratio_target:
            what, change = "the ratio", "run further apart (--local.slack-steps)"
        return "neither", (
            f"Neither binds: {actors_waited} for {what}, and the learner {percent(starved)} of its time for data. "
            f"To go faster: let them {change}, and leave a core for each."
        )
    if is_free and starved <= KEEPS_UP and ratio < (1 - RATIO_MISSED) * ratio_target:
        return "learner", (
            f"The learner binds: {_work(learners, 'its')}. It sampled {ratio:.3g} rows per step instead of "
            f"{ratio_target:.3g}, because nothing holds the actors back (--local.free). {_advice(learners)}"
        )
    if max(held, starved) <= KEEPS_UP:
        training, acting = _work(learners, "the learner's"), _work(actors, "the actors'")
        return "neither", (
            f"Neither binds: nobody waited. {training}, and {acting}. "
            f"{_advice(learners, actors, opening='To go faster, change both')}"
        )
    if held >= starved:
        return (
            "learner",
            f"The learner binds: {_work(learners, 'its')}, and {actors_waited} for it. {_advice(learners)}",
        )
    return "actors", (
        f"Actors bind: {_work(actors, 'their')}, and the learner waited {percent(starved)} of its time for data. "
        f"{_advice(actors)}"
    )


def percent(share: float) -> str:
    return "under 1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"


def _work(side: Side, whose: str) -> str:
    """Such as `81 % of its time went to updates, 15 % to sampling batches`."""
    parts = [(percent(side.share(name)), WORDS.get(name, (name,))[0]) for name in side.work()]
    if not parts:
        return f"none of {whose} time went to work"
    (share, what), *rest = parts
    return ", ".join([f"{share} of {whose} time went to {what}", *(f"{share} to {what}" for share, what in rest)])


def _advice(*sides: Side, opening: str = "To go faster", instead: Mapping[str, str] | None = None) -> str:
    """How to make the phases shorter that take most."""
    given = dict[str, None]()  # two phases may have the same advice, which is given once
    for side in sides:
        fewer = f", make fewer per step (--{side.fewer_updates})" if side.fewer_updates else ""
        for name in side.work():
            _, usual = WORDS.get(name, (name, f"spend less time in {name}"))
            given[(instead or {}).get(name, usual).replace("{fewer}", fewer)] = None
    return f"{opening}: {'; '.join(given)}." if given else "There is nothing to make faster."
