"""Compares absolute paths as texts. It is a separate module, because every run needs it, and it loads quickly."""

from __future__ import annotations


def is_within(path: str, directory: str) -> bool:
    """Whether `path` is `directory` or is inside it."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")
