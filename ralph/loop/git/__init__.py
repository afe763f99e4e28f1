"""The directory that a loop's iterations change: what changed in it, and commits, pushes and the lock of a loop."""
