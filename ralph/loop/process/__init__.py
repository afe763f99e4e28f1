"""Runs one iteration as a process, waits for its end, and turns the end into a value."""
