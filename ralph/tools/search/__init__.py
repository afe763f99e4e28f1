"""Finding files and lines."""
