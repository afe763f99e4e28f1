"""From the options of `ralph loop` to the state and the world of a loop. All requirements are checked here, before any
money is spent. An object that cannot be made ends the command with a one-line error.
"""
