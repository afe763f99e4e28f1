"""The options of `ralph loop`, as values."""

from __future__ import annotations

from msgspec import Struct, field

from ralph.loop.values import LoopLimits, LoopPlan


class RequestedPrompt(Struct, frozen=True):
    """Where the command line says that the prompt is. If both fields are None, the prompt comes from standard input."""

    argument: str | None = None
    file: str | None = None
    """An absolute path, or `-` for standard input."""


class LoopOptions(Struct, frozen=True):
    plan: LoopPlan
    """The plan of the loop. With `continues`, it contains only the two directories, and the record contains the rest.
    """
    continues: bool = False
    """Whether to resume the loop that was recorded for the plan's directory."""
    limits_given: LoopLimits = field(default_factory=LoopLimits)
    """With `continues`, limits that replace those in the record."""
    base_url_given: str | None = None
    """With `continues`, the server that the iterations ask from now on. None means the one of the record."""
    requested_prompt: RequestedPrompt | None = None
    """Where to find the prompt, or None if the plan contains it."""
