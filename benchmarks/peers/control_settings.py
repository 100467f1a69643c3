"""The training that every side of `benchmarks control` is measured on: SAC with two layers of 256, one update of 256 rows per step."""

MUJOCO_ENV = "HalfCheetah-v5"
ENVS = ("Pendulum-v1", MUJOCO_ENV)
BATCH = 256
HIDDEN = (256, 256)
BUFFER = 100_000
LEARNING_STARTS = 3_000
LR, GAMMA, TAU = 3e-4, 0.99, 0.005
# More than any window can take: the meter stops the training.
ENDLESS = 10**9
