"""What the command line said about an outer loop, as values."""

from __future__ import annotations

from dataclasses import dataclass, field

from ralph.core.loop_values import LoopLimits, LoopPlan


@dataclass(frozen=True)
class LoopOptions:
    plan: LoopPlan
    """With `goes_on` only its two directories were asked for: the rest stands in the record."""
    config_file: str | None = None
    """`--config` among the plan's `run_arguments`. Absolute."""
    goes_on: bool = False
    """Go on with the loop that the record in the plan's directory tells of."""
    limits_given: LoopLimits = field(default_factory=LoopLimits)
    """With `goes_on`: these take the place of the record's, where they are given."""
    is_quiet: bool = False
    """`--quiet` stands among the plan's `run_arguments`."""
