"""Keeps a loop's record, its prompt and the check's log: one folder for each directory, with one folder in it for each
loop.

The folders are in the user's state directory, beside the sessions and never in the checkout: `--continue` uses no
file that a repository brings along or an agent writes. A new loop does not change the folders of earlier loops.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from ralph.loop.record import RECORD_FILE, FileRecord, RecordError
from ralph.loop.values import OWN_DIRECTORY
from ralph.sessions.store import SessionStore, directory_name, make_private, written_at
from ralph.values.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

LOOPS = "loops"
MOST_KEPT = 20
"""The most loop folders that are kept for one directory, the newest ones. A check's log may have 50 MB."""


class LoopStore:
    """The loops of one directory."""

    def __init__(self, sessions: SessionStore, directory: Path) -> None:
        self.roots = sessions.beside(LOOPS)
        """The folders with the loops of all directories. New loops go into the first."""
        self.notice = None
        """A notice for people that says why the usual place is not used; None: the usual place is used."""
        if sessions.notice is not None:
            self.notice = sessions.notice.replace("sessions are", "the loop's record and its sessions are", 1)
        self._directory = directory.resolve()
        self._places = [root / directory_name(self._directory) for root in self.roots]

    @classmethod
    def for_user(cls, environment: Mapping[str, str], directory: Path) -> LoopStore:
        """The store of a user, made if necessary. Raises JournalError if no place is writable."""
        store = cls(SessionStore.for_user(environment), directory)
        make_private(store.place)
        return store

    @classmethod
    def to_read(cls, environment: Mapping[str, str], directory: Path) -> LoopStore:
        """The store for reading; makes no directory."""
        return cls(SessionStore.to_read(environment), directory)

    @property
    def place(self) -> Path:
        """The folder of this directory, with one for each loop in it."""
        return self._places[0]

    def begin(self) -> FileRecord:
        """Makes a record in a folder of its own. The caller holds the checkout's lock. Raises OSError."""
        make_private(self.place)
        numbers = list(_numbers(self.place))
        folder = self.place / f"{max(numbers, default=0) + 1:04d}"
        folder.mkdir(mode=0o700)
        for number in sorted(numbers)[: -(MOST_KEPT - 1)]:
            shutil.rmtree(self.place / f"{number:04d}", ignore_errors=True)
        return FileRecord(folder)

    def newest(self) -> FileRecord:
        """The record of the newest loop. Raises RecordError if there is none."""
        found = [record for place in self._places for record in _newest_in(place)]
        if found:
            return max(found, key=lambda record: written_at(record.path))
        none = f"there is no loop in {self._directory} (none is recorded in {self.place})"
        if os.path.lexists(self._directory / OWN_DIRECTORY / RECORD_FILE):
            none = (
                f"{none}; {OWN_DIRECTORY}/{RECORD_FILE} is an older ralph's, or came with the repository, and is "
                "not followed: ralph loop begins a new loop"
            )
        raise RecordError(Outcome.USAGE, none)


def _newest_in(place: Path) -> Iterator[FileRecord]:
    """The record with the highest number in this folder, if there is any; times do not matter.

    A loop that was killed before its first record has no record, and is skipped.
    """
    for number in sorted(_numbers(place), reverse=True):
        record = FileRecord(place / f"{number:04d}")
        if os.path.lexists(record.path):
            yield record
            return


def _numbers(place: Path) -> Iterator[int]:
    with suppress(FileNotFoundError):
        yield from (int(name) for name in os.listdir(place) if name.isdecimal())  # noqa: PTH208 - names are what is looked at
