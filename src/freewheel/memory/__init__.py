"""Shared memory as Python sees it: segments, the lanes in them, and the replay that samples lanes.

Takes rows from actors, gives batches to learners.
"""
