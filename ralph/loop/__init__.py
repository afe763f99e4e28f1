"""Implements `ralph loop`, which runs the agent again and again, in iterations. `opening.py` prepares a loop, `iterate.py`
runs it, `processes.py` and `agent_iterations.py` run each iteration as a process, `checkout.py` and `git/` see what it has changed.
"""

# The help of `ralph loop` shows these values, so this file imports nothing.
DEFAULT_PLAN_FILE = "IMPLEMENTATION_PLAN.md"
DEFAULT_CHECK_TIMEOUT_S = 1800.0
