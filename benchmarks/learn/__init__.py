"""Trains a table of envs and algorithms and compares each return with its published figure.
Takes `freewheel train` as a command; gives a verdict per row.
"""
