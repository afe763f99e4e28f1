"""The conversation and the session as values: messages, requests, records, and what records lead to. Pure."""
