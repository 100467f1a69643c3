"""Versioned weights, from learners to actors.

Takes one flat vector from a learner, gives actors the newest whole version of it.
"""
