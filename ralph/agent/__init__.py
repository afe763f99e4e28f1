"""Works on one task. Knows the API, the tools, the journal and the clock only as ports."""
