"""Runs the processes of a loop: one `ralph run` for each iteration, and `ralph report` for the page."""
