"""Cuts long texts to excerpts without credentials, and shares out the room of a page. No I/O happens here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.values.redaction import Redactor

_HEAD_SHARE = 0.6
"""The share of the beginning in an excerpt. The end is shown too, because it says whether a command succeeded."""
_LEAST_CHARS = 50
_ROOM_FOR_MARK = 100
_LONGEST_SHAPE_CHARS = 4096
"""Room for a credential of a known form. Private keys are the longest ones: RSA with 4096 bits takes 3,300 characters."""
# How many more characters HTML has for these: `&#34;`, `&#39;`, `&lt;`, `&gt;`, `&amp;`.
_LONGER_IN_HTML = {'"': 4, "'": 4, "<": 3, ">": 3, "&": 4}


class Excerpt(Struct, frozen=True):
    text: str
    cut_chars: int = 0
    """The number of characters that were left out."""


class Excerpts:
    """Cuts texts. A credential is removed before the cut, so that no part of it is left at the edge."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._slack = max(redactor.longest_bytes, _LONGEST_SHAPE_CHARS)

    def plain(self, text: str) -> str:
        """The whole text without credentials. Characters that UTF-8 cannot encode become question marks."""
        return _encodable(self._redactor.redact_all(text))

    def line(self, text: str, most_chars: int = 200) -> str:
        """The beginning of the text, in one line."""
        slack = self._slack
        head = self.plain(text[: 4 * most_chars + slack])
        if len(text) > 4 * most_chars + slack:  # the cut may have left half of a credential
            head = head[:-slack]
        excerpt = " ".join(head.split())
        return excerpt if len(excerpt) <= most_chars else f"{excerpt[: most_chars - 1]}…"

    def of(self, text: str, most_chars: int) -> Excerpt:
        """The beginning and the end of the text. In HTML, the excerpt has about `most_chars` bytes at most."""
        return _fitting(text, most_chars, self._redactor.redact_all, self._slack)

    def of_record(self, text: str, most_chars: int) -> Excerpt:
        """As `of`, for a text of a record from which a `RecordView` has cut the credentials. They are most of a page's
        texts, so they are not searched for keys of known forms a second time.
        """
        return _fitting(text, most_chars, self._redactor.redact, self._redactor.longest_bytes)


def _fitting(text: str, most_chars: int, redact: Callable[[str], str], slack: int) -> Excerpt:
    """An excerpt without what `redact` removes, which is at most `slack` bytes long."""
    kept, cut_chars = _cut(text, most_chars, redact, slack)
    size = size_in_html(kept)
    if size > most_chars + _ROOM_FOR_MARK and most_chars > _LEAST_CHARS:
        kept, cut_chars = _cut(text, max(most_chars * most_chars // size, _LEAST_CHARS), redact, slack)
    return Excerpt(kept, cut_chars)


def _cut(text: str, most_chars: int, redact: Callable[[str], str], slack: int) -> tuple[str, int]:
    head_chars = int(most_chars * _HEAD_SHARE)
    tail_chars = most_chars - head_chars
    if len(text) > 2 * (most_chars + slack):
        # A credential that begins in a kept piece ends before the cut. What may be half of one is left out.
        head = redact(text[: head_chars + slack])
        tail = redact(text[-tail_chars - slack :])
        head, tail = head[: max(len(head) - slack, 0)], tail[slack:]
        cut_chars = len(text) - head_chars - tail_chars
    else:
        whole = redact(text)
        if len(whole) <= most_chars:
            return _encodable(whole), 0
        head, tail = whole[:head_chars], whole[-tail_chars:]
        cut_chars = len(whole) - head_chars - tail_chars
    return _encodable(f"{head}\n[… {cut_chars:,} characters are left out here …]\n{tail}"), cut_chars


def _encodable(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def size_in_html(text: str) -> int:
    """The number of bytes that the text takes in an HTML page."""
    return len(text.encode("utf-8", "replace")) + sum(
        text.count(char) * more for char, more in _LONGER_IN_HTML.items()
    )


# --- The room of a page
# The room of one page, shared out among what it shows, so that a page stays below 10 MB. No I/O happens here.

# All texts of one kind on a page, and one of them.
_TASKS_CHARS, _ALL_WORDS_CHARS, _CHECKS_CHARS, _REASONS_CHARS = 200_000, 300_000, 500_000, 200_000
_TASK_CHARS = 20_000
_WORDS_CHARS = 4_000
_CHECK_CHARS = 4_500
_REASON_CHARS = 1_000
_LEAST_BUDGET_CHARS = 160


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
    return min(max(whole // max(number, 1), _LEAST_BUDGET_CHARS), most)
