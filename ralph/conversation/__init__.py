"""The values of a session: messages, requests, journal records, and the state that the records lead to. No I/O."""
