"""`freewheel bench pixels`: learning from images, a training on Atari from end to end and a large learner's update step by step."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from freewheel.bench import pixels_limit, pixels_mario
from freewheel.bench.harness import OURS, Case, describe_machine, median, report, shown, warn_if_busy
from freewheel.bench.peers import pixels_settings as same
from freewheel.bench.pixels_plan import ATARI, PEERS, check, plan
from freewheel.bench.pixels_settings import PixelsSettings
from freewheel.bench.trainings import Configuration, best_of, details, measure_all, why_nothing
from freewheel.errors import FreewheelError
from freewheel.memory.lanes import forecast_bytes
from freewheel.spec import RowSpec

GOAL, LIMIT_GOAL, MARIO_GOAL = 2.0, 0.6, 1.8
LIMIT = "limit"


def run(settings: PixelsSettings) -> list[Case]:
    """Measure, print, and give the cases."""
    chosen = check(settings)
    machine = describe_machine({})
    warn_if_busy(machine)
    cases: list[Case] = []
    if "atari" in chosen:
        env, everybody = plan(settings)
        versions = measure_all("bench pixels", everybody, settings.rounds, settings.warm_s, settings.seconds)
        machine["versions"] |= {side: version for side, version in versions.items() if side != OURS}
        cases += atari_cases(env, everybody, machine["cores"])
    if "mario" in chosen:
        cases.append(pixels_mario.case(settings, machine["cores"], MARIO_GOAL))
    report("pixels", machine, cases, as_json=settings.json)
    return cases


def atari_cases(env: str, everybody: Sequence[Configuration], cores: int) -> list[Case]:
    """Against the better peer, and against what the arithmetic of the updates alone would allow."""
    own = best_of(everybody, ATARI, OURS)
    if own is None:
        raise FreewheelError(
            f"{ATARI}: none of our trainings gave a figure that counts; {why_nothing(ATARI, everybody)}."
        )
    best = {OURS: own}
    case = Case(ATARI, "rows/s", own.speeds(), goal=GOAL)
    for peer in PEERS:
        found = best_of(everybody, ATARI, peer)
        if found is not None:
            best[peer] = found
            case.peers[peer] = found.speeds()
    case.extra = {**details(ATARI, everybody, best), "env": env, **_path(own, cores)}
    case.extra["notes"].append(_path_note(case.extra))
    seconds, form = pixels_limit.arithmetic_s(cores)
    limit = Case(f"pixels/arithmetic/{same.BATCH}", "rows/s", own.speeds(), goal=LIMIT_GOAL)
    limit.baselines, limit.baseline = {LIMIT: [same.STEPS_PER_UPDATE / seconds]}, LIMIT
    limit.extra = {"arithmetic_ms": shown(1e3 * seconds), "form": form}
    limit.extra["arithmetic_share"] = shown(own.speed() * seconds / same.STEPS_PER_UPDATE)
    limit.extra["notes"] = [
        f"{limit.name}: the products and convolutions of one update alone take {1e3 * seconds:.3g} ms ({form})."
    ]
    return [case, limit]


def _path(own: Configuration, cores: int) -> dict[str, Any]:
    """What images cost beside the network, and what is kept of them."""
    paths = [window["image_path"] for window in own.windows if window.get("image_path") is not None]
    updates_per_s = own.speed() * own.updates_per_step()
    found: dict[str, Any] = {
        "convert_share": shown(pixels_limit.convert_s(cores) * updates_per_s),
        "drops": sum(window.get("drops", 0) for window in own.windows),
        "replay_gb": {
            f"{rows:_} x {size} x {size}": shown(replay_gb(rows, size))
            for rows, size in ((same.BUFFER, same.SIZE), (1_000_000, same.SIZE), (50_000, same.MARIO_SIZE))
        },
        "locks": 0,  # there is none to wait for
    }
    if paths:
        found["image_path_share"] = shown(median(paths) + found["convert_share"])
    return found


def _path_note(extra: dict[str, Any]) -> str:
    share = f"{100 * extra['image_path_share']:.1f} %" if "image_path_share" in extra else "an unknown share"
    return (
        f"{ATARI}: images apart from the network take {share} of the learner's time (collect, write, sample, stack, "
        f"convert); {extra['drops']} drops; {os.cpu_count()} cores; env {extra['env']}."
    )


def replay_gb(rows: int, size: int, lanes: int = 8) -> float:
    """Shared memory of a replay of grey frames, each kept once."""
    spec = RowSpec.of(spaces.Box(0, 255, (size, size), np.uint8), spaces.Discrete(same.ACTIONS))
    return forecast_bytes(spec, lanes, rows // lanes) / 1e9
