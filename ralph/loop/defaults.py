"""The defaults of `ralph loop`. They stand apart because its help names them: that must not load a loop at
every start.
"""

DEFAULT_PLAN_FILE = "IMPLEMENTATION_PLAN.md"
DEFAULT_CHECK_TIMEOUT_S = 1800.0
