"""Finds files and lines with ripgrep."""
