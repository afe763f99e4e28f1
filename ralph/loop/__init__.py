"""Implements `ralph loop`, which runs the agent again and again, in iterations. `git/` finds and commits changes of
the checkout. `process/` runs each iteration as a separate process.
"""
