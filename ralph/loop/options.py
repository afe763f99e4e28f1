"""The options of `ralph loop`, as values."""

from __future__ import annotations

from msgspec import Struct, field

from ralph.loop.values import LoopLimits, LoopPlan


class RequestedPrompt(Struct, frozen=True):
    """Where the prompt comes from, according to the command line. If both fields are None, the prompt comes from
    standard input.
    """

    argument: str | None = None
    file: str | None = None
    """The absolute path of a file, or `-` for standard input."""


class LoopOptions(Struct, frozen=True):
    plan: LoopPlan
    """The plan of the loop. If `continues` is True, it contains only the two directories. All other values are in the
    record."""
    continues: bool = False
    """True if ralph resumes the loop that was recorded for the plan's directory."""
    has_moved: bool = False
    """True if the recorded loop belongs to a directory that has moved to the plan's directory. `continues` is then
    True."""
    limits_given: LoopLimits = field(default_factory=LoopLimits)
    """Limits from the command line. If `continues` is True, they replace the recorded limits."""
    base_url_given: str | None = None
    """The base URL from the command line. If `continues` is True, it replaces the recorded one. If it is None, the
    recorded one is used."""
    requested_prompt: RequestedPrompt | None = None
    """Where the prompt comes from, or None if the plan contains the prompt."""
