"""Default values that the help of `ralph loop` shows. This file imports nothing, so that the help appears quickly."""

DEFAULT_PLAN_FILE = "IMPLEMENTATION_PLAN.md"
DEFAULT_CHECK_TIMEOUT_S = 1800.0
