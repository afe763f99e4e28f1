"""Reads a journal without opening it for writing, and finds out whether a run of the session is active.

To find this out, ralph must lock the journal for a moment, which may disturb a run that is just starting. If the
journal shows that the last run has ended and delivered its result, ralph does not lock it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from ralph.conversation.journal_lines import CheckedLines, JournalDamage, Read, record_of
from ralph.conversation.records import NewerFormatError
from ralph.conversation.secret_spans import RecordView
from ralph.machine.files.opened_file import open_regular_file
from ralph.sessions import story as outcomes
from ralph.sessions.skimming import skim
from ralph.sessions.story import SessionStory
from ralph.values.redaction import Redactor

if TYPE_CHECKING:
    from pathlib import Path

    from ralph.conversation.journal_lines import View
    from ralph.conversation.records import Record

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
    descriptor = open_regular_file(path)
    try:
        status = os.fstat(descriptor)
        story, damage = fold(partial(os.pread, descriptor), status.st_size)
    except NewerFormatError as error:
        return 0, SessionLook(path, status.st_mtime, outcomes.NEWER_FORMAT, problem=str(error))
    finally:
        os.close(descriptor)
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
    descriptor = open_regular_file(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
