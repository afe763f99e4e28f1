"""Compares absolute paths as texts. Pure. Each run needs this; the tables of protected places are for its tool calls."""

from __future__ import annotations


def is_within(path: str, directory: str) -> bool:
    """Whether `path` is `directory` or is inside it."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")
