"""The values that make up a session: messages, requests, journal records, and the state that results from the
records. No I/O happens here.
"""
