"""Works on one task: turns, tool calls, guards, limits, the final report, and the compaction of the context.

The package uses the API, tools, journal and clock only through interfaces (ports).
"""
