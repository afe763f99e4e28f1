"""Values that every room speaks: outcomes, events, errors, usage, limits, reports, and the ports of clock and
waiter.
"""
