"""Counts and time: what every role did, and where its seconds went.

Takes marks from all roles, gives snapshots to whoever shows or logs them.
"""
