"""What `ralph loop` takes where nothing is said. Apart, as its help names it: that must not load a loop at every start."""

DEFAULT_PLAN_FILE = "IMPLEMENTATION_PLAN.md"
DEFAULT_CHECK_TIMEOUT_S = 1800.0
