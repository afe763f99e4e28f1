"""Finds the folder of a loop, with its record, prompt and logs: one for each loop, in one for each directory in which loops
work. All are in the user's state directory, beside the sessions, and not in the checkout. So `--continue` uses no file that
came with a repository or that an agent wrote. A new loop removes only folders that are old and not among the last ones.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from ralph.git.own_paths import OWN_DIRECTORY
from ralph.loop.record import RECORD_FILE, FileRecord, RecordError
from ralph.machine.files.trees import remove_tree_if_possible
from ralph.sessions.places import directory_name
from ralph.sessions.store import SessionStore, make_private, written_at
from ralph.values.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

LOOPS = "loops"
ALWAYS_KEPT = 20
"""So many of the last loops of a directory are never removed."""
KEPT_DAYS = 30
"""Earlier loops are removed when they were last written so long ago. One check log may take 50 MB."""


class LoopStore:
    """The recorded loops of one directory."""

    def __init__(self, sessions: SessionStore, directory: Path) -> None:
        self.roots = sessions.beside(LOOPS)
        """Folders with the loops of all directories. New loops are stored in the first one."""
        self.notice = None
        """A sentence for the user that says why the usual place is not used, if so."""
        if sessions.notice is not None:
            self.notice = sessions.notice.replace("sessions are", "the loop's record and its sessions are", 1)
        self._directory = directory.resolve()
        self._places = [root / directory_name(self._directory) for root in self.roots]

    @classmethod
    def for_user(cls, environment: Mapping[str, str], directory: Path) -> LoopStore:
        """Finds the user's store and makes its folder if it is missing. Raises JournalError if no place is writable."""
        store = cls(SessionStore.for_user(environment, writable=(directory,)), directory)
        make_private(store.place, (directory,))
        return store

    @classmethod
    def to_read(cls, environment: Mapping[str, str], directory: Path) -> LoopStore:
        """As `for_user`, but makes no folder."""
        return cls(SessionStore.to_read(environment), directory)

    @property
    def place(self) -> Path:
        """The folder for the loops that work in this store's directory."""
        return self._places[0]

    @property
    def agent_folder(self) -> Path:
        """The folder with the directories of another agent (`--agent`) for the last loop."""
        return self.place / "agent"

    def begin(self) -> FileRecord:
        """Makes the folder of a new loop, and removes old ones. The record is not on disk until its first `save`. The caller
        must hold the checkout's lock. Raises OSError and JournalError.
        """
        make_private(self.place, (self._directory,))
        numbers = list(_numbers(self.place))
        folder = self.place / f"{max(numbers, default=0) + 1:04d}"
        folder.mkdir(mode=0o700)
        old_s = folder.stat().st_mtime - KEPT_DAYS * 86_400
        for number in sorted(numbers)[: -(ALWAYS_KEPT - 1)]:
            earlier = self.place / f"{number:04d}"
            with suppress(OSError):
                if earlier.stat().st_mtime < old_s:
                    remove_tree_if_possible(earlier)
        return FileRecord(folder)

    def take_over(self) -> None:
        """Makes the loops of another directory those of this one, as the user says that it has moved here, unless this one has
        loops already. Raises RecordError if several other directories have loops, and OSError.
        """
        if self.all_records(of_all=False):
            return
        others = list(dict.fromkeys(record.folder.parent for record in self.all_records(of_all=True)))
        if not others:
            return
        if len(others) > 1:
            several = (
                f"{self.roots[0]} has the loops of {len(others)} directories: --moved needs a state directory "
                "(RALPH_STATE_DIR) that has those of one"
            )
            raise RecordError(several, Outcome.USAGE)
        old = others[0]
        # The newest loop first: the others are only history.
        for name in sorted((entry.name for entry in old.iterdir()), reverse=True):
            (old / name).rename(self.place / name)
        old.rmdir()

    def newest(self) -> FileRecord:
        """The most recently written record. Raises RecordError if there is no record."""
        # The highest number is the newest in a folder, whatever the clock says.
        found = [records[-1] for place in self._places if (records := _records_in(place))]
        if found:
            return max(found, key=lambda record: written_at(record.path))
        none = f"there is no loop in {self._directory} (none is recorded in {self.place})"
        if os.path.lexists(self._directory / OWN_DIRECTORY / RECORD_FILE):
            none = (
                f"{none}; {OWN_DIRECTORY}/{RECORD_FILE} is an older ralph's, or came with the repository, and is "
                "not followed: ralph loop begins a new loop"
            )
        raise RecordError(none, Outcome.USAGE)

    def numbered(self, number: str) -> FileRecord:
        """The record of the loop with this number. Raises RecordError if this directory has no such loop."""
        records = {str(int(record.folder.name)): record for record in self.all_records(of_all=False)}
        if number.isdecimal() and (found := records.get(number.lstrip("0"))):
            return found
        some = f"it has {', '.join(sorted(records, key=int))}" if records else "none is recorded"
        raise RecordError(f"{self._directory} has no loop {number}: {some}", Outcome.USAGE)

    def all_records(self, *, of_all: bool) -> list[FileRecord]:
        """The records of this directory's loops, or of the loops of all directories."""
        places = self._places
        if of_all:
            places = [place for root in self.roots if root.is_dir() for place in sorted(root.iterdir())]
        return [record for place in places for record in _records_in(place)]

    def place_of(self, directory: Path) -> Path:
        """The folder for the loops that work in `directory`, in the same root as `place`."""
        return self.roots[0] / directory_name(directory.resolve())


def _records_in(place: Path) -> list[FileRecord]:
    """The records in a folder, the newest last, without loops that were killed before they saved one."""
    records = (FileRecord(place / f"{number:04d}") for number in sorted(_numbers(place)))
    return [record for record in records if os.path.lexists(record.path)]


def _numbers(place: Path) -> Iterator[int]:
    with suppress(FileNotFoundError, NotADirectoryError):
        yield from (int(name) for name in os.listdir(place) if name.isdecimal())  # noqa: PTH208 - names are what is looked at
