"""One task: turns, tool calls, guards, limits, the report, compaction. Knows ports only."""
