"""Freewheel trains reinforcement-learning agents with every core busy and nobody waiting for anybody."""
