"""Telemetry for machines that watch many runs: metrics and traces."""
