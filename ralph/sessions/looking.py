"""Reads a journal without opening it for writing: its content, and whether a run is active.

It takes the lock only for a moment, and only if the last run has no end record: otherwise a new run could
find its own journal locked.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct, field

from ralph.conversation.journal_lines import readable_part
from ralph.conversation.records import NewerFormatError
from ralph.sessions import history as history_names
from ralph.sessions.history import SessionHistory, history_of

if TYPE_CHECKING:
    from pathlib import Path

    from ralph.conversation.records import Record

_MOST_READINGS = 3


class SessionLook(Struct, frozen=True):
    """The state of a session at the moment of reading."""

    path: Path
    written_at_s: float
    """Time of the last write, in seconds of the wall clock."""
    outcome: str
    """The outcome of the last run, or one of the constants in `sessions/history.py`."""
    history: SessionHistory = field(default_factory=SessionHistory)
    records: tuple[Record, ...] = ()
    problem: str | None = None
    """Why part of the session cannot be shown; None: all of it can."""

    @property
    def id(self) -> str:
        return self.path.stem

    @property
    def task(self) -> str:
        """The first prompt; empty: none could be read."""
        return self.history.task


def look_at(path: Path) -> SessionLook:
    """Reads a session.

    Raises FileNotFoundError if the journal was just removed; every other problem is an outcome.
    """
    try:
        return _look_at(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        problem = error.strerror or type(error).__name__
        return SessionLook(path, 0.0, history_names.UNREADABLE, problem=problem)


def _look_at(path: Path) -> SessionLook:
    """Reads a session. If something was written between the reading and the test of the lock, it reads again, so
    that it does not miss the end of a run.
    """
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
    """A description of the process that has the journal open, from the journal's last run. It is "another process"
    if that run has ended or its process is not on this machine.
    """
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
    """Whether a process has the journal open for writing, as far as the file system supports locks."""
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
