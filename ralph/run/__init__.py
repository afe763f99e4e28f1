"""Runs one `ralph run` process, text or driven, from its options to its exit code."""
