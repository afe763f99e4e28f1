"""Works on one task, from the first request to its end. Knows the API, the tools, the journal and the clock only as
ports.
"""
