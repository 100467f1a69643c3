"""Measures the parts of Freewheel on this machine, in interleaved rounds of one run.
Takes memory, weights, worlds and learners as a training does; gives a table and one JSON line. Other projects are in `benchmarks/`.
"""
