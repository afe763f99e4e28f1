"""The retry loop, its waits, and whom it asks next. Knows ports only."""
