"""Counts answers in a row whose tool calls were all malformed, so that none could run. Pure.

A malformed call is cut off, is no JSON, names a tool that does not exist, or has wrong arguments. Each gets an
error result. An answer with only such calls is no turn. A call that a guard, a permission or the final turn refuses
is not malformed.
"""

from __future__ import annotations

from msgspec import Struct

MOST_MALFORMED_ANSWERS = 3
"""The most malformed answers in a row: the last one ends the run. PRODUCT.md sets the number."""

NAMES = ("malformed_call", "unknown_tool")


class MalformedAnswers(Struct, frozen=True):
    """The number of malformed answers since the last call that could run."""

    count: int = 0
    are_all_unknown: bool = True
    """Whether no call in them named an existing tool."""

    def plus(self, *, are_unknown: bool) -> MalformedAnswers:
        """The count with one more answer. `are_unknown`: none of its calls named an existing tool."""
        return MalformedAnswers(self.count + 1, self.are_all_unknown and are_unknown)

    @property
    def are_too_many(self) -> bool:
        return self.count >= MOST_MALFORMED_ANSWERS

    @property
    def name(self) -> str:
        """One of `NAMES`."""
        return "unknown_tool" if self.are_all_unknown else "malformed_call"

    @property
    def error(self) -> str:
        what = "named a tool that does not exist" if self.are_all_unknown else "was malformed"
        return f"every tool call of {self.count} answers in a row {what}"
