"""Which session a run belongs to: a new one, an old one gone on with, or a copy of an old one. It opens the journal.

Refuses to guess: what cannot be resumed is one line and its exit code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ralph import __version__
from ralph.core.journal_lines import JournalDamage, read_lines
from ralph.core.outcome import Outcome, UsageError
from ralph.core.session import NewerFormatError, NoMessageError, Session, SessionError, last_run, replay
from ralph.core.session_entries import fork_entries, session_entry
from ralph.effects.sessions.journal import FileJournal, NoJournal, SessionLockedError
from ralph.effects.sessions.store import SessionStore
from ralph.ports import JournalError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from pathlib import Path


_LIMITS = frozenset({Outcome.LIMIT_REACHED.value, Outcome.TIMED_OUT.value})


@dataclass(frozen=True)
class SessionOptions:
    """What the command line said about sessions."""

    session_id: str | None = None
    """For a new one; None: made up."""
    goes_on: bool = False
    """With the last session of this directory."""
    resume: str | None = None
    """The beginning of the id of the session to go on with."""
    forks: bool = False
    """The old session stays as it is; a copy of it goes on."""
    directory: Path | None = None
    """Where sessions are; None: the user's state directory."""
    is_kept: bool = True

    @property
    def is_old(self) -> bool:
        return self.goes_on or self.resume is not None


class CannotOpenError(Exception):
    """One line, and how the run ends by it."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


@dataclass(frozen=True)
class OpenSession:
    id: str
    journal: FileJournal | NoJournal
    old: Session | None = None
    notices: tuple[str, ...] = ()


LIMIT_LIFTED = "The limit that ended the last run no longer holds. Go on with the task."


def prompt_of_resumed(old: Session, prompt: str | None) -> str | None:
    """What the model is told first; None: nothing, what is pending goes on. Raises UsageError for a session that ended."""
    if prompt is not None:
        return prompt
    if old.is_completed:
        raise UsageError(f"session {old.id} is completed: say what is to be done next")
    was_limited = old.ended is not None and old.ended.get("outcome") in _LIMITS
    return LIMIT_LIFTED if was_limited else None


def open_session(
    options: SessionOptions, new_id: str, cwd: Path, environment: Mapping[str, str], now: datetime
) -> OpenSession:
    """Raises UsageError where there is nothing to go on with, CannotOpenError where there is and it cannot be."""
    if not options.is_kept and not options.is_old:
        return OpenSession(new_id, NoJournal())
    try:
        store = SessionStore.for_user(environment, options.directory)
        notices = (store.notice,) if store.notice else ()
        if options.is_old:
            return replace(_old(options, new_id, store, cwd, now), notices=notices)
        journal = store.create(new_id, cwd)
        journal.append(session_entry(new_id, str(cwd), now.isoformat(), __version__))
    except JournalError as error:
        if isinstance(error.__cause__, FileExistsError):
            raise UsageError(f"there is a session {new_id} already: --resume goes on with it") from error
        raise CannotOpenError(Outcome.IO_ERROR, str(error)) from error
    return OpenSession(new_id, journal, None, notices)


def _old(options: SessionOptions, new_id: str, store: SessionStore, cwd: Path, now: datetime) -> OpenSession:
    path = _found(options, store, cwd)
    try:
        journal = FileJournal.open(path, mends=not options.forks)
        old = replay(journal.records)
    except SessionLockedError:
        raise CannotOpenError(Outcome.CONFIG, f"session {path.stem} is in use{_holder(path)}") from None
    except NewerFormatError as error:
        raise CannotOpenError(Outcome.CONFIG, f"session {path.stem} cannot be read: {error}") from error
    except NoMessageError as error:
        raise UsageError(f"there is nothing to go on with in session {path.stem}: {error}") from error
    except (JournalDamage, SessionError) as error:
        raise CannotOpenError(Outcome.IO_ERROR, f"the journal {path} is damaged: {error}") from error
    if old.cwd != str(cwd):
        raise UsageError(f"session {old.id} belongs to {old.cwd}; go on with it there (--cd {old.cwd})")
    if not options.forks:
        return OpenSession(old.id, journal, old)
    journal.close()
    copy = store.create(new_id, cwd)
    copy.append(*fork_entries(journal.records, new_id, now.isoformat(), __version__))
    return OpenSession(new_id, copy, old)


def _found(options: SessionOptions, store: SessionStore, cwd: Path) -> Path:
    if options.resume is None:
        last = store.last_to_go_on(cwd)
        if last is None:
            raise UsageError(f"there is no session of {cwd} to go on with")
        return last
    return store.only_one(options.resume)


def _holder(path: Path) -> str:
    """Who, as far as the journal tells."""
    try:
        run = last_run(read_lines(path.read_bytes()).records)
    except (OSError, JournalDamage):
        return ""
    return f" by process {run['pid']}, since {run['started_at']}" if run else ""
