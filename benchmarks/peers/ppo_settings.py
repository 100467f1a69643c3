"""The trainings of `benchmarks ppo` that every side is measured on: CartPole-v1, and slow envs as workload D has them."""

ENV = "CartPole-v1"
ROLLOUT = 128  # steps per env
EPOCHS, MINIBATCHES = 4, 4
UPDATES_PER_ROLLOUT = EPOCHS * MINIBATCHES
HIDDEN = (64, 64)
LR, GAMMA, GAE_LAMBDA, CLIP = 2.5e-4, 0.99, 0.95, 0.2
VALUE_WEIGHT, ENTROPY_WEIGHT, CLIP_NORM, ADAM_EPS = 0.5, 0.01, 0.5, 1e-5
# More than any window can take: the meter stops the training.
ENDLESS = 10**9
# The slow envs: whole episodes of 100 steps, and the learning rate of that work.
SLOW_ROLLOUT = 100
SLOW_LR = 2e-3


def steps_per_update(envs: int, rollout: int = ROLLOUT) -> float:
    return envs * rollout / UPDATES_PER_ROLLOUT


def rows_per_update(envs: int, rollout: int = ROLLOUT) -> int:
    return envs * rollout // MINIBATCHES
