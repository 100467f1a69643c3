"""Short films of the agent for TensorBoard, while it trains."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import gymnasium

from freewheel.config import Config
from freewheel.errors import ConfigError, FreewheelError
from freewheel.films.film import Film, check_film
from freewheel.films.frame import Panel, names_of, shows_pictures
from freewheel.report.tensorboard import write_clip
from freewheel.run.callback import Callback, Moment
from freewheel.store.folder import open_run
from freewheel.store.load import Policy, load_policy
from freewheel.worlds.check import close_all
from freewheel.worlds.make import env_name, make_env

FPS = 15.0
SIDE = 320
SEED = 0  # the same episode each time: what differs is the agent


def clips_for(config: Config, env: Any) -> list[Callback]:
    """Films of a run, where they are asked for and can be made."""
    is_object = hasattr(env, "step") and not isinstance(env, type)
    if not (config.log.clip_every_steps and config.log.tensorboard) or is_object:
        return []
    return [Clips(config.log.clip_every_steps, env=env)]


class Clips(Callback):
    """Films the beginning of a greedy episode at the first checkpoint after every `every_steps` steps.

    It is played in the process that calls, up to `max_steps` steps: a second or so for a game. An env that cannot be filmed is
    told once, and the training goes on without clips.
    """

    def __init__(self, every_steps: int, max_steps: int = 200, env: Any = None) -> None:
        if every_steps < 1 or max_steps < 1:
            raise ConfigError(f"Clips(every_steps={every_steps}, max_steps={max_steps}): both must be at least 1.")
        if isinstance(env, (gymnasium.Env, gymnasium.vector.VectorEnv)):
            raise ConfigError(
                f"{env_name(env)} is an env object, in which the training goes on: Clips needs one of its own to play in."
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
        except Exception as error:  # of any kind: the env is played apart from the training, which it must not end
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
            is_seen = shows_pictures(made.observation_space)
            panel = Panel(policy.config.world.stack, names_of(made)) if is_seen else None
            with Film(path, float(made.metadata.get("render_fps") or FPS), SIDE, name) as film:
                _shoot(policy, made, panel, film, max_steps)
            with Image.open(path) as image:
                return path.read_bytes(), image.size
    finally:
        close_all(name, [made])


def _shoot(policy: Policy, env: Any, panel: Panel | None, film: Film, max_steps: int) -> None:
    policy.reset()
    obs, _ = env.reset(seed=SEED)
    if panel is not None:
        panel.begin(obs)
    for _ in range(max_steps):
        action = policy.act(obs)
        frame = env.render()
        film.check(frame)
        film.add(frame if panel is None else panel.beside(frame, action))
        obs, _, terminated, truncated, _ = env.step(action)
        if panel is not None:
            panel.see(obs)
        if terminated or truncated:
            return
