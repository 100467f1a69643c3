"""Learning from images: a training on Atari beside other projects, and the update of a large image network.
Takes trainings from `peers` and its own `training`; gives speeds, and bounds that a training must keep.
"""
