"""Films episodes of an agent: for `play`, and as short clips for TensorBoard during training."""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import gymnasium

from freewheel.config import Config, WorldConfig
from freewheel.contracts import Array
from freewheel.errors import ConfigError, EnvError, FreewheelError
from freewheel.evaluate import check_spaces, play_apart
from freewheel.films.film import FFMPEG_S, Film, check_film
from freewheel.films.frame import view_of
from freewheel.report.progress import Progress
from freewheel.report.tensorboard import write_clip
from freewheel.run.callback import Callback, Moment
from freewheel.store import disk
from freewheel.store.folder import open_run
from freewheel.store.load import Policy, Trained, load_policy
from freewheel.worlds.check import close_all
from freewheel.worlds.find import named_errors
from freewheel.worlds.make import AnyEnv, Env, env_name, make_env

SIDE = 320  # of a clip
FPS = 30.0  # of an env that does not say
FINISH_S = 2 * FFMPEG_S  # to write the file when all frames are there
SEED = 0  # of a clip: the same episode each time: only the agent differs
DENSE = 40  # as many clips come at the given distance; later ones come ever more rarely


def clips_for(config: Config, env: Any) -> list[Callback]:
    """The callback that films a run, where the settings ask for it and the env can be made again."""
    is_object = hasattr(env, "step") and not isinstance(env, type)
    if not (config.log.clip_every_steps and config.log.tensorboard) or is_object:
        return []
    return [Clips(config.log.clip_every_steps, env=env, dense=DENSE if config.log.thin_after else 0)]


class Clips(Callback):
    """Films the beginning of a greedy episode at the first checkpoint after every `every_steps` steps.

    After `dense` clips the distance grows with the run: a clip is at least 1 / `dense` of the steps so far behind the one before, 0 keeps
    the distance. The calling process waits for it, up to `max_steps` steps: about a second for a game. An env that cannot be filmed is
    reported once, and the training goes on without clips.
    """

    def __init__(self, every_steps: int, max_steps: int = 200, env: Any = None, dense: int = DENSE) -> None:
        if every_steps < 1 or max_steps < 1 or dense < 0:
            raise ConfigError(
                f"Clips(every_steps={every_steps}, max_steps={max_steps}, dense={dense}): the first two must be at least 1, the third 0."
            )
        if isinstance(env, (gymnasium.Env, gymnasium.vector.VectorEnv)):
            raise ConfigError(
                f"{env_name(env)} is an env object that the training uses, and Clips needs its own. Give an id or a function that makes one."
            )
        check_film(Path("clip.gif"))
        self._every, self._max_steps, self._env, self._dense = every_steps, max_steps, env, dense
        self._due: int | None = 0

    def on_checkpoint(self, moment: Moment, path: Path) -> None:
        if self._due is None or moment.step < self._due or moment.folder is None:
            return
        self._due = moment.step + max(self._every, moment.step // self._dense if self._dense else 0)
        try:
            gif, sides = film_policy(load_policy(path, trust=moment.is_ours), self._env, self._max_steps)
            write_clip(open_run(moment.folder).tensorboard, "play", moment.step, gif, sides)
        except Exception as error:  # of any kind: a clip must not end the training
            self._due = None
            who = moment.folder.name if self._env is None else env_name(self._env)
            is_ours = isinstance(error, (FreewheelError, OSError))
            told = error if is_ours else f"{who} raised {type(error).__name__}: {error} while it was filmed."
            print(f"log: no more clips: {told}", file=sys.stderr)


def film_policy(policy: Policy, env: Any = None, max_steps: int = 200) -> tuple[bytes, tuple[int, int]]:
    """A GIF of the beginning of a greedy episode, and its width and height."""
    from PIL import Image

    with tempfile.TemporaryDirectory(prefix="freewheel-clip-") as folder:
        script = Script(Path(folder, "clip.gif"), [SEED], max_steps, policy.config.world.stack, size=SIDE)
        film_apart(policy.trained, policy.config, policy.config.env if env is None else env, script)
        with Image.open(script.out) as image:
            return script.out.read_bytes(), image.size


@dataclass
class Take:
    """One filmed episode."""

    ret: float = 0.0
    length: int = 0
    is_cut: bool = False


@dataclass(frozen=True)
class Script:
    """What to film: an episode for each of `seeds`. With `stack`, so many observations are shown beside a frame, if they are images."""

    out: Path
    seeds: Sequence[int]
    max_steps: int
    stack: int
    fps: float | None = None
    size: int | None = None


@dataclass(frozen=True)
class Shot:
    """A film that was made: its frames, those that were given to it, and its episodes."""

    num_frames: int
    num_shown: int
    fps: float
    takes: list[Take]


def film_apart(trained: Trained, config: Config, env: AnyEnv, script: Script, progress: Progress | None = None) -> Shot:
    """Films episodes; in the local runtime a process of its own plays them."""
    shots: list[Shot] = []

    def hear(message: Any = None, limit_s: float = 0.0) -> None:
        if message is not None and "shot" in message:
            frames, shown, fps, takes = message["shot"]
            shots.append(Shot(frames, shown, fps, [Take(*take) for take in takes]))
        elif message is not None and progress is not None:
            progress.update(message["done"], message["ret"])

    try:
        play_apart(config, env, (env, trained.body), script.seeds[0], hear, _film, trained, env, config.world, script)
    except EnvError as error:
        if not shots:
            raise
        if progress is not None:  # the film is there: an env that fails to close costs nothing
            progress.note(f"EnvError: {error}")
    finally:
        disk.sweep(script.out.parent.absolute())  # of a process that was killed
    return shots[0]


def _film(trained: Trained, env: AnyEnv, config: WorldConfig, script: Script, tell: Callable[..., None]) -> None:
    policy, name = Policy(trained), env_name(env)
    made = make_drawn(env, config)
    try:
        check_spaces(trained, name, made.observation_space, made.action_space)
        fps, takes = script.fps or fps_of(made), list[Take]()
        with Film(script.out, fps, script.size, name) as film:
            for seed in script.seeds:
                done = sum(take.length for take in takes)
                for take in shoot(policy, made, film, seed, script.max_steps, script.stack):
                    tell({"done": done + take.length, "ret": take.ret})
                takes.append(take)
            tell(limit_s=FINISH_S)
        tell({"shot": [film.num_frames, film.num_shown, fps, [astuple(take) for take in takes]]})
    finally:
        close_all(name, [made])


def make_drawn(given: AnyEnv, config: WorldConfig) -> Env:
    """An env whose render() gives images."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="(?s).*render_mode")  # our own error says the same
            env = make_env(given, config, "rgb_array")
    except EnvError as error:
        if isinstance(error.__cause__, TypeError) and "argument 'render_mode'" in str(error.__cause__):
            raise _no_images(env_name(given)) from error
        raise
    modes = env.metadata.get("render_modes", ())
    if env.render_mode != "rgb_array" or (modes and "rgb_array" not in modes):
        env.close()
        raise _no_images(env_name(given))
    return env


def fps_of(env: Env) -> float:
    fps = env.metadata.get("render_fps")
    return float(fps) if isinstance(fps, (int, float)) and fps > 0 else FPS


def shoot(policy: Policy, env: Env, film: Film, seed: int, max_steps: int, stack: int) -> Iterator[Take]:
    """Films a greedy episode; yields its take after every frame. `stack` observations are shown beside a frame, if they are images."""
    view, take = view_of(env, stack), Take()
    policy.reset()
    with _named(film, env, "reset"):
        obs, _ = env.reset(seed=seed)
    view.begin(obs)
    is_over = False
    while not is_over and take.length < max_steps:
        action = policy.act(obs)
        film.add(view.beside(_frame(film, env), action))
        yield take
        with _named(film, env, "step"):
            obs, reward, terminated, truncated, _ = env.step(action)
            take.ret += float(reward)
        take.length += 1
        is_over = bool(terminated or truncated)
        view.see(obs)
    take.is_cut = not is_over
    film.add(view.beside(_frame(film, env), None))
    yield take


def _frame(film: Film, env: Env) -> Array:
    with _named(film, env, "render"):
        try:
            return film.checked(env.render())
        except NotImplementedError as error:
            raise _no_images(film.env) from error


def _named(film: Film, env: Env, method: str) -> AbstractContextManager[None]:
    return named_errors(film.env, f"in {method}()", env.spec, "Fix it there.")


def _no_images(name: str) -> ConfigError:
    return ConfigError(
        f"{name} cannot be filmed, as it does not support render_mode='rgb_array'. Let it accept render_mode, list rgb_array in "
        "metadata['render_modes'], and return a uint8 array [height, width, 3] from render()."
    )
