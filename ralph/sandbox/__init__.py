"""Limits what file tools may read and write: protected paths, and places with credentials."""
