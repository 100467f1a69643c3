"""The trainings that every side of `benchmarks pixels` is measured on."""

# Atari: one update of 32 rows per 4 steps, as in the first DQN on Atari.
GAME = "ALE/Pong-v5"
BATCH = 32
STEPS_PER_UPDATE = 4
STACK, SIZE, ACTIONS = 4, 84, 6
BUFFER = 100_000
LEARNING_STARTS = 1_000
# The same from the first step to the last, so that every action asks the network as it does late in training.
EPSILON = 0.05
TARGET_EVERY_STEPS = 1_000
LR, GAMMA, CLIP_NORM = 1e-4, 0.99, 10.0
# More than any window can take: the meter stops the training.
ENDLESS = 10**9

CHANNELS, KERNELS, STRIDES, HIDDEN = (32, 64, 64), (8, 4, 3), (4, 2, 1), 512

# Mario: 8 frames of 128 x 128, batches of 2,048 rows in 4 parts.
MARIO_STACK, MARIO_SIZE, MARIO_ACTIONS = 8, 128, 12
MARIO_BATCH, MARIO_PARTS = 2_048, 4
MARIO_LR, MARIO_DECAY, MARIO_CLIP = 1e-4, 0.01, 10.0


def turns(envs: int) -> tuple[int, int]:
    """Vector steps between two trainings, and updates in each: together one update per `STEPS_PER_UPDATE` steps."""
    if STEPS_PER_UPDATE % envs == 0:
        return STEPS_PER_UPDATE // envs, 1
    if envs % STEPS_PER_UPDATE == 0:
        return 1, envs // STEPS_PER_UPDATE
    raise ValueError(f"{envs} envs cannot make one update per {STEPS_PER_UPDATE} steps")
