"""What binds a run and what to change, in plain words: decided by who waits for whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from freewheel.report.phases import WAITS

# A side that waits less than this keeps up: the target for the binding role is 95 % of its time on useful work.
KEEPS_UP = 0.05
# With both sides asleep for more than this, neither is what the run is limited by.
BOTH_WAIT = 0.2
# A phase that takes more than this is worth a word.
WORTH_A_WORD = 0.1
# Beyond this the achieved ratio has missed the target: the governor promises to hold it within 5 %.
RATIO_MISSED = 0.05

# What a phase is called in a sentence, and what makes it shorter.
WORDS = {
    "env": ("env steps", "a faster env, or where cores are free a pool (--world pool) or more actors (--local.actors)"),
    "infer": ("choosing actions", "more lanes per actor (--lanes), or a smaller network"),
    "write": ("writing rows", "smaller observations (uint8 in place of floats)"),
    "fetch": ("fetching weights", "publish less often (--local.publish-every-updates, --local.publish-every-s)"),
    "sample": ("drawing batches", "more batches ready ahead (--local.prefetch), or smaller observations"),
    "transfer": ("moving batches to the device", "smaller observations (uint8 in place of floats)"),
    "compute": (
        "updates",
        "compiled updates (--compile on) where they are eager, fewer of them per step (--learner.ratio, --ppo.epochs), or a smaller network",
    ),
    "wait_team": ("waiting for other training workers", "fewer of them (--learner.workers 1)"),
    "priorities": ("writing priorities back", "uniform replay (--replay.no-prioritized)"),
    "publish": ("publishing weights", "publish less often (--local.publish-every-updates, --local.publish-every-s)"),
    "checkpoint": ("saving checkpoints", "save less often (--checkpoint.every-steps)"),
    "compile": ("compiling", "--compile auto, which compiles beside the training"),
    "report": ("reporting figures", "log less often (--log.every-s)"),
    "log": ("writing logs", "log less often (--log.every-s)"),
    "evaluate": ("evaluating", "fewer episodes (--eval-episodes)"),
}
# The same where one process does all, and there are neither actors nor batches made ready ahead.
ALONE = {"env": "a faster env, or where cores are free a pool (--world pool)", "sample": "smaller observations"}


@dataclass(frozen=True)
class Side:
    """All roles of one kind taken as one: their seconds added up. `warmup_s` of the waiting for data was to be expected."""

    phases_s: Mapping[str, float]
    wall_s: float
    warmup_s: float = 0.0

    @property
    def running_s(self) -> float:
        """Without start, stop and warm-up: what binds is decided by the time in between."""
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


@dataclass(frozen=True)
class Verdict:
    """`binds` is learner, actors, neither, start, warmup, one (a single side was there) or nothing."""

    binds: str
    sentence: str


def judge(actors: Side, learners: Side, ratio_target: float, ratio: float, is_free: bool) -> Verdict:
    """The verdict on a run; a side without any time was not there."""
    sides = [side for side in (actors, learners) if side.wall_s > 0]
    if not sides:
        return Verdict("nothing", "Nothing ran: no actor or learner has any time in the ledger.")
    total_s = sum(side.wall_s for side in sides)
    start, stop = (sum(side.phases_s.get(name, 0.0) for side in sides) / total_s for name in ("start", "stop"))
    if start + stop >= 0.5:
        what = "Start-up" if start >= stop else "Stopping"
        return Verdict(
            "start",
            f"{what} took most of it: {percent(max(start, stop))} of the time of actors and learner. "
            "Run longer (--steps) to see what binds.",
        )
    if len(sides) == 1:
        return Verdict("one", f"One role did all of it: {_work(sides[0], 'its')}. {_advice(sides[0], ALONE)}")
    if learners.phases_s.get("compute", 0.0) <= 0:
        return Verdict("warmup", _no_update(actors, learners, ratio_target))
    return _who_waits(actors, learners, ratio_target, ratio, is_free)


def _no_update(actors: Side, learners: Side, ratio_target: float) -> str:
    if learners.share("compile") > WORTH_A_WORD:
        return f"No update was made: the learner was still compiling. To go faster: {WORDS['compile'][1]}."
    work = _work(actors, "the actors'")
    early = (
        "within the warm-up (--replay.warmup-rows)"
        if ratio_target
        else "before a rollout was complete (--rollout.rows)"
    )
    return f"No update was made: the run ended {early}. Until then {work}."


def _who_waits(actors: Side, learners: Side, ratio_target: float, ratio: float, is_free: bool) -> Verdict:
    held, starved = actors.wait, learners.wait
    if min(held, starved) > BOTH_WAIT and not ratio_target:
        return Verdict(
            "neither",
            f"Neither binds: actors waited {percent(held)} for the learner and it {percent(starved)} for them. "
            "To go faster: let actors collect while the learner learns (--algo appo), and leave each a core.",
        )
    if min(held, starved) > BOTH_WAIT:
        return Verdict(
            "neither",
            f"Neither binds: actors waited {percent(held)} for the ratio and the learner {percent(starved)} for data, so "
            "both slept at times. To go faster: let them run further apart (--local.slack-steps), and leave each a core.",
        )
    if is_free and starved <= KEEPS_UP and ratio < (1 - RATIO_MISSED) * ratio_target:
        return Verdict(
            "learner",
            f"The learner binds: {_work(learners, 'its')}, and it drew {ratio:.3g} samples per step where "
            f"{ratio_target:.3g} were asked for, as nothing holds actors back (--local.free). {_advice(learners)}",
        )
    if max(held, starved) <= KEEPS_UP:
        training, acting = _work(learners, "the learner's"), _work(actors, "the actors'")
        return Verdict(
            "neither",
            f"Neither binds: nobody waited; {training}, and {acting}. "
            f"To go faster, change both: {'; '.join(_cures(learners, actors))}.",
        )
    if held >= starved:
        return Verdict(
            "learner",
            f"The learner binds: {_work(learners, 'its')}, and actors waited {percent(held)} of theirs for it. "
            f"{_advice(learners)}",
        )
    return Verdict(
        "actors",
        f"Actors bind: {_work(actors, 'their')}, and the learner waited {percent(starved)} of its time for data. "
        f"{_advice(actors)}",
    )


def percent(share: float) -> str:
    return "under 1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"


def _work(side: Side, whose: str) -> str:
    """Such as `81 % of its time is updates, 15 % drawing batches`."""
    parts = [(percent(side.share(name)), WORDS.get(name, (name,))[0]) for name in side.work()]
    if not parts:
        return f"none of {whose} time is work"
    (share, what), *rest = parts
    return ", ".join([f"{share} of {whose} time is {what}", *(f"{share} {what}" for share, what in rest)])


def _cures(*sides: Side, instead: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """dict.fromkeys: two phases may have the same cure, which is then told once."""
    names = [name for side in sides for name in side.work()]
    return list(dict.fromkeys(instead.get(name) or WORDS.get(name, ("", f"less time in {name}"))[1] for name in names))


def _advice(side: Side, instead: Mapping[str, str] = MappingProxyType({})) -> str:
    cures = _cures(side, instead=instead)
    return f"To go faster: {'; '.join(cures)}." if cures else "There is nothing to make faster."
