"""Works on the directory that a loop's iterations change: finds changes, commits, pushes, and locks the directory for
one loop.
"""
