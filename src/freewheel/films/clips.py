"""Short films of the agent for TensorBoard, during training."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import gymnasium

from freewheel.config import Config
from freewheel.errors import ConfigError, FreewheelError
from freewheel.films.film import Film, check_film
from freewheel.films.frame import view_of
from freewheel.report.tensorboard import write_clip
from freewheel.run.callback import Callback, Moment
from freewheel.store.folder import open_run
from freewheel.store.load import Policy, load_policy
from freewheel.worlds.check import close_all
from freewheel.worlds.make import env_name, make_env

FPS = 15.0
SIDE = 320
SEED = 0  # the same episode each time: only the agent differs


def clips_for(config: Config, env: Any) -> list[Callback]:
    """The callback that films a run, where the settings ask for it and the env can be made again."""
    is_object = hasattr(env, "step") and not isinstance(env, type)
    if not (config.log.clip_every_steps and config.log.tensorboard) or is_object:
        return []
    return [Clips(config.log.clip_every_steps, env=env)]


class Clips(Callback):
    """Films the beginning of a greedy episode at the first checkpoint after every `every_steps` steps.

    The episode is played in the calling process, up to `max_steps` steps: about a second for a game. An env that cannot be filmed is
    reported once, and the training goes on without clips.
    """

    def __init__(self, every_steps: int, max_steps: int = 200, env: Any = None) -> None:
        if every_steps < 1 or max_steps < 1:
            raise ConfigError(f"Clips(every_steps={every_steps}, max_steps={max_steps}): both must be at least 1.")
        if isinstance(env, (gymnasium.Env, gymnasium.vector.VectorEnv)):
            raise ConfigError(
                f"{env_name(env)} is an env object that the training uses, and Clips needs its own. Give an id or a function that makes one."
            )
        check_film(Path("clip.gif"))
        self._every, self._max_steps, self._env = every_steps, max_steps, env
        self._due: int | None = 0

    def on_checkpoint(self, moment: Moment, path: Path) -> None:
        if self._due is None or moment.step < self._due or moment.folder is None:
            return
        self._due = moment.step + self._every
        try:
            gif, sides = film_policy(load_policy(path), self._env, self._max_steps)
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

    given = policy.config.env if env is None else env
    name = env_name(given)
    made = make_env(given, policy.config.world, "rgb_array")
    try:
        with tempfile.TemporaryDirectory(prefix="freewheel-clip-") as folder:
            path = Path(folder, "clip.gif")
            with Film(path, float(made.metadata.get("render_fps") or FPS), SIDE, name) as film:
                _shoot(policy, made, film, max_steps)
            with Image.open(path) as image:
                return path.read_bytes(), image.size
    finally:
        close_all(name, [made])


def _shoot(policy: Policy, env: Any, film: Film, max_steps: int) -> None:
    view = view_of(env, policy.config.world.stack)
    policy.reset()
    obs, _ = env.reset(seed=SEED)
    view.begin(obs)
    for _ in range(max_steps):
        action = policy.act(obs)
        frame = env.render()
        film.check(frame)
        film.add(view.beside(frame, action))
        obs, _, terminated, truncated, _ = env.step(action)
        view.see(obs)
        if terminated or truncated:
            return
