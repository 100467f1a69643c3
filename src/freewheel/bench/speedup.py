"""`freewheel bench speedup`: the same training in turn and with free-running roles, beside what Amdahl's law predicts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from freewheel.bench import svg
from freewheel.bench.dqn_ours import order_of
from freewheel.bench.harness import (
    OURS,
    Bar,
    Case,
    describe_machine,
    median,
    print_report,
    progress,
    readable,
    shown,
    warn_if_busy,
)
from freewheel.bench.peers.dqn_settings import BATCH, ENV, STEPS_PER_UPDATE
from freewheel.bench.settings import SpeedupSettings, check_numbers, check_plot, check_training
from freewheel.bench.trainings import OURS_MODULE, RATIO_TOLERANCE, Configuration, count
from freewheel.errors import ConfigError, FreewheelError

SEQUENTIAL = "sequential"
FIRST_RATIO = BATCH / STEPS_PER_UPDATE


@dataclass
class Point:
    """One share of training: the ratio that gives it, its run in turn, and those with free-running roles by number of actors."""

    share: float
    ratio: float
    in_turn: Configuration
    free: dict[int, Configuration] = field(default_factory=dict)

    def learner_share(self) -> float:
        """As measured, which is near what was asked for."""
        return median([window["learner_share"] for window in self.in_turn.windows])

    def is_whole(self) -> bool:
        return all(one.windows and one.problem is None for one in (self.in_turn, *self.free.values()))


def run(settings: SpeedupSettings) -> list[Case]:
    """Measure, print, plot, and give the cases."""
    check(settings)
    machine = describe_machine({})
    warn_if_busy(machine)
    per_round = len(settings.shares) * (1 + len(settings.actors))
    with progress("bench speedup", 1 + per_round * settings.rounds) as bar:
        points = plan(settings, calibrate(settings, bar))
        for _ in range(settings.rounds):
            for point in points:
                for one in (point.in_turn, *point.free.values()):
                    bar.show(one.label)
                    one.measure(settings.warm_s, settings.seconds, {})
                    bar.advance()
    whole = [point for point in points if point.is_whole()]
    if not whole:
        raise FreewheelError("no share of training gave all of its figures; each one's last lines are above.")
    cases = [make_case(point, actors, machine["cores"]) for point in whole for actors in point.free]
    svg.write(settings.plot, plot(cases, settings.actors, machine))
    print(f"the plot is in {settings.plot}", file=sys.stderr)
    print_report("speedup", machine, cases, table(cases, machine), as_json=settings.json)
    return cases


def check(settings: SpeedupSettings) -> None:
    check_training(settings.seconds, settings.warm_s, settings.rounds)
    check_numbers(actors=settings.actors, lanes=(settings.lanes,))
    check_plot(settings.plot)
    if not settings.shares or not all(0 < share < 1 for share in settings.shares):
        raise ConfigError(
            f"--shares {','.join(map(str, settings.shares))} must be one or more numbers between 0 and 1."
        )
    if max(settings.actors) > settings.lanes:
        raise ConfigError(
            f"--actors {max(settings.actors)} exceeds --lanes {settings.lanes}: an actor needs at least one lane. "
            "Lower the first or raise the second."
        )


def calibrate(settings: SpeedupSettings, bar: Bar) -> float:
    """What an update costs, in steps of the actor: from a run in turn at some ratio."""
    first = configuration(settings, FIRST_RATIO, SEQUENTIAL, 0, "calibration")
    bar.show(first.label)
    first.measure(settings.warm_s, settings.seconds, {})
    bar.advance()
    if not first.windows:
        raise FreewheelError("the run that the ratios are set by gave no figure; its last lines are above.")
    (window,) = first.windows
    share = min(max(window["learner_share"], 1e-3), 1 - 1e-3)
    return float(share / (1 - share) / window["updates_per_step"])


def ratio_for(share: float, update_in_steps: float) -> float:
    """Rows drawn per step so that updates take this share of the time: share / (1 - share) = updates per step x cost."""
    return share / (1 - share) / update_in_steps * BATCH


def plan(settings: SpeedupSettings, update_in_steps: float) -> list[Point]:
    points = []
    for share in settings.shares:
        ratio, name = ratio_for(share, update_in_steps), f"training {100 * share:.0f} %"
        point = Point(share, ratio, configuration(settings, ratio, SEQUENTIAL, 0, name))
        for actors in settings.actors:
            point.free[actors] = configuration(settings, ratio, "local", actors, f"{name}, {count(actors, 'actor')}")
        points.append(point)
    return points


def configuration(settings: SpeedupSettings, ratio: float, runtime: str, actors: int, name: str) -> Configuration:
    order = order_of(
        lanes=settings.lanes,
        runtime=runtime,
        is_compiled=settings.form == "compiled",
        ratio=ratio,
        actors=actors,
    )
    side = SEQUENTIAL if runtime == SEQUENTIAL else OURS
    return Configuration("dqn", side, f"{runtime}, {name}", Path(sys.executable), OURS_MODULE, order)


def predicted(learner_share: float, actors: int, cores: int) -> float:
    """Amdahl's law for roles that overlap: the longest of the actors' part, the learner's part and all work over the cores."""
    return 1 / max((1 - learner_share) / actors, learner_share, 1 / cores)


def make_case(point: Point, actors: int, cores: int) -> Case:
    free, share = point.free[actors], point.learner_share()
    name = f"speedup/{100 * point.share:.0f}%/{count(actors, 'actor')}".replace(" ", "_")
    case = Case(name, "steps/s", free.speeds(), baselines={SEQUENTIAL: point.in_turn.speeds()}, baseline=SEQUENTIAL)
    case.extra = {
        "training_share": shown(share),
        "actors": actors,
        "predicted": shown(predicted(share, actors, cores)),
        "asked_ratio": shown(point.ratio),
        "ratios": {SEQUENTIAL: shown(point.in_turn.ratio()), OURS: shown(free.ratio())},
    }
    off = [one for one in (point.in_turn, free) if abs(one.ratio() / point.ratio - 1) > RATIO_TOLERANCE]
    if off:
        case.extra["notes"] = [
            f"{one.label}: NOT the ratio of {point.ratio:.2f}, but {one.ratio():.2f}." for one in off
        ]
    if free.account():
        case.extra["account"] = free.account()
    return case


def table(cases: Sequence[Case], machine: dict[str, Any]) -> Table:
    made = Table(title=f"bench speedup: {ENV} on {machine['cpu']}, {machine['cores']} cores, medians of the rounds")
    for title in ("training takes", "actors", "ratio", "sequential steps/s", "local steps/s", "measured", "predicted"):
        made.add_column(title, justify="right")
    for case in cases:
        ratio = case.ratio or 0.0
        made.add_row(
            f"{100 * case.extra['training_share']:.0f} %",
            str(case.extra["actors"]),
            f"{case.extra['ratios'][OURS]:.2f}",
            readable(median(case.baselines[SEQUENTIAL])),
            readable(median(case.ours)),
            f"{ratio:.2f}x",
            f"{case.extra['predicted']:.2f}x",
        )
    made.caption = "predicted: 1 / the longest of actors' share / actors, learner's share, 1 / cores"
    return made


def plot(cases: Sequence[Case], numbers: Sequence[int], machine: dict[str, Any]) -> str:
    curves = []
    for colour, actors in enumerate(numbers):
        own = sorted((c for c in cases if c.extra["actors"] == actors), key=lambda c: c.extra["training_share"])
        places = [round(100 * c.extra["training_share"], 1) for c in own]
        measured = [(x, c.ratio or 0.0) for x, c in zip(places, own, strict=True)]
        law = [(x, c.extra["predicted"]) for x, c in zip(places, own, strict=True)]
        curves.append(svg.Curve(f"measured, {count(actors, 'actor')}", measured, colour))
        curves.append(svg.Curve(f"predicted, {count(actors, 'actor')}", law, colour, is_dashed=True))
    title = f"Free-running roles against roles in turn ({machine['cores']} cores)"
    return svg.lines(title, "share of the sequential run's time that training takes, %", "speed-up", curves)
