"""The training that every side is measured on: CartPole-v1, one update of 128 rows per 4 steps."""

ENV = "CartPole-v1"
BATCH = 128
STEPS_PER_UPDATE = 4
HIDDEN = (128, 128)
BUFFER = 100_000
LEARNING_STARTS = 1_000
# The same from the first step to the last, so that every action asks the network as it does late in training.
EPSILON = 0.05
TARGET_EVERY_STEPS = 500
LR, GAMMA, CLIP_NORM = 2.5e-4, 0.99, 10.0
# More than any window can take: the meter stops the training.
ENDLESS = 10**9
# PER is measured together with returns over so many steps, as it is used.
PER_STEPS = 3
# IQN's fractions per row: of the online and the target network, those that an action is chosen by, and their cosines.
TAUS, TARGET_TAUS, ACT_TAUS, COSINES = 8, 8, 32, 64
HUBER = 1.0


def turns(envs: int) -> tuple[int, int]:
    """Vector steps between two trainings, and updates in each: together one update per `STEPS_PER_UPDATE` steps."""
    if STEPS_PER_UPDATE % envs == 0:
        return STEPS_PER_UPDATE // envs, 1
    if envs % STEPS_PER_UPDATE == 0:
        return 1, envs // STEPS_PER_UPDATE
    raise ValueError(f"{envs} envs cannot make one update per {STEPS_PER_UPDATE} steps")
