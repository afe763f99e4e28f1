"""Reads a journal without opening it for writing, and finds out whether a run of the session is active.

To find this out, ralph must lock the journal for a moment, which may disturb a run that is just starting. If the
journal shows that the last run has ended and delivered its result, ralph does not lock it.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct, field

from ralph.conversation.journal_lines import readable_part
from ralph.conversation.records import NewerFormatError
from ralph.conversation.secret_spans import RecordView
from ralph.machine.opened_file import open_regular_file
from ralph.sessions import history as history_names
from ralph.sessions.history import SessionHistory, history_of
from ralph.sessions.skimming import skim
from ralph.values.redaction import Redactor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ralph.conversation.journal_lines import JournalDamage, View
    from ralph.conversation.records import Record

_MOST_READINGS = 3


class SessionLook(Struct, frozen=True):
    """The state of a session when its journal was read."""

    path: Path
    written_at_s: float
    """The time of the last write to the journal, in seconds since the epoch."""
    outcome: str
    """The outcome of the last run, or one of the constants in `sessions/history.py`."""
    history: SessionHistory = field(default_factory=SessionHistory)
    records: tuple[Record, ...] = ()
    problem: str | None = None
    """The reason why a part of the session cannot be shown. None if the whole session can be shown."""

    @property
    def id(self) -> str:
        return self.path.stem

    @property
    def task(self) -> str:
        """The title of the session. If there is no title, the first prompt. Empty if neither can be read."""
        return self.history.given_title or self.history.task


def look_at(path: Path, view: View | None = None) -> SessionLook:
    """Reads a session. Raises FileNotFoundError if the journal does not exist. Any other problem is described by
    `outcome` and `problem` of the result. `view` makes the records safe to show. None for the records as they are.
    """
    return _look_by(path, partial(_read, view=view))


def look_for_words(path: Path) -> SessionLook:
    """As `look_at`, without the secrets whose places the journal has: this process may not know them."""
    return look_at(path, RecordView(Redactor()))


def look_to_list(path: Path, view: View | None = None) -> SessionLook:
    """Reads only the records that `ralph sessions ls` needs. The history in the result contains no other records.
    `view` is that of `look_at`. Raises FileNotFoundError if the journal does not exist.
    """
    return _look_by(path, partial(_skimmed, view=view))


def _look_by(path: Path, read: Callable[[Path], tuple[int, SessionLook]]) -> SessionLook:
    try:
        return _look(path, read)
    except FileNotFoundError:
        raise
    except OSError as error:
        problem = error.strerror or type(error).__name__
        return SessionLook(path, 0.0, history_names.UNREADABLE, problem=problem)


def _look(path: Path, read: Callable[[Path], tuple[int, SessionLook]]) -> SessionLook:
    """Reads a session with `read`, then tests whether its journal is locked. If the journal was written between these
    two steps, reads it again, because a run may have ended in that time.
    """
    for _ in range(_MOST_READINGS):
        size, look = read(path)
        if look.outcome not in {history_names.KILLED, history_names.NOT_DELIVERED}:
            return look
        if is_locked(path):
            return SessionLook(path, look.written_at_s, history_names.RUNNING, look.history, look.records)
        if path.stat().st_size == size:
            break
    return look


def _read(path: Path, view: View | None) -> tuple[int, SessionLook]:
    with os.fdopen(open_regular_file(path), "rb", 0) as file:
        status = os.fstat(file.fileno())
        try:
            records, damage = readable_part(partial(os.pread, file.fileno()), status.st_size, view)
        except NewerFormatError as error:
            look = SessionLook(path, status.st_mtime, history_names.NEWER_FORMAT, problem=str(error))
            return status.st_size, look
    history = history_of(records)
    outcome = _outcome(history, damage, has_lines=bool(records))
    problem = str(damage) if damage is not None else None
    return status.st_size, SessionLook(path, status.st_mtime, outcome, history, records, problem)


def _skimmed(path: Path, view: View | None) -> tuple[int, SessionLook]:
    descriptor = open_regular_file(path)
    try:
        status = os.fstat(descriptor)
        seen = skim(partial(os.pread, descriptor), status.st_size, view=view)
    except NewerFormatError as error:
        return 0, SessionLook(path, status.st_mtime, history_names.NEWER_FORMAT, problem=str(error))
    finally:
        os.close(descriptor)
    outcome = _outcome(seen.history, seen.damage, has_lines=seen.has_lines)
    problem = str(seen.damage) if seen.damage is not None else None
    return status.st_size, SessionLook(path, status.st_mtime, outcome, seen.history, problem=problem)


def _outcome(history: SessionHistory, damage: JournalDamage | None, *, has_lines: bool) -> str:
    if damage is not None:
        return history_names.DAMAGED
    if not has_lines:
        return history_names.EMPTY
    return history.end or history_names.KILLED


def holder_of(path: Path) -> str:
    """Describes the process that has the journal open, as recorded for the last run. Returns "another process" if the
    last run has ended and its delivery is recorded, or if the recorded process does not exist on this machine.
    """
    with suppress(OSError):
        runs = _skimmed(path, None)[1].history.runs
        if runs and (runs[-1].ended is None or runs[-1].delivery is None) and _is_there(runs[-1].opening.pid):
            return f"process {runs[-1].opening.pid}, since {runs[-1].opening.started_at}"
    return "another process"


def _is_there(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)  # signal 0 only checks whether the process exists
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def is_locked(path: Path) -> bool:
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
