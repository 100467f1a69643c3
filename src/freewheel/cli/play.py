"""`freewheel play RUN`: films greedy episodes of a trained agent as GIF or MP4."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from freewheel.cli.eval import Agent, RunArgs, check_episodes, check_spaces, load_agent
from freewheel.errors import ConfigError, EnvError, FreewheelError
from freewheel.films.film import Film, check_film

if TYPE_CHECKING:
    from freewheel.films.frame import InputView

FPS = 30.0


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


@dataclass
class Take:
    """One filmed episode."""

    ret: float = 0.0
    length: int = 0
    is_cut: bool = False


def main(arguments: Sequence[str]) -> None:
    args = tyro.cli(PlayArgs, prog="freewheel play", args=list(arguments))
    check_episodes(args.episodes)
    if args.max_steps < 1:
        raise ConfigError(f"--max-steps {args.max_steps} must be at least 1.")
    check_film(args.out or Path("play.gif"), FPS if args.fps is None else args.fps, args.size)
    agent = load_agent(args)
    out = args.out or (agent.run or Path.cwd()) / "play.gif"
    began_s = time.monotonic()
    film, fps, takes = _shoot(agent, args, out)
    result = agent.figures() | {
        "file": str(out.absolute()),
        "bytes": out.stat().st_size,
        "frames": film.num_frames,
        "fps": fps,
        "episodes": len(takes),
        "returns": [take.ret for take in takes],
        "lengths": [take.length for take in takes],
        "seconds": round(time.monotonic() - began_s, 3),
    }
    if sys.stderr.isatty() or not args.json:
        print(_table(result, film, takes), file=sys.stderr if args.json else sys.stdout)
    if args.json:
        print(json.dumps(result))


def _shoot(agent: Agent, args: PlayArgs, out: Path) -> tuple[Film, float, list[Take]]:
    from freewheel.algos.make import seed_of
    from freewheel.films.frame import view_of
    from freewheel.report.progress import Progress
    from freewheel.worlds.check import close_all
    from freewheel.worlds.seeds import episode_seed, lane_key

    # The same episodes as in lane 0 of an evaluation with this seed.
    key = lane_key(seed_of(agent.config, "eval") if args.seed is None else args.seed, 0)
    env = _make(agent)
    try:
        check_spaces(agent, env.observation_space, env.action_space)
        fps = args.fps or _fps_of(env)
        view = view_of(env, agent.config.world.stack if args.seen else 0)
        takes = [Take() for _ in range(args.episodes)]
        with (
            Film(out, fps, args.size, agent.env) as film,
            Progress(args.episodes * args.max_steps, f"play {agent.env}", args.quiet) as progress,
        ):
            for number, take in enumerate(takes):

                def show(action: Any, take: Take = take) -> None:
                    with _named_errors(agent.env, "render", env.spec):
                        frame = env.render()
                    film.check(frame)
                    film.add(view.beside(frame, action))
                    progress.update(sum(each.length for each in takes), take.ret)

                _play(agent, env, episode_seed(key, number), args.max_steps, take, view, show)
            progress.close(sum(take.length for take in takes))
        return film, fps, takes
    finally:
        close_all(agent.env, [env])


def _play(
    agent: Agent, env: Any, seed: int, max_steps: int, take: Take, view: InputView, show: Callable[[Any], None]
) -> None:
    policy = agent.policy
    policy.reset()
    with _named_errors(agent.env, "reset", env.spec):
        obs, _ = env.reset(seed=seed)
    view.begin(obs)
    is_over = False
    while not is_over:
        if take.length == max_steps:
            take.is_cut = True
            break
        action = policy.act(obs)
        show(action)
        with _named_errors(agent.env, "step", env.spec):
            obs, reward, terminated, truncated, _ = env.step(action)
            take.ret += float(reward)
        take.length += 1
        is_over = bool(terminated or truncated)
        view.see(obs)
    show(None)


def _make(agent: Agent) -> Any:
    from freewheel.worlds.make import make_env

    # An env that draws with SDL would look for a display, and pygame would print a line before our JSON.
    for name, value in (
        ("SDL_VIDEODRIVER", "dummy"),
        ("SDL_AUDIODRIVER", "dummy"),
        ("PYGAME_HIDE_SUPPORT_PROMPT", "1"),
    ):
        os.environ.setdefault(name, value)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="(?s).*render_mode")  # our own error says the same
            env = make_env(agent.env, agent.config.world, "rgb_array")
    except EnvError as error:
        if isinstance(error.__cause__, TypeError) and "argument 'render_mode'" in str(error.__cause__):
            raise _no_images(agent.env) from error
        raise
    modes = env.metadata.get("render_modes", ())
    if env.render_mode != "rgb_array" or (modes and "rgb_array" not in modes):
        env.close()
        raise _no_images(agent.env)
    return env


def _fps_of(env: Any) -> float:
    fps = env.metadata.get("render_fps")
    return float(fps) if isinstance(fps, (int, float)) and fps > 0 else FPS


def _no_images(name: str) -> ConfigError:
    return ConfigError(
        f"{name} cannot be filmed, as it does not support render_mode='rgb_array'. Let it accept render_mode, list rgb_array in "
        "metadata['render_modes'], and return a uint8 array [height, width, 3] from render()."
    )


@contextmanager
def _named_errors(name: str, method: str, spec: Any) -> Iterator[None]:
    """Names the env in what it raises; says so if it cannot draw or a package is missing."""
    from gymnasium.error import DependencyNotInstalled

    from freewheel.worlds.find import missing_package

    try:
        yield
    except FreewheelError:
        raise
    except (ImportError, DependencyNotInstalled) as error:
        raise ConfigError(missing_package(name, error, spec)) from error
    except Exception as error:
        if method == "render" and isinstance(error, NotImplementedError):
            raise _no_images(name) from error
        raise EnvError(f"{name} raised {type(error).__name__} in {method}(): {error}. Fix it there.") from error


def _table(result: dict[str, Any], film: Film, takes: Sequence[Take]) -> str:
    lines = [f"agent       {result['algo']} at step {result['step']:,} in {result['env']}, greedy"]
    for number, take in enumerate(takes, 1):
        cut = ", cut by --max-steps" if take.is_cut else ""
        lines.append(f"episode {number:<3} return {take.ret:,.1f}, length {take.length:,}{cut}")
    of = f" of {film.num_shown:,}" if film.num_shown > film.num_frames else ""
    seconds = film.num_shown / result["fps"]
    lines.append(f"film        {film.num_frames:,}{of} frames, {seconds:,.1f} s, {result['bytes'] / 1e6:,.2f} MB")
    lines.append(f"file        {result['file']}")
    return "\n".join(lines)
