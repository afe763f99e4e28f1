"""The values and interfaces that all packages of ralph share: outcomes, events, errors, usage, limits, reports, what
is known of servers and models, and the interfaces (ports) for the clock and for waiting.
"""
