"""Metrics and traces, for programs that watch many runs."""
