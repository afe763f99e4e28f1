"""The directory that a loop's iterations change: its changes, commits, pushes and lock."""
