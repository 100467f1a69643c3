"""One network that is trained and acted with at once: three kinds of lock beside one owner that publishes.
Takes board, counters and ledger from freewheel; gives updates per second, waits, torn reads and stale gradients.
"""
