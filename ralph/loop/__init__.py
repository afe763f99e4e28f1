"""`ralph loop`: iterations, rules, state, the check; `git/` the checkout, `process/` an iteration as a
process.
"""
