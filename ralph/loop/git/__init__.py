"""Works on the directory that a loop's iterations change: finds changes, commits and pushes them, and locks the
directory so that only one loop uses it.
"""
