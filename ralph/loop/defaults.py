"""Defaults of `ralph loop` that its help names. They have a file of their own because help must not load the loop."""

DEFAULT_PLAN_FILE = "IMPLEMENTATION_PLAN.md"
DEFAULT_CHECK_TIMEOUT_S = 1800.0
