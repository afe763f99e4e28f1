"""The conversation and the session as values: messages, requests, journal records, and the state that follows from
the records. No I/O happens here.
"""
