"""`freewheel bench speedup`: the same training in the sequential and in the local runtime, beside what Amdahl's law predicts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from freewheel.bench import svg
from freewheel.bench.checks import check_numbers, check_plot, check_training
from freewheel.bench.dqn_training import MODULE, order_of
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
from freewheel.bench.settings import SpeedupSettings
from freewheel.bench.several_agents import SeveralAgents
from freewheel.bench.trainings import RATIO_TOLERANCE, Configuration, count
from freewheel.bench.worker.dqn_settings import BATCH, ENV, STEPS_PER_UPDATE
from freewheel.errors import ConfigError, FreewheelError

SEQUENTIAL = "sequential"
FIRST_RATIO = BATCH / STEPS_PER_UPDATE


class Layout(NamedTuple):
    """How many agents learn, each for itself, and how many actors each has."""

    agents: int
    actors: int

    def __str__(self) -> str:
        return count(self.actors, "actor") if self.agents == 1 else count(self.agents, "agent")


@dataclass
class Point:
    """One share of training: the ratio that gives it, its sequential run, and its runs in the local runtime.

    Agents that take turns in one process make as many steps a second together as one does alone: the sequential run stands for any number.
    """

    share: float
    ratio: float
    sequential: Configuration
    local: dict[Layout, Configuration] = field(default_factory=dict)

    def learner_share(self) -> float:
        """As measured, which is near what was asked for."""
        return median([window["learner_share"] for window in self.sequential.windows])

    def is_whole(self) -> bool:
        return all(one.windows and one.problem is None for one in (self.sequential, *self.local.values()))


def run(settings: SpeedupSettings) -> list[Case]:
    """Measure, print, plot, and give the cases."""
    check(settings)
    machine = describe_machine({})
    warn_if_busy(machine)
    per_round = len(settings.shares) * (1 + len(layouts(settings)))
    with progress("bench speedup", 1 + per_round * settings.rounds) as bar:
        points = plan(settings, calibrate(settings, bar))
        for _ in range(settings.rounds):
            for point in points:
                for one in (point.sequential, *point.local.values()):
                    bar.show(one.label)
                    one.measure(settings.warm_s, settings.seconds, {})
                    bar.advance()
    whole = [point for point in points if point.is_whole()]
    if not whole:
        raise FreewheelError("no share of training gave all of its figures; each one's last lines are above.")
    cases = [make_case(point, layout, machine["cores"]) for point in whole for layout in point.local]
    svg.write(settings.plot, plot(cases, layouts(settings), machine))
    print(f"the plot is in {settings.plot}", file=sys.stderr)
    print_report("speedup", machine, cases, table(cases, machine), as_json=settings.json)
    return cases


def check(settings: SpeedupSettings) -> None:
    check_training(settings.seconds, settings.warm_s, settings.rounds)
    check_numbers(actors=settings.actors, agents=settings.agents, lanes=(settings.lanes,))
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


def layouts(settings: SpeedupSettings) -> list[Layout]:
    """One agent with each number of actors, then each number of agents with one."""
    return list(dict.fromkeys([Layout(1, n) for n in settings.actors] + [Layout(n, 1) for n in settings.agents]))


def calibrate(settings: SpeedupSettings, bar: Bar) -> float:
    """What an update costs, in steps of the actor: from a sequential run at some ratio."""
    first = configuration(settings, FIRST_RATIO, "calibration")
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
        local = {layout: configuration(settings, ratio, f"{name}, {layout}", layout) for layout in layouts(settings)}
        points.append(Point(share, ratio, configuration(settings, ratio, name), local))
    return points


def configuration(settings: SpeedupSettings, ratio: float, name: str, layout: Layout | None = None) -> Configuration:
    """Sequential, or local where a layout is given."""
    runtime = "local" if layout else SEQUENTIAL
    order = order_of(
        lanes=settings.lanes,
        runtime=runtime,
        is_compiled=settings.form == "compiled",
        ratio=ratio,
        actors=layout.actors if layout else 0,
    )
    side, title, python = OURS if layout else SEQUENTIAL, f"{runtime}, {name}", Path(sys.executable)
    if layout and layout.agents > 1:
        return SeveralAgents("dqn", side, title, python, MODULE, order, agents=layout.agents)
    return Configuration("dqn", side, title, python, MODULE, order)


def predicted(learner_share: float, layout: Layout, cores: int) -> float:
    """Amdahl's law for roles that overlap: the longest of one agent's actors' part, its learner's part and all agents' work over the cores."""
    longest = max((1 - learner_share) / layout.actors, learner_share, layout.agents / cores)
    return layout.agents / longest


def make_case(point: Point, layout: Layout, cores: int) -> Case:
    local, share = point.local[layout], point.learner_share()
    name = f"speedup/{100 * point.share:.0f}%/{layout}".replace(" ", "_")
    case = Case(name, "steps/s", local.speeds(), baselines={SEQUENTIAL: point.sequential.speeds()}, baseline=SEQUENTIAL)
    case.extra = {
        "training_share": shown(share),
        "agents": layout.agents,
        "actors": layout.actors,
        "predicted": shown(predicted(share, layout, cores)),
        "asked_ratio": shown(point.ratio),
        "ratios": {SEQUENTIAL: shown(point.sequential.ratio()), OURS: shown(local.ratio())},
    }
    off = [one for one in (point.sequential, local) if abs(one.ratio() / point.ratio - 1) > RATIO_TOLERANCE]
    if off:
        case.extra["notes"] = [
            f"{one.label}: NOT the ratio of {point.ratio:.2f}, but {one.ratio():.2f}." for one in off
        ]
    if local.account():
        case.extra["account"] = local.account()
    return case


def table(cases: Sequence[Case], machine: dict[str, Any]) -> Table:
    made = Table(title=f"bench speedup: {ENV} on {machine['cpu']}, {machine['cores']} cores, medians of the rounds")
    titles = (
        "training takes",
        "agents",
        "actors",
        "ratio",
        "sequential steps/s",
        "local steps/s",
        "measured",
        "predicted",
    )
    for title in titles:
        made.add_column(title, justify="right")
    for case in cases:
        ratio = case.ratio or 0.0
        made.add_row(
            f"{100 * case.extra['training_share']:.0f} %",
            str(case.extra["agents"]),
            str(case.extra["actors"]),
            f"{case.extra['ratios'][OURS]:.2f}",
            readable(median(case.baselines[SEQUENTIAL])),
            readable(median(case.ours)),
            f"{ratio:.2f}x",
            f"{case.extra['predicted']:.2f}x",
        )
    made.caption = (
        "actors: of each agent. steps/s: of all agents together; the sequential figure is the same for any number of agents.\n"
        "predicted: agents / the longest of an agent's actors' share / actors, its learner's share, agents / cores"
    )
    return made


def plot(cases: Sequence[Case], chosen: Sequence[Layout], machine: dict[str, Any]) -> str:
    curves = []
    for colour, layout in enumerate(chosen):
        own = [case for case in cases if (case.extra["agents"], case.extra["actors"]) == layout]
        own.sort(key=lambda case: case.extra["training_share"])
        places = [round(100 * c.extra["training_share"], 1) for c in own]
        measured = [(x, c.ratio or 0.0) for x, c in zip(places, own, strict=True)]
        law = [(x, c.extra["predicted"]) for x, c in zip(places, own, strict=True)]
        curves.append(svg.Curve(str(layout), measured, colour))
        curves.append(svg.Curve(str(layout), law, colour, is_dashed=True))
    title = f"Local runtime against sequential on {machine['cores']} cores (dashed: predicted)"
    return svg.lines(title, "share of the sequential run's time that training takes, %", "speed-up", curves)
