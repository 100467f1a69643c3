"""Starts, watches, restarts and ends the parts.

Takes the roles of a run, gives them their processes, memory and threads.
"""
