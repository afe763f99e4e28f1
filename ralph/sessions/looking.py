"""Looks at a journal without opening it for writing: what is in it, and whether a run is at it.

It takes no lock but for the moment of the question, and asks only of a journal whose last run has no end: a run
that begins must not find its own journal taken.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct, field

from ralph.conversation.decoding import NewerFormatError
from ralph.conversation.journal_lines import readable_part
from ralph.sessions import history as history_names
from ralph.sessions.history import SessionHistory, history_of

if TYPE_CHECKING:
    from pathlib import Path

    from ralph.conversation.records import Record

_MOST_READINGS = 3


class SessionLook(Struct, frozen=True):
    """A session as it is just now."""

    path: Path
    written_at_s: float
    """On the wall clock."""
    outcome: str
    """The outcome of the last run, or one of the words of `sessions/history.py`."""
    history: SessionHistory = field(default_factory=SessionHistory)
    records: tuple[Record, ...] = ()
    problem: str | None = None
    """Why not all of it can be shown."""

    @property
    def id(self) -> str:
        return self.path.stem

    @property
    def task(self) -> str:
        """Its first prompt; empty: there is none that could be read."""
        return self.history.task


def look_at(path: Path) -> SessionLook:
    """Raises FileNotFoundError for a journal that was removed just now; everything else is an outcome."""
    try:
        return _look_at(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        problem = error.strerror or type(error).__name__
        return SessionLook(path, 0.0, history_names.UNREADABLE, problem=problem)


def _look_at(path: Path) -> SessionLook:
    """Looks until nothing was written between reading and asking for the lock, so that no end is overlooked."""
    for _ in range(_MOST_READINGS):
        size, look = _read(path)
        if look.outcome not in {history_names.KILLED, history_names.NOT_DELIVERED}:
            return look
        if is_locked(path):
            return SessionLook(path, look.written_at_s, history_names.RUNNING, look.history, look.records)
        if path.stat().st_size == size:
            break
    return look


def _read(path: Path) -> tuple[int, SessionLook]:
    with path.open("rb") as file:
        data = file.read()
        written_at_s = os.fstat(file.fileno()).st_mtime
    try:
        records, damage = readable_part(data)
    except NewerFormatError as error:
        return len(data), SessionLook(path, written_at_s, history_names.NEWER_FORMAT, problem=str(error))
    history = history_of(records)
    problem = str(damage) if damage is not None else None
    if problem is not None:
        outcome = history_names.DAMAGED
    elif not records:
        outcome = history_names.EMPTY
    else:
        outcome = history.end or history_names.KILLED
    return len(data), SessionLook(path, written_at_s, outcome, history, records, problem)


def holder_of(path: Path) -> str:
    """Who has it open, as far as its last run tells; one that has ended, or is no process here, is not it."""
    with suppress(OSError, NewerFormatError):
        runs = history_of(readable_part(path.read_bytes())[0]).runs
        if runs and (runs[-1].ended is None or runs[-1].delivery is None) and _is_there(runs[-1].opening.pid):
            return f"process {runs[-1].opening.pid}, since {runs[-1].opening.started_at}"
    return "another process"


def _is_there(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)  # sends nothing
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def is_locked(path: Path) -> bool:
    """Whether a process has the journal open for writing, as far as this file system tells."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
