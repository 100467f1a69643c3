"""Other projects' parts and plain loops, each run in a process of its own, inside `.venv-peers` or our environment.
Takes orders by `freewheel.bench.worker`, the only part of freewheel that may be imported here, and gives figures back.
"""
