"""A session's journal: an append-only file, one write for each batch of records, synced before it is believed.

It is the truth about a session: what it holds was there before anybody was told. It never holds half a line: a write
that the disk cuts short is taken back before the error leaves.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from ralph.core.journal_lines import Record, line_of, read_lines
from ralph.ports import JournalError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ralph.core.session_entries import Entry

# macOS has no fdatasync.
_sync = getattr(os, "fdatasync", os.fsync)


class SessionLockedError(Exception):
    """Another process has the journal open."""


class FileJournal:
    """Open for appending, locked against every other process. Safe to use from several threads."""

    def __init__(self, path: Path, descriptor: int, records: Sequence[Record] = (), size: int = 0) -> None:
        self.path = path
        self.records = records
        """What was in it when it was opened."""
        self._descriptor = descriptor
        self._seq = len(records)
        self._size = size
        self._lock = threading.Lock()
        self._failure: JournalError | None = None

    @classmethod
    def create(cls, path: Path) -> FileJournal:
        """Raises JournalError, FileExistsError included, when it cannot be made."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
            lock_file(descriptor)
            _sync_directory(path.parent)
        except OSError as error:
            raise JournalError(path, error) from error
        except SessionLockedError:  # somebody looked into it in the moment between the two
            os.close(descriptor)
            raise JournalError(path, BlockingIOError(errno.EAGAIN, "in use by another process")) from None
        return cls(path, descriptor)

    @classmethod
    def open(cls, path: Path, *, mends: bool = True) -> FileJournal:
        """The journal as it was left; what is torn at its end is cut off and kept beside it as `.torn`.

        `mends` False: for reading only, under the lock; the file stays as it is.

        Raises SessionLockedError, JournalDamage, and JournalError.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            raise JournalError(path, error) from error
        try:
            lock_file(descriptor)
            data = _read_all(descriptor)
            reading = read_lines(data)
            size = len(data) - len(reading.torn)
            if reading.torn and mends:
                _set_aside(path, reading.torn)
                os.ftruncate(descriptor, size)
            if reading.lacks_break and mends:
                os.write(descriptor, b"\n")
                size += 1
            _sync(descriptor)
        except OSError as error:
            os.close(descriptor)
            raise JournalError(path, error) from error
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor, reading.records, size)

    def append(self, *entries: Entry, sync: bool = True) -> None:
        """Write the records, whole or not at all. After a failure every further call fails the same way."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            lines = b"".join(
                line_of(Record(seq, kind, fields)) for seq, (kind, fields) in enumerate(entries, self._seq)
            )
            try:
                self._write(lines)
                if sync:
                    _sync(self._descriptor)
            except OSError as error:
                self._failure = JournalError(self.path, error)
                with suppress(
                    OSError
                ):  # the file is not touched again; a torn line is cut off at the next opening
                    os.ftruncate(self._descriptor, self._size)
                raise self._failure from error
            self._seq += len(entries)
            self._size += len(lines)

    def close(self) -> None:
        """Gives the lock back."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self, lines: bytes) -> None:
        written = os.write(self._descriptor, lines)
        if written != len(lines):  # a disk that is nearly full takes a part
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class NoJournal:
    """For runs that keep no session."""

    def append(self, *entries: Entry, sync: bool = True) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """There is nothing to close."""


def lock_file(descriptor: int) -> None:
    """Until it is closed. Raises SessionLockedError; and FileNotFoundError where another run's end has removed it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SessionLockedError from None
    if os.fstat(descriptor).st_nlink == 0:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _read_all(descriptor: int) -> bytes:
    with open(descriptor, "rb", closefd=False) as file:
        return file.read()


def _set_aside(path: Path, torn: bytes) -> None:
    descriptor = os.open(
        path.with_suffix(".torn"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
    )
    with open(descriptor, "wb") as file:  # noqa: PTH123 - it is open already
        file.write(torn)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
