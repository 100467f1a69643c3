"""SAC on continuous control from end to end, beside what the arithmetic of its updates alone allows.

Takes trainings from benchmarks.peers and freewheel.train; gives the cases of `python -m benchmarks control`.
"""
