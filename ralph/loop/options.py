"""The options of `ralph loop`, as values."""

from __future__ import annotations

from msgspec import Struct, field

from ralph.loop.values import LoopLimits, LoopPlan


class RequestedPrompt(Struct, frozen=True):
    """The source of the prompt that the command line names. If both fields are None, the prompt comes from standard
    input.
    """

    argument: str | None = None
    file: str | None = None
    """An absolute path, or `-` for standard input."""


class LoopOptions(Struct, frozen=True):
    plan: LoopPlan
    """The plan of the loop. If `continues` is True, it contains only the two directories; the record contains the
    rest."""
    continues: bool = False
    """True if the loop that was recorded for the plan's directory is resumed."""
    limits_given: LoopLimits = field(default_factory=LoopLimits)
    """If `continues` is True, limits that replace those in the record."""
    base_url_given: str | None = None
    """If `continues` is True, the base URL that replaces the one in the record, or None to keep that."""
    requested_prompt: RequestedPrompt | None = None
    """The source of the prompt, or None if the plan contains the prompt."""
