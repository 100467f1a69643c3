"""PPO from end to end: ours beside other projects, APPO beside PPO, slow envs beside their limit.
Takes trainings from `peers` and its own `training`; gives one case per algorithm, env and number of lanes.
"""
