"""The options of an outer loop, as values."""

from __future__ import annotations

from msgspec import Struct, field

from ralph.loop.values import LoopLimits, LoopPlan


class RequestedPrompt(Struct, frozen=True):
    """The prompt that the command line names. If both fields are None, the prompt is on standard input."""

    argument: str | None = None
    file: str | None = None
    """An absolute path, or `-`."""


class LoopOptions(Struct, frozen=True):
    plan: LoopPlan
    """The plan of the loop. With `continues`, only its two directories are set; the record has the rest."""
    continues: bool = False
    """Resume the loop whose record belongs to the plan's directory."""
    limits_given: LoopLimits = field(default_factory=LoopLimits)
    """With `continues`: limits that replace those of the record."""
    requested_prompt: RequestedPrompt | None = None
    """The source of the prompt; None: the plan has the prompt."""
