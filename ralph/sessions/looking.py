"""Finds the session that the user means, reads its journal without opening it for writing, and finds out whether a run of
it is active.

To find this out, ralph must lock the journal for a moment, which may disturb a run that is just starting. If the
journal shows that the last run has ended and delivered its result, ralph does not lock it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from ralph.conversation.journal_lines import CheckedLines, JournalDamage, Read, View, record_of
from ralph.conversation.records import NewerFormatError, Record
from ralph.conversation.secret_spans import RecordView
from ralph.machine.files.opened_file import closed_after, open_regular_file
from ralph.sessions import story as outcomes
from ralph.sessions.naming import named_session
from ralph.sessions.places import SHORT_ID_CHARS, written_at
from ralph.sessions.skimming import skim
from ralph.sessions.story import SessionStory
from ralph.values.outcome import UsageError
from ralph.values.redaction import Redactor

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ralph.sessions.store import SessionStore


_MOST_READINGS = 3
Fold = Callable[[Read, int], tuple[SessionStory, JournalDamage | None]]
"""Makes the story of a journal of this size. The damage is the first in the lines that it read."""


class SessionLook(Struct, frozen=True):
    """The state of a session when its journal was read."""

    path: Path
    written_at_s: float
    """The time of the last write to the journal, in seconds since the epoch."""
    outcome: str
    """The outcome of the last run, or one of the constants in `sessions/story.py`."""
    story: SessionStory = field(default_factory=SessionStory)
    records: tuple[Record, ...] = ()
    problem: str | None = None
    """The reason why a part of the session cannot be shown. None if the whole session can be shown."""

    @property
    def id(self) -> str:
        return self.path.stem

    @property
    def task(self) -> str:
        """The title of the session. If there is no title, the first prompt. Empty if neither can be read."""
        return self.story.given_title or self.story.task


def look_at(path: Path, view: View | None = None) -> SessionLook:
    """Reads the whole journal. Raises FileNotFoundError if it does not exist. Any other problem is described by
    `outcome` and `problem` of the result. `view` makes the records safe to show. None for the records as they are.
    """
    records: list[Record] = []

    def fold(read: Read, size: int) -> tuple[SessionStory, JournalDamage | None]:
        records.clear()
        story = SessionStory(keeps_steps=True)
        try:
            for number, _, _, line in CheckedLines(read, size):
                record = record_of(line, number, view)
                story.take(record, number)
                records.append(record)
        except JournalDamage as damage:
            return story, damage
        return story, None

    look = look_by(path, fold)
    return replace(look, records=tuple(records))


def look_to_list(path: Path, view: View | None = None) -> SessionLook:
    """Reads only what a list of sessions shows. The story of the result has no steps. Errors are as in `look_at`. If
    `view` is None, the secrets whose places the journal has are cut: this process may not know them.
    """
    return look_by(path, partial(skim, view=view or RecordView(Redactor())))


def look_by(path: Path, fold: Fold) -> SessionLook:
    """Reads a journal with `fold`. Errors are as in `look_at`."""
    try:
        for _ in range(_MOST_READINGS):
            size, look = _read(path, fold)
            if look.outcome not in {outcomes.KILLED, outcomes.NOT_DELIVERED}:
                break
            if _is_locked(path):
                return replace(look, outcome=outcomes.RUNNING)
            if path.stat().st_size == size:  # otherwise a run may have written its end since
                break
    except FileNotFoundError:
        raise
    except OSError as error:
        problem = error.strerror or type(error).__name__
        return SessionLook(path, 0.0, outcomes.UNREADABLE, problem=problem)
    return look


def _read(path: Path, fold: Fold) -> tuple[int, SessionLook]:
    """The size of the journal, and its state if no run has it open."""
    with closed_after(open_regular_file(path)) as descriptor:
        status = os.fstat(descriptor)
        try:
            story, damage = fold(partial(os.pread, descriptor), status.st_size)
        except NewerFormatError as error:
            return 0, SessionLook(path, status.st_mtime, outcomes.NEWER_FORMAT, problem=str(error))
    if damage is not None:
        return 0, SessionLook(path, status.st_mtime, outcomes.DAMAGED, story, problem=str(damage))
    is_empty = story.opening is None and not story.runs
    outcome = outcomes.EMPTY if is_empty else story.end or outcomes.KILLED
    return status.st_size, SessionLook(path, status.st_mtime, outcome, story)


def holder_of(path: Path) -> str:
    """Describes the process that has the journal open, as recorded for the last run. Returns "another process" if the
    last run has ended and its delivery is recorded, or if the recorded process does not exist on this machine.
    """
    with suppress(OSError):
        for run in _read(path, skim)[1].story.runs[-1:]:
            is_over = run.ended is not None and (run.ended.delivered or run.delivery is not None)
            if not is_over and _is_there(run.opening.pid):
                return f"process {run.opening.pid}, since {run.opening.started_at}"
    return "another process"


def _is_there(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)  # signal 0 only checks whether the process exists
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def _is_locked(path: Path) -> bool:
    """Whether a process has the journal open for writing. False if the file system does not support locks."""
    with closed_after(open_regular_file(path)) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return False


# --- Finding a session
# Finds the session that the user means: by the beginning of its id, by its title, or as the newest one.

_MOST_AMBIGUOUS = 5


def last_resumable(store: SessionStore, cwd: Path) -> Path | None:
    """The most recently written journal of the working directory `cwd` that contains a message. None if `cwd` has
    no journal. If none contains a message, the most recently written one: opening it raises an error that explains
    the problem.
    """
    newest_first = sorted(store.of(cwd), key=written_at, reverse=True)
    return next((path for path in newest_first if _has_message(path)), store.last_of(cwd))


def _has_message(path: Path) -> bool:
    """Whether the journal contains a user message, without which it cannot be resumed. Also True if it cannot be
    read: opening it reports why.
    """
    try:
        look = look_to_list(path)
    except FileNotFoundError:  # it was deleted just now
        return False
    return look.problem is not None or look.story.has_message


def named_journal(store: SessionStore, name: str) -> Path:
    """The journal whose id begins with `name`, or whose session has it as its title. Raises UsageError if there is
    none, or more than one.
    """
    found = store.starting_with(name)
    titled = [] if len(found) == 1 and len(name) >= SHORT_ID_CHARS else _titled(store, name)
    both = [*dict.fromkeys((*found, *titled))]
    if not both:
        none = f"no session has an id that begins with {name!r}, or this title (in {store.root})"
        raise UsageError(none)
    if len(both) > 1:
        newest = sorted(both, key=written_at, reverse=True)[:_MOST_AMBIGUOUS]
        names = _names(newest) if titled else ", ".join(path.stem for path in found[:_MOST_AMBIGUOUS])
        have = "have an id that begins with, or the title" if titled else "begin with"
        raise UsageError(f"{len(both)} sessions {have} {name!r}: {names}")
    return both[0]


def _titled(store: SessionStore, title: str) -> list[Path]:
    """The journals of the sessions with this title, as a list of sessions shows it. Case and white space do not
    count.
    """

    def plain(text: str | None) -> str:
        return " ".join((text or "").casefold().split())

    wanted = plain(title)
    found: list[Path] = []
    for path in store.all():
        with suppress(FileNotFoundError):  # it was deleted just now
            if plain(look_to_list(path).story.title) == wanted != "":
                found.append(path)
    return found


def _names(paths: Iterable[Path]) -> str:
    now_s = time.time()
    named = []
    for path in paths:
        with suppress(FileNotFoundError):
            look = look_to_list(path)
            named.append(named_session(look.id, now_s - look.written_at_s, look.task))
    return ", ".join(named)
