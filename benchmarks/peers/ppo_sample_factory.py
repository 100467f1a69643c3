"""Sample Factory's APPO: in one process, or with workers that step envs while its learner trains."""

import importlib
import importlib.metadata
import multiprocessing
import os
import tempfile
from typing import Any

import gymnasium

from freewheel.bench.worker.meter import Meter

from . import ppo_settings as same


def version() -> str:
    return importlib.metadata.version("sample-factory")


class Over(Exception):
    """The window is over: its event loop ends by no other way that leaves the training unfinished."""


def make_env(name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None) -> Any:
    return gymnasium.make(name, render_mode=render_mode)


def arguments(order: dict[str, Any], folder: str) -> list[str]:
    workers = order["workers"]
    is_serial = workers == 0
    each = order["envs"] // max(workers, 1)
    return [
        "--algo=APPO",
        f"--env={same.ENV}",
        "--experiment=bench",
        f"--train_dir={folder}",
        "--device=cpu",
        f"--serial_mode={is_serial}",
        f"--async_rl={not is_serial}",
        f"--num_workers={max(workers, 1)}",
        f"--num_envs_per_worker={each}",
        f"--worker_num_splits={1 if is_serial or each % 2 else 2}",
        f"--rollout={same.ROLLOUT}",
        f"--batch_size={same.rows_per_update(order['envs'])}",
        f"--num_batches_per_epoch={same.MINIBATCHES}",
        f"--num_epochs={same.EPOCHS}",
        "--use_rnn=False",
        "--recurrence=1",
        "--encoder_mlp_layers",
        *map(str, same.HIDDEN),
        "--nonlinearity=tanh",
        f"--learning_rate={same.LR}",
        f"--gamma={same.GAMMA}",
        f"--gae_lambda={same.GAE_LAMBDA}",
        f"--max_grad_norm={same.CLIP_NORM}",
        "--with_vtrace=False",
        f"--train_for_env_steps={same.ENDLESS}",
        "--save_every_sec=100000",
    ]


def train(meter: Meter, order: dict[str, Any]) -> None:
    runners: Any = importlib.import_module("sample_factory.algo.runners.runner")
    config: Any = importlib.import_module("sample_factory.cfg.arguments")
    envs: Any = importlib.import_module("sample_factory.envs.env_utils")
    trains: Any = importlib.import_module("sample_factory.train")
    steps_per_rollout = same.ROLLOUT * order["envs"]

    class Watch(runners.AlgoObserver):  # type: ignore[misc]
        def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:
            """It counts the rows that were learned from, each for all epochs; other counts reach this process late."""
            steps = sum(runner.env_steps.values())
            if meter.is_over(steps, steps * same.UPDATES_PER_ROLLOUT // steps_per_rollout):
                raise Over

    envs.register_env(same.ENV, make_env)
    with tempfile.TemporaryDirectory(prefix="freewheel-bench-", ignore_cleanup_errors=True) as folder:
        given = arguments(order, os.path.join(folder, "runs"))
        parser, _ = config.parse_sf_args(argv=given)
        _, runner = trains.make_runner(config.parse_full_cfg(parser, given))
        runner.register_observer(Watch())
        try:
            runner.init()
            runner.run()
        except Over:
            pass
        finally:
            for process in multiprocessing.active_children():
                process.kill()
