"""Comparisons with other projects: `python -m benchmarks NAME`, run in the repository.
Takes our measurements from `freewheel.bench` and peers from `.venv-peers`; gives a table and one JSON line.
"""
