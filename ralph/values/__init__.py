"""The values and interfaces that all packages of ralph share: outcomes, events, errors, usage, limits, reports, and
the ports for clock and waiter.
"""
