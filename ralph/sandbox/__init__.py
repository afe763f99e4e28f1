"""Limits of what tools may touch: protected paths and the read deny list."""
