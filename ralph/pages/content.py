"""The content of a report page, as values: one `PageContent` with one `Section` for each session or loop that the page shows.

`pages/command.py` makes these values from journals, loop records and git. `pages/page.py` turns them into HTML. No
I/O happens here. All times are seconds since 1970. All texts are as the model, a tool or a server wrote them, apart
from redacted credentials: they are not safe as HTML or on a terminal.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.values.redaction import Redactor

_NO_PROBLEMS = frozenset({"completed", "running"})
"""The outcomes of work that did not fail, and was not killed or stopped: no person need look at it."""


class StretchKind(enum.Enum):
    """The use of a stretch of time."""

    MODEL = "model"
    TOOL = "tool"
    CHECK = "check"
    """The loop ran its gate and its `--until` check."""
    WAITING = "waiting"
    """ralph waited before it sent a request again."""
    OUTAGE = "outage"
    """The loop waited until the API or the machine was available again."""
    IDLE = "idle"
    """Nothing is recorded, for example because the process was killed and resumed later."""


class MarkKind(enum.Enum):
    """Something that happened at a moment of the timeline."""

    RETRY = "retry"
    FALLBACK = "fallback"
    GUARD = "guard"
    COMPACTION = "compaction"
    DENIAL = "denial"
    COMMIT = "commit"
    NOTICE = "notice"
    ENDED = "ended"


class EntryKind(enum.Enum):
    PROMPT = "prompt"
    """A message of the user, or the task of an iteration."""
    RALPH = "ralph"
    """A message that ralph wrote to the model."""
    TEXT = "text"
    THINKING = "thinking"
    CALL = "call"
    """A tool call with its result."""
    EVENT = "event"


class Stretch(Struct, frozen=True):
    """A length of time that has a bar."""

    kind: StretchKind
    """Where bars share a place, the kinds have the order of their enumeration."""
    began_s: float
    ended_s: float
    label: str
    """A few words, such as `turn 3` or `Bash: make test`."""
    entry: str | None = None
    """The `id` of the transcript's entry to jump to, or None."""


class Mark(Struct, frozen=True):
    kind: MarkKind
    at_s: float
    label: str
    entry: str | None = None


class Point(Struct, frozen=True):
    at_s: float
    value: float


class TranscriptEntry(Struct, frozen=True):
    id: str
    """Unique within the page. Contains only ASCII letters, digits and hyphens."""
    kind: EntryKind
    at_s: float | None
    """None if the journal does not say when it was written."""
    title: str
    """One line, such as `Bash: make test`."""
    text: str
    """The text, the arguments of a call, or the fields of an event. May be cut."""
    result: str | None = None
    """The result of a call. None if the entry is not a call, or if the call has no result. May be cut."""
    is_error: bool = False
    cut_chars: int = 0
    """The number of characters that were left out of `text` and `result`."""
    shown_by: str | None = None
    """If something was left out: the command that shows all of it."""


class CheckRun(Struct, frozen=True):
    """A verdict on the work of a loop."""

    words: str
    """The result in a few words, such as `passed` or `exit 1`."""
    has_passed: bool
    output: str
    """The end of the output. Empty if none was kept."""
    name: str
    """Who said it: `check`, `gate` or `plan`."""


class SectionPart(Struct, frozen=True):
    """An iteration of a loop. In a session without a loop, a run of the session."""

    number: int
    session_id: str
    outcome: str
    """The value of an `Outcome`, or `running` or `killed`. `unknown` if its journal is missing or damaged."""
    reason: str
    """Why it ended. May be empty."""
    last_words: str
    began_s: float | None
    ended_s: float | None
    turns: int
    cost_usd: float | None
    """The cost in US dollars, or None if it is unknown."""
    stretches: tuple[Stretch, ...] = ()
    """In order of time. They do not overlap."""
    marks: tuple[Mark, ...] = ()
    entries: tuple[TranscriptEntry, ...] = ()
    check: CheckRun | None = None
    commits: int = 0
    """The number of commits that were made in it."""
    is_copied: bool = False
    """True if another session made this run, and a fork copied it. It is not part of the totals."""
    is_finished: bool = True
    """False if it is an iteration that has not ended, or was cut off, and so is not counted as one."""
    problem: str | None = None
    """Why its journal cannot be shown, or not all of it. None if all is shown."""

    @property
    def is_problem(self) -> bool:
        return self.outcome not in _NO_PROBLEMS


class FileDiff(Struct, frozen=True):
    path: str
    added: int
    removed: int
    diff: str
    """Unified diff, may be cut. Empty for a binary file."""
    cut_lines: int = 0


class Commit(Struct, frozen=True):
    id: str
    subject: str
    body: str
    at_s: float
    files: tuple[FileDiff, ...]
    iteration: int | None = None
    """The number of the iteration that made it, or None if it is not known."""
    shown_by: str | None = None
    """If a part of the diff was left out: the command that shows all of it."""
    more_files: int = 0
    """The number of changed files that are not in `files`. The next two numbers are their lines."""
    more_added: int = 0
    more_removed: int = 0


class ChangedFile(Struct, frozen=True):
    """A file that differs between the beginning and the end of the work."""

    path: str
    added: int | None
    """The number of added lines, or None if it is not known, as for a binary file."""
    removed: int | None
    is_committed: bool


LOOP_WAITS = "waits of the loop"
"""The name of the `Count` of waits that are the loop's own. The headline has a sentence about them instead."""


class Count(Struct, frozen=True):
    """How often something happened that a person may ask about."""

    name: str
    """A noun, such as `retries` or `denied calls`."""
    number: int
    details: tuple[str, ...] = ()
    """The first of them, a line each."""


class Section(Struct, frozen=True):
    """A loop, or a session without a loop."""

    id: str
    """The number of the loop, or the id of the session."""
    is_loop: bool
    title: str
    """The first heading or paragraph of the task, or the title that the user gave."""
    task: str
    directory: str
    model: str
    """The name of the model, or of the models, separated by commas."""
    outcome: str
    """The value of an `Outcome`, or `running` or `killed`."""
    exit_code: int | None
    reason: str
    """Why it ended, in a sentence. Empty if it has not ended."""
    answer: str
    """The last words of the model, or its final report."""
    began_s: float
    ended_s: float
    """The end, or the last time at which something was written."""
    turns: int
    cost_usd: float | None
    budget_usd: float | None
    """The limit on the cost, or None without a limit."""
    time_limit_s: float | None
    parts: tuple[SectionPart, ...]
    outages: tuple[Stretch, ...] = ()
    """Waits of the loop between or within iterations. They are also in the stretches of an iteration where there is one."""
    first_check: CheckRun | None = None
    commits: tuple[Commit, ...] = ()
    files: tuple[ChangedFile, ...] = ()
    costs: tuple[Point, ...] = ()
    """The total cost in US dollars over time."""
    contexts: tuple[Point, ...] = ()
    """The size of the context in tokens over time."""
    counts: tuple[Count, ...] = ()
    """Retries, fallbacks, guards, compactions, denials and the like. Only those that happened."""
    notes: tuple[str, ...] = ()
    """Sentences that the loop told at its end, and sentences about facts that this page could not show."""
    resume_command: str | None = None
    """The command that resumes it, or None if nothing is left to do."""
    more_commits: int = 0
    """The number of commits that are not in `commits`."""
    more_files: int = 0

    @property
    def is_problem(self) -> bool:
        return self.outcome not in _NO_PROBLEMS


class PageContent(Struct, frozen=True):
    made_at_s: float
    version: str
    """The version of ralph that made the page."""
    sections: tuple[Section, ...]
    """The newest first."""
    place: str
    """The directory, session or loop that the user asked for, in words."""
    missing: tuple[str, ...] = ()
    """Sentences about what could not be read."""


# Long texts are cut to excerpts without credentials, and the room of a page is shared out.

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
