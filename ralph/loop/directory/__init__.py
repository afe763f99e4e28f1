"""The directory that a loop's iterations change: one loop at a time works on it, and its changes are seen, under git
(`ralph/git`) or without.
"""
