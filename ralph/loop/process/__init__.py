"""One iteration as a process: start it, follow it to its end, turn its end into a value."""
