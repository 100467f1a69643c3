"""Where experience comes from: envs of every kind as lanes behind recv and send.

Takes actions from actors, gives them observations, rewards and the ends of episodes.
"""
