"""Other agents inside a loop (`ralph loop --agent`): a table of the agents, what their events say, and their processes."""
