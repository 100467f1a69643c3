"""The DQN update in JAX: one jitted update, or 32 of them in one scan. Adam and clipping are written out as in ours."""

import importlib
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

from freewheel.bench.worker.update_data import (
    ADAM_EPS,
    BETA1,
    BETA2,
    CLIP_NORM,
    HUBER,
    LR,
    NUM_BATCHES,
    TARGET_EVERY,
    batches,
    first_weights,
)

# One thread, as everybody else has. XLA reads this when it starts.
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"
jax: Any = importlib.import_module("jax")
jnp: Any = importlib.import_module("jax.numpy")

# Updates in one call, by the name of the way.
UPDATES = {"jax_jit": 1, "jax_scan32": 32}

Params = list[Any]


def forward(params: Params, obs: Any) -> Any:
    *hidden, (last, last_bias) = zip(params[::2], params[1::2], strict=True)
    for weight, bias in hidden:
        obs = jax.nn.relu(obs @ weight + bias)
    return obs @ last + last_bias


def loss_of(params: Params, target: Params, batch: dict[str, Any]) -> Any:
    goal = batch["reward"] + batch["discount"] * forward(target, batch["next_obs"]).max(1)
    value = jnp.take_along_axis(forward(params, batch["obs"]), batch["action"][:, None], 1)[:, 0]
    error = jnp.abs(value - goal)
    return jnp.where(error < HUBER, 0.5 * error**2, HUBER * (error - 0.5 * HUBER)).mean()


def update(carried: Any, target: Params, batch: dict[str, Any]) -> tuple[Any, Any]:
    params, mean, square, count = carried
    loss, gradient = jax.value_and_grad(loss_of)(params, target, batch)
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in gradient))
    scale = jnp.minimum(1.0, CLIP_NORM / (norm + 1e-6))
    gradient = [g * scale for g in gradient]
    count = count + 1
    mean = [m + (1 - BETA1) * (g - m) for m, g in zip(mean, gradient, strict=True)]
    square = [s + (1 - BETA2) * (g**2 - s) for s, g in zip(square, gradient, strict=True)]
    mean_share, square_share = 1 - BETA1**count, 1 - BETA2**count
    params = [
        p - LR * (m / mean_share) / (jnp.sqrt(s / square_share) + ADAM_EPS)
        for p, m, s in zip(params, mean, square, strict=True)
    ]
    return (params, mean, square, count), loss


def make_call(way: str, rows: int) -> Callable[[], float]:
    """A call makes `UPDATES[way]` updates and gives the loss of the last: its value is there when the call returns."""
    num_updates = UPDATES[way]

    def several(carried: Any, target: Params, batch: dict[str, Any]) -> tuple[Any, Any]:
        if num_updates == 1:
            return update(carried, target, batch)
        carried, losses = jax.lax.scan(lambda c, b: update(c, target, b), carried, batch)
        return carried, losses[-1]

    run = jax.jit(several, donate_argnums=0)
    # The layers multiply from the right, so that no transposition is left to the compiler.
    params = [jnp.asarray(w.T) for w in first_weights()]
    carried: Any = (params, [p * 0 for p in params], [p * 0 for p in params], jnp.zeros(()))
    target = [jnp.array(p) for p in params]
    done = 0
    data = {name: jnp.asarray(values) for name, values in batches(rows).items()}
    singles = [{name: values[i] for name, values in data.items()} for i in range(NUM_BATCHES)]
    take: Iterator[dict[str, Any]] = itertools.cycle(singles if num_updates == 1 else [data])

    def call() -> float:
        nonlocal carried, target, done
        carried, loss = run(carried, target, next(take))
        done += num_updates
        if done % TARGET_EVERY == 0:
            target = [jnp.array(p) for p in carried[0]]
        return float(loss)

    return call
