"""`freewheel play RUN`: films greedy episodes of a trained agent as GIF or MP4."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from freewheel.cli.eval import Agent, RunArgs, check_episodes, load_agent, until_signal
from freewheel.errors import ConfigError
from freewheel.films.film import check_film

if TYPE_CHECKING:
    from freewheel.films.clips import Shot

# An env that draws with SDL would look for a display, and pygame would print a line before our JSON.
HEADLESS = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}


@dataclass(frozen=True)
class PlayArgs(RunArgs):
    """Film greedy episodes of a trained agent, from its newest complete checkpoint.

    A GIF has at most 50 frames per second. A long one keeps only every second, fourth, ... frame (64 million pixels in all) and
    shows each for longer, so that it lasts as long as the episodes. An MP4 keeps all frames. No window is opened.

    If observations are images, the film also shows what the network sees and the action it takes.
    """

    out: Annotated[Path | None, tyro.conf.arg(aliases=["--to"])] = None
    """File ending in .gif or .mp4; by default play.gif in the run's folder. An existing file is replaced."""

    seen: bool = True
    """Also show what the network sees, if observations are images."""

    episodes: int = 1
    """Number of episodes, one after the other."""

    max_steps: int = 1000
    """Cut each episode after this many steps."""

    fps: float | None = None
    """Steps shown per second; by default the env's render_fps, or 30."""

    size: int | None = None
    """Longest side in pixels; by default the env's size, but at most 400 in a GIF."""


def main(arguments: Sequence[str]) -> int:
    args = tyro.cli(PlayArgs, prog="freewheel play", args=list(arguments))
    check_episodes(args.episodes)
    if args.max_steps < 1:
        raise ConfigError(f"--max-steps {args.max_steps} must be at least 1.")
    check_film(args.out or Path("play.gif"), 1.0 if args.fps is None else args.fps, args.size)
    for name, value in HEADLESS.items():  # before the forkserver starts, whose environment a film's process has
        os.environ.setdefault(name, value)
    agent = load_agent(args)
    return until_signal(partial(_play, agent, args))


def _play(agent: Agent, args: PlayArgs) -> None:
    out = args.out or (agent.run or Path.cwd()) / "play.gif"
    began_s = time.monotonic()
    shot = _shoot(agent, args, out)
    result = agent.figures() | {
        "file": str(out.absolute()),
        "bytes": out.stat().st_size,
        "frames": shot.num_frames,
        "fps": shot.fps,
        "episodes": len(shot.takes),
        "returns": [take.ret for take in shot.takes],
        "lengths": [take.length for take in shot.takes],
        "seconds": round(time.monotonic() - began_s, 3),
    }
    if sys.stderr.isatty() or not args.json:
        print(_table(result, shot), file=sys.stderr if args.json else sys.stdout)
    if args.json:
        print(json.dumps(result))


def _shoot(agent: Agent, args: PlayArgs, out: Path) -> Shot:
    from freewheel.algos.make import seed_of
    from freewheel.films.clips import Script, film_apart
    from freewheel.report.progress import Progress
    from freewheel.worlds.seeds import episode_seed, lane_key

    # The same episodes as in lane 0 of an evaluation with this seed.
    key = lane_key(seed_of(agent.config, "eval") if args.seed is None else args.seed, 0)
    seeds = [episode_seed(key, number) for number in range(args.episodes)]
    stack = agent.config.world.stack if args.seen else 0
    with Progress(args.episodes * args.max_steps, f"play {agent.env}", args.quiet) as progress:
        script = Script(out, seeds, args.max_steps, stack, args.fps, args.size)
        shot = film_apart(agent.policy.trained, agent.config, agent.env, script, progress)
        progress.close(sum(take.length for take in shot.takes))
    return shot


def _table(result: dict[str, Any], shot: Shot) -> str:
    lines = [f"agent       {result['algo']} at step {result['step']:,} in {result['env']}, greedy"]
    for number, take in enumerate(shot.takes, 1):
        cut = ", cut by --max-steps" if take.is_cut else ""
        lines.append(f"episode {number:<3} return {take.ret:,.1f}, length {take.length:,}{cut}")
    of = f" of {shot.num_shown:,}" if shot.num_shown > shot.num_frames else ""
    seconds = shot.num_shown / shot.fps
    lines.append(f"film        {shot.num_frames:,}{of} frames, {seconds:,.1f} s, {result['bytes'] / 1e6:,.2f} MB")
    lines.append(f"file        {result['file']}")
    return "\n".join(lines)
