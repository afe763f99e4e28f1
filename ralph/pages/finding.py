"""Finds the loops and sessions that the user asked `ralph report` for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.loop.record import FileRecord, RecordError
from ralph.loop.store import LoopStore
from ralph.sessions.finding import named_journal
from ralph.sessions.store import SessionStore, written_at
from ralph.values.outcome import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

NEWEST_LOOP = "loop"
_MOST_LOOP_DIGITS = 6
"""A longer number is the beginning of a session's id."""


class ReportSubject(Struct, frozen=True):
    """The loops and sessions of one page."""

    place: str
    """The user's request, in words."""
    directory: Path
    """The directory whose loops the numbers name."""
    loops: tuple[FileRecord, ...] = ()
    sessions: tuple[Path, ...] = ()
    """The paths of journals."""
    is_directory: bool = False
    """True if the page shows everything of a directory. Sessions of the loops' iterations are then left out of
    `sessions` by the reader."""


def find_subject(
    what: str | None, directory: Path, environment: Mapping[str, str], session_directory: Path | None
) -> ReportSubject:
    """Finds what `what` names: a session, a loop or a directory. None names the newest loop of `directory`, or its
    newest session if it has no loop. Raises UsageError if there is no such session or loop.
    """
    store = SessionStore.to_read(environment, session_directory)
    loops = LoopStore(store, directory)
    if what is None:
        return _newest(loops, store, directory)
    if what == NEWEST_LOOP:
        return _of_loop(_newest_loop(loops), directory)
    if what.isascii() and what.isdecimal() and len(what) <= _MOST_LOOP_DIGITS:
        recorded = loops.all_records(of_all=False)
        named = [record for record in recorded if int(record.folder.name) == int(what)]
        if named:
            return _of_loop(named[0], directory)
        if not store.starting_with(what):
            kept = [
                str(int(record.folder.name)) for record in sorted(recorded, key=lambda one: one.folder.name)
            ]
            there = f"the loops here are {', '.join(kept)}" if kept else "no loop is recorded here"
            raise UsageError(f"there is no loop {what} in {directory}, and no such session; {there}")
    elif os.sep in what or what in {os.curdir, os.pardir} or _is_directory_only(what, store):
        return _everything_of(directory / what, environment, session_directory)
    path = named_journal(store, what, directory)
    return ReportSubject(f"session {path.stem}", directory, sessions=(path,))


def _newest(loops: LoopStore, store: SessionStore, directory: Path) -> ReportSubject:
    if loops.all_records(of_all=False):
        return _of_loop(loops.newest(), directory)
    last = store.last_of(directory)
    if last is None:
        raise UsageError(
            f"there is no loop and no session of {directory} yet; `ralph sessions ls --all` lists all sessions"
        )
    return ReportSubject(f"session {last.stem}", directory, sessions=(last,))


def _newest_loop(loops: LoopStore) -> FileRecord:
    try:
        return loops.newest()
    except RecordError as error:
        raise UsageError(str(error)) from None


def _of_loop(record: FileRecord, directory: Path) -> ReportSubject:
    return ReportSubject(f"loop {record.folder.name} of {directory}", directory, loops=(record,))


def _is_directory_only(what: str, store: SessionStore) -> bool:
    """Whether the word is the name of a directory, and not also the beginning of a session's id."""
    return Path(what).is_dir() and not store.starting_with(what)


def _everything_of(
    directory: Path, environment: Mapping[str, str], session_directory: Path | None
) -> ReportSubject:
    if not directory.is_dir():
        raise UsageError(f"there is no directory {directory}")
    directory = directory.resolve()
    store = SessionStore.to_read(environment, session_directory)
    loops = tuple(LoopStore(store, directory).all_records(of_all=False))
    sessions = tuple(sorted(store.of(directory), key=written_at, reverse=True))
    if not loops and not sessions:
        raise UsageError(f"there is no loop and no session of {directory} yet")
    return ReportSubject(f"everything of {directory}", directory, loops, sessions, is_directory=True)
