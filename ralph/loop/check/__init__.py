"""The `--until` command: run, bounded, its output kept."""
