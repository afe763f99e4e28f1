"""The `ralph loop` command runs the agent again and again, one iteration after the other. `git/` watches and commits
the checkout. `process/` runs each iteration as a process of its own.
"""
