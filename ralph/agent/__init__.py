"""Works on one task: asks the model for answers, runs the tool calls in the answers, and decides when the task ends.
The package uses the API, the tools, the journal and the clock only through interfaces (ports).
"""
