"""The options of an outer loop, as values."""

from __future__ import annotations

from msgspec import Struct, field

from ralph.loop.values import LoopLimits, LoopPlan


class RequestedPrompt(Struct, frozen=True):
    """The prompt that the command line names; with neither field it is on standard input."""

    argument: str | None = None
    file: str | None = None
    """Absolute, or `-`."""


class LoopOptions(Struct, frozen=True):
    plan: LoopPlan
    """With `continues` only its two directories were asked for: the rest stands in the record."""
    continues: bool = False
    """Go on with the loop that the record in the plan's directory tells of."""
    limits_given: LoopLimits = field(default_factory=LoopLimits)
    """With `continues`: these take the place of the record's, where they are given."""
    requested_prompt: RequestedPrompt | None = None
    """Where to find the prompt; None: the plan has it."""
