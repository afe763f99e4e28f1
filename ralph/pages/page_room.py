"""The room of one page, shared out among what it shows, so that a page stays below 10 MB. No I/O happens here."""

from __future__ import annotations

from msgspec import Struct

from ralph.pages.excerpts import Excerpts  # noqa: TC001 - a field

_MOST_STRETCHES = 3_000
_LEAST_STRETCHES = 40
_MOST_MARKS = 1_500
_LEAST_MARKS = 20
_MOST_POINTS = 1_000
_LEAST_POINTS = 50
# All texts of one kind on a page, and one of them.
_TASKS_CHARS, _ALL_WORDS_CHARS, _CHECKS_CHARS, _REASONS_CHARS = 200_000, 300_000, 500_000, 200_000
_TASK_CHARS = 20_000
_WORDS_CHARS = 4_000
_CHECK_CHARS = 4_500
_REASON_CHARS = 1_000
_LEAST_CHARS = 160


class PageRoom(Struct, frozen=True):
    """The room of one page, shared out among its works, their parts and the steps of their journals. Also cuts texts to
    their share.
    """

    excerpts: Excerpts
    works: int = 1
    """The number of works. `parts` is the number of the iterations and runs of all works."""
    parts: int = 1
    steps: int = 1
    """The number of steps of all journals."""

    def stretches_of(self, steps: int) -> int:
        """The number of stretches for a part with this number of steps."""
        return max(_MOST_STRETCHES * steps // max(self.steps, 1), _LEAST_STRETCHES)

    def marks_of(self, steps: int) -> int:
        return max(_MOST_MARKS * steps // max(self.steps, 1), _LEAST_MARKS)

    @property
    def points(self) -> int:
        """The number of points of each curve of a work."""
        return max(_MOST_POINTS // max(self.works, 1), _LEAST_POINTS)

    def task(self, text: str) -> str:
        return self.excerpts.of(text, _share(_TASKS_CHARS, self.works, _TASK_CHARS)).text

    def words(self, text: str) -> str:
        """The last words of a part, or of a work."""
        return self.excerpts.of(text, _share(_ALL_WORDS_CHARS, self.parts, _WORDS_CHARS)).text

    def check(self, text: str) -> str:
        """The output of the check after a part."""
        return self.excerpts.of(text, _share(_CHECKS_CHARS, self.parts, _CHECK_CHARS)).text

    def reason(self, text: str) -> str:
        return self.excerpts.of(text, _share(_REASONS_CHARS, self.parts, _REASON_CHARS)).text


def _share(whole: int, number: int, most: int) -> int:
    return min(max(whole // max(number, 1), _LEAST_CHARS), most)
