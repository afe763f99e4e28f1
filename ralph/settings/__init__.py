"""Settings: their tables, the files and variables they come from, and the merged values."""
