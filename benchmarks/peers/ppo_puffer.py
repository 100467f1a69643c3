"""PufferLib's PPO with its own emulation, vectorisation (serial) and default model."""

import importlib
import importlib.metadata
import sys
from functools import partial
from typing import Any

import gymnasium

from freewheel.bench.worker.meter import Meter

from . import ppo_settings as same


def version() -> str:
    return importlib.metadata.version("pufferlib")


def make_env(buf: Any = None, seed: int = 0, **_: Any) -> Any:
    pufferlib: Any = importlib.import_module("pufferlib")
    emulation: Any = importlib.import_module("pufferlib.emulation")
    env = pufferlib.EpisodeStats(gymnasium.make(same.ENV))
    return emulation.GymnasiumPufferEnv(env=env, buf=buf, seed=seed)


def train(meter: Meter, order: dict[str, Any]) -> None:
    """Its default model has one hidden layer where the others have two, which is in its favour."""
    vector: Any = importlib.import_module("pufferlib.vector")
    models: Any = importlib.import_module("pufferlib.models")
    pufferl: Any = importlib.import_module("pufferlib.pufferl")
    envs = vector.make(partial(make_env), num_envs=order["envs"], backend=vector.Serial)
    policy = models.Default(envs.driver_env, hidden_size=same.HIDDEN[0])
    sys.argv = sys.argv[:1]  # it reads the command line for settings of its own
    steps_per_rollout = same.ROLLOUT * order["envs"]
    settings = pufferl.load_config("default")["train"]
    settings.update(
        device="cpu",
        env="bench",
        batch_size=steps_per_rollout,
        bptt_horizon=same.ROLLOUT,
        minibatch_size=same.rows_per_update(order["envs"]),
        update_epochs=same.EPOCHS,
        optimizer="adam",
        learning_rate=same.LR,
        gamma=same.GAMMA,
        gae_lambda=same.GAE_LAMBDA,
        clip_coef=same.CLIP,
        vf_coef=same.VALUE_WEIGHT,
        ent_coef=same.ENTROPY_WEIGHT,
        max_grad_norm=same.CLIP_NORM,
        use_rnn=False,
        total_timesteps=same.ENDLESS,
        checkpoint_interval=same.ENDLESS,
        data_dir="experiments",  # in the current directory, which goes with this process,
    )
    trainer = pufferl.PuffeRL(settings, envs, policy)
    steps = 0
    while not meter.is_over(steps, steps // steps_per_rollout * same.UPDATES_PER_ROLLOUT):
        trainer.evaluate()
        trainer.train()
        steps = trainer.global_step
    envs.close()
