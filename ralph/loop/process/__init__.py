"""Runs one iteration as a process, waits for its end, and returns its result as a value."""
