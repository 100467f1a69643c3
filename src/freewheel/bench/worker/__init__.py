"""What runs in the child processes of a benchmark, and what all sides share: the clock, the rows, the envs.
Takes JSON lines from the bench process and gives figures back. Imports nothing else of freewheel: peers' interpreters run it too.
"""
