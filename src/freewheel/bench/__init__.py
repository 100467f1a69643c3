"""Measures the parts of Freewheel against other projects' parts, in interleaved rounds of one run.
Takes memory and weights as any learner does, and peers from `.venv-peers`; gives a table and one JSON line.
"""
