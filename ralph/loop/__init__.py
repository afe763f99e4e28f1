"""The `ralph loop` command: iterations, rules, state and check. `git/` has the checkout, `process/` runs an iteration
as a process.
"""
