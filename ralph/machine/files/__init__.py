"""Reads and replaces files, and finds links, repositories and what is below a directory, as they are on the disk."""
