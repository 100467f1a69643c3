"""What runs in child processes of a benchmark, inside `.venv-peers` or our own environment.
Takes JSON lines from the bench process and gives figures back; nothing here may import freewheel.
"""
