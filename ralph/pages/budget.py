"""The room of one page, shared out among what it shows, so that a page stays below 10 MB. No I/O happens here."""

from __future__ import annotations

from msgspec import Struct

from ralph.pages.excerpts import Excerpts  # noqa: TC001 - a field

# All texts of one kind on a page, and one of them.
_TASKS_CHARS, _ALL_WORDS_CHARS, _CHECKS_CHARS, _REASONS_CHARS = 200_000, 300_000, 500_000, 200_000
_TASK_CHARS = 20_000
_WORDS_CHARS = 4_000
_CHECK_CHARS = 4_500
_REASON_CHARS = 1_000
_LEAST_CHARS = 160


class PageBudget(Struct, frozen=True):
    """The room of one page, shared out among its sections and their parts. Cuts texts to their share."""

    excerpts: Excerpts
    sections: int = 1
    """The number of sections. `parts` is the number of the iterations and runs of all sections."""
    parts: int = 1

    def task(self, text: str) -> str:
        return self.excerpts.of(text, _share(_TASKS_CHARS, self.sections, _TASK_CHARS)).text

    def words(self, text: str) -> str:
        """The last words of a part, or of a section."""
        return self.excerpts.of(text, _share(_ALL_WORDS_CHARS, self.parts, _WORDS_CHARS)).text

    def check(self, text: str) -> str:
        """The output of the check after a part."""
        return self.excerpts.of(text, _share(_CHECKS_CHARS, self.parts, _CHECK_CHARS)).text

    def reason(self, text: str) -> str:
        return self.excerpts.of(text, _share(_REASONS_CHARS, self.parts, _REASON_CHARS)).text


def _share(whole: int, number: int, most: int) -> int:
    return min(max(whole // max(number, 1), _LEAST_CHARS), most)
