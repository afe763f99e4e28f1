"""Search: finds files and lines."""
