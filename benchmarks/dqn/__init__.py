"""DQN from end to end on CartPole: ours beside SB3, SBX and plain loops.
Takes trainings from `peers` and `freewheel.bench.dqn_training`; gives one case per algorithm.
"""
