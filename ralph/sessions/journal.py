"""A session's journal: an append-only file, one write for each batch of records, synced before it is believed.

It is the truth about a session: what it holds was there before anybody was told. It never holds half a line: a write
that the disk cuts short is taken back before the error leaves.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from contextlib import suppress
from itertools import chain, count
from typing import TYPE_CHECKING

from ralph.conversation.journal_lines import JournalReading, line_of, read_lines
from ralph.values.ports import JournalError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ralph.conversation.records import Record, SessionRecord

# macOS has no fdatasync.
_sync = getattr(os, "fdatasync", os.fsync)

_LOCK_TRIES, _LOCK_PAUSE_S = 10, 0.005


class SessionLockedError(Exception):
    """Another process has the journal open."""


class FileJournal:
    """Open for appending, locked against every other process. Safe to use from several threads."""

    def __init__(
        self, path: Path, descriptor: int, found: JournalReading | None = None, size: int = 0
    ) -> None:
        found = found or JournalReading(())
        self.path = path
        self.records: Sequence[Record] = found.records
        """The records that it held when it was opened."""
        self._torn, self._lacks_break = found.torn, found.lacks_break
        self._descriptor = descriptor
        self._seq = len(found.records)
        self._size = size
        self._lock = threading.Lock()
        self._failure: JournalError | None = None

    @classmethod
    def create(cls, path: Path) -> FileJournal:
        """Raises JournalError, FileExistsError included, when it cannot be made."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
            _lock_patiently(descriptor)  # somebody may look into it in the moment between the two
            _sync_directory(path.parent)
        except OSError as error:
            raise JournalError(path, error) from error
        except SessionLockedError:
            os.close(descriptor)
            raise JournalError(path, BlockingIOError(errno.EAGAIN, "in use by another process")) from None
        return cls(path, descriptor)

    @classmethod
    def open(cls, path: Path, *, is_for_reading: bool = False) -> FileJournal:
        """The journal as it was left, under the lock. Nothing of it is changed before `mend`.

        Raises SessionLockedError, NewerFormatError, JournalDamage, and JournalError.
        """
        try:
            descriptor = _open(path, is_for_reading=is_for_reading)
        except OSError as error:
            raise JournalError(path, error) from error
        try:
            _lock_patiently(descriptor)
            data = _read_all(descriptor)
            reading = read_lines(data)
        except OSError as error:
            os.close(descriptor)
            raise JournalError(path, error) from error
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor, reading, len(data) - len(reading.torn))

    def mend(self) -> None:
        """Cuts off a torn end and keeps it in a file beside the journal, as `.torn`. Raises JournalError."""
        try:
            if self._torn:
                _set_aside(self.path, self._torn)
                os.ftruncate(self._descriptor, self._size)
            if self._lacks_break:
                os.write(self._descriptor, b"\n")
                self._size += 1
            _sync(self._descriptor)
        except OSError as error:
            raise JournalError(self.path, error) from error

    @property
    def is_gone(self) -> bool:
        """It has no name any more: somebody has deleted it, and nothing can be resumed from it."""
        try:
            return os.fstat(self._descriptor).st_nlink == 0
        except OSError:
            return True

    def append(self, *records: Record, sync: bool = True) -> None:
        """Write the records, whole or not at all. After a failure every further call fails the same way."""
        with self._lock:
            self._write_whole(b"".join(map(line_of, count(self._seq), records)), len(records), sync=sync)

    def lines_behind_first(self) -> bytes:
        """The whole lines behind the first one, as they are on the disk. Raises JournalError."""
        try:
            with open(self._descriptor, "rb", closefd=False) as file:
                file.seek(0)
                file.readline()
                lines = file.read(self._size - file.tell())
        except OSError as error:
            raise JournalError(self.path, error) from error
        return lines + b"\n" if self._lacks_break else lines

    def begin_as_fork(self, opening: SessionRecord, lines: bytes, copied: int) -> None:
        """Write a fork's first record and behind it the lines of the old session, whole or not at all."""
        with self._lock:
            self._write_whole(line_of(0, opening) + lines, 1 + copied, sync=True)

    def _write_whole(self, lines: bytes, number: int, *, sync: bool) -> None:
        if self._failure is not None:
            raise self._failure
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
        self._seq += number
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

    def append(self, *records: Record, sync: bool = True) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """There is nothing to close."""


def lock_file(descriptor: int) -> None:
    """Locks the file until it is closed. Raises SessionLockedError; and FileNotFoundError where another run's
    end has removed it.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SessionLockedError from None
    if os.fstat(descriptor).st_nlink == 0:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _read_all(descriptor: int) -> bytes:
    with open(descriptor, "rb", closefd=False) as file:
        return file.read()


def _open(path: Path, *, is_for_reading: bool) -> int:
    """For reading a file that may be written to is opened so, as some network file systems lock no other."""
    try:
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    except OSError as error:
        if not is_for_reading or error.errno not in {errno.EROFS, errno.EACCES, errno.EPERM}:
            raise
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _lock_patiently(descriptor: int) -> None:
    """Like `lock_file`; who only looks at a journal has it for a moment, and is waited for."""
    for _ in range(_LOCK_TRIES):
        with suppress(SessionLockedError):
            lock_file(descriptor)
            return
        time.sleep(_LOCK_PAUSE_S)
    lock_file(descriptor)


def _set_aside(path: Path, torn: bytes) -> None:
    """Writes the torn end to disk before it leaves the journal, and never over an earlier one."""
    names = chain([".torn"], (f".{number}.torn" for number in count(2)))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    for name in names:
        with suppress(FileExistsError):
            descriptor = os.open(path.with_suffix(name), flags, 0o600)
            break
    with open(descriptor, "wb") as file:  # noqa: PTH123 - it is open already
        file.write(torn)
        file.flush()
        _sync(file.fileno())
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
