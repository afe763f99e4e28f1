"""A session's journal, which is a file that records are appended to.

`append` writes its records with one system call. It returns when they are on disk, unless the caller passes
`sync=False`. If the disk is full and only a part of the records is written, this part is removed before the error is
raised.

`FileTurnLock` is a lock file that another program shares with ralph, as the environment variable RALPH_TURN_LOCK asks. Ralph
holds a shared `flock` on the file while it may change files. The other program takes an exclusive one to copy the files and
the journal at a moment when the two agree.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.conversation.journal_lines import CheckedLines, chunks, line_of
from ralph.conversation.records import EndedRecord, MovedRecord, Record, RunRecord, SessionRecord
from ralph.machine.files.opened_file import open_regular_file
from ralph.values.credentials import TURN_LOCK
from ralph.values.outcome import CannotError
from ralph.values.ports import GuardRefused, JournalError, Waiter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ralph.values.redaction import SpansOf

# macOS has no fdatasync.
_sync = getattr(os, "fdatasync", os.fsync)

Take = Callable[[Iterator[tuple[int, bytes]]], object]
"""Takes the lines of a journal, each with its index."""

_LOCK_TRIES, _LOCK_PAUSE_S = 10, 0.005


class SessionLockedError(Exception):
    """Another process has the journal open."""


class FileJournal:
    """A journal that is open for appending and locked against other processes. Safe to use from several threads."""

    def __init__(
        self, path: Path, descriptor: int, found: CheckedLines | None = None, *, spans_of: SpansOf | None
    ) -> None:
        """`found` has checked the lines that are in the file. None if the file is empty. `spans_of` finds the
        secrets in a text, so that each line can say where they are. None if nobody looks for secrets.
        """
        self.path = path
        self._lacks_break = found is not None and found.lacks_break
        self._descriptor = descriptor
        self._seq = 0 if found is None else found.number
        self._size = 0 if found is None else found.end
        self._run_offset: int | None = None
        """The offset of the current run's first line. None if no run is in progress."""
        self._lock = threading.Lock()
        self._failure: JournalError | None = None
        self._spans_of = spans_of

    @classmethod
    def create(cls, path: Path, spans_of: SpansOf | None = None) -> FileJournal:
        """Creates an empty journal. Raises JournalError if that fails, for example because the file exists."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
            lock_patiently(descriptor)  # `ralph sessions` may lock it between the two calls
            _sync_directory(path.parent)
        except OSError as error:
            raise JournalError(path, error) from error
        except SessionLockedError:
            os.close(descriptor)
            raise JournalError(path, BlockingIOError(errno.EAGAIN, "in use by another process")) from None
        return cls(path, descriptor, spans_of=spans_of)

    @classmethod
    def open(
        cls,
        path: Path,
        take: Take | None = None,
        *,
        is_for_reading: bool = False,
        spans_of: SpansOf | None = None,
    ) -> FileJournal:
        """Opens and locks an existing journal, and checks its lines. Does not change the file. `take` gets the lines.
        If the last line is incomplete, `take` does not get it, and `fix` can repair it later. Raises
        SessionLockedError, JournalDamage, JournalError, and what `take` raises.
        """
        try:
            descriptor = _open(path, is_for_reading=is_for_reading)
        except OSError as error:
            raise JournalError(path, error) from error
        try:
            lock_patiently(descriptor)
            checked = CheckedLines(partial(os.pread, descriptor), os.fstat(descriptor).st_size)
            lines = ((number, line) for number, _, _, line in checked)
            if take is not None:
                take(lines)
            deque(lines, maxlen=0)  # those that are left
        except OSError as error:
            os.close(descriptor)
            raise JournalError(path, error) from error
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor, checked, spans_of=spans_of)

    def fix(self) -> None:
        """Repairs the end of the journal. If the last line is complete except for its line break, adds the line
        break. Moves an incomplete line to a new `.torn` file beside the journal. Raises JournalError.
        """
        try:
            if os.fstat(self._descriptor).st_size > self._size:
                self._set_aside()
                os.ftruncate(self._descriptor, self._size)
            if self._lacks_break:
                os.write(self._descriptor, b"\n")
                self._size += 1
            _sync(self._descriptor)
        except OSError as error:
            raise JournalError(self.path, error) from error

    def _set_aside(self) -> None:
        """Copies the incomplete line to a new `.torn` file and syncs it to disk. Does not overwrite an earlier file."""
        names = chain([".torn"], (f".{number}.torn" for number in count(2)))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        for name in names:
            with suppress(FileExistsError):
                descriptor = os.open(self.path.with_suffix(name), flags, 0o600)
                break
        with open(descriptor, "wb") as file:  # noqa: PTH123 - it is open already
            file.writelines(chunks(self.read, self._size, os.fstat(self._descriptor).st_size))
            file.flush()
            _sync(file.fileno())
        _sync_directory(self.path.parent)

    @property
    def is_gone(self) -> bool:
        """Whether the file has been deleted. The session can then not be resumed."""
        try:
            return os.fstat(self._descriptor).st_nlink == 0
        except OSError:
            return True

    def append(self, *records: Record, sync: bool = True) -> None:
        """Writes all records or none. Raises JournalError. After a failure, every later call raises the same error."""
        with self._lock:
            self._write_whole([self._lines_of(records)], len(records), sync=sync)

    def _lines_of(self, records: Sequence[Record]) -> bytes:
        """Encodes the next records as lines. The record of a run's end gets the number of bytes since the run's
        first line, so that a list of sessions can skip the lines between. An offset would be wrong in a fork, whose
        first line has another length.
        """
        lines = b""
        for seq, record in enumerate(records, self._seq):
            offset = self._size + len(lines)
            if isinstance(record, RunRecord):
                self._run_offset = offset
            elif isinstance(record, EndedRecord) and self._run_offset is not None:
                record = replace(record, run_bytes=offset - self._run_offset)  # noqa: PLW2901 - the line differs in this
                self._run_offset = None
            lines += line_of(seq, record, time.time(), self._spans_of)
        return lines

    def read(self, most: int, offset: int) -> bytes:
        """Reads bytes of the file, as `journal_lines.Read` says. Raises JournalError."""
        try:
            return os.pread(self._descriptor, most, offset)
        except OSError as error:
            raise JournalError(self.path, error) from error

    def lines_behind_first(self) -> Iterator[bytes]:
        """The bytes of all complete lines except the first one, in chunks. Raises JournalError."""
        is_behind = False
        for chunk in chunks(self.read, 0, self._size):
            yield chunk if is_behind else chunk.partition(b"\n")[2]
            is_behind = is_behind or b"\n" in chunk
        if self._lacks_break:
            yield b"\n"

    def begin_as_fork(
        self, opening: SessionRecord, lines: Iterable[bytes], move: MovedRecord | None = None
    ) -> None:
        """Writes the first record of a fork, then the records that are copied from the old session, as the chunks of
        bytes in `lines`, and then `move`, if the fork is elsewhere. Writes everything or nothing. Raises JournalError.
        """
        now, number = time.time(), 1 + (opening.copied or 0)
        end = b"" if move is None else line_of(number, move, now)
        with self._lock:
            self._write_whole(
                chain([line_of(0, opening, now)], lines, [end]), number + (move is not None), sync=True
            )

    def _write_whole(self, pieces: Iterable[bytes], number: int, *, sync: bool) -> None:
        if self._failure is not None:
            raise self._failure
        size = self._size
        try:
            for piece in pieces:
                self._write(piece)
                size += len(piece)
            if sync:
                _sync(self._descriptor)
        except (OSError, JournalError) as error:
            self._failure = error if isinstance(error, JournalError) else JournalError(self.path, error)
            # If this fails too, `fix` removes the incomplete line when the journal is opened again.
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            raise self._failure from error
        self._seq += number
        self._size = size

    def close(self) -> None:
        """Closes the file, which releases the lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self, lines: bytes) -> None:
        written = os.write(self._descriptor, lines)
        if written != len(lines):  # a disk that is nearly full takes only a part
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class NoJournal:
    """The journal of a run that does not store its session. Ignores all records."""

    def append(self, *records: Record, sync: bool = True) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


def lock_file(descriptor: int) -> None:
    """Locks the file until it is closed. Raises SessionLockedError if another process has locked it, and
    FileNotFoundError if the file was deleted in the meantime.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SessionLockedError from None
    if os.fstat(descriptor).st_nlink == 0:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _open(path: Path, *, is_for_reading: bool) -> int:
    """Opens the file for writing if permissions allow that, even if `is_for_reading` is True, because some network
    file systems lock only files that are open for writing.
    """
    try:
        return open_regular_file(path, os.O_RDWR | os.O_APPEND)
    except OSError as error:
        if not is_for_reading or error.errno not in {errno.EROFS, errno.EACCES, errno.EPERM}:
            raise
    return open_regular_file(path)


def lock_patiently(descriptor: int) -> None:
    """Locks the file. If another process has locked it, tries again for a short time, because `ralph sessions`
    locks a journal only for a moment.
    """
    for _ in range(_LOCK_TRIES):
        with suppress(SessionLockedError):
            lock_file(descriptor)
            return
        time.sleep(_LOCK_PAUSE_S)
    lock_file(descriptor)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- The turn lock

_TRY_EVERY_S = 0.02


class TurnLockError(CannotError):
    """The file cannot be opened or locked. The message is one line."""

    def __init__(self, path: str, why: str | None) -> None:
        super().__init__(f"cannot lock {path} ({TURN_LOCK}): {why}")


class FileTurnLock:
    """Implements the `TurnLock` port with a file."""

    def __init__(self, path: str, waiter: Waiter) -> None:
        """Opens the file, which must exist, and tries the lock. Raises TurnLockError, also if `path` is relative: a
        relative path would depend on the working directory.
        """
        if not Path(path).is_absolute():
            raise TurnLockError(path, "the path is not absolute")
        self._path = path
        self._waiter = waiter
        self._descriptor = -1
        try:
            # Without blocking, because the file may be a FIFO. A command does not inherit the descriptor.
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self._try()
            self.release()
        except OSError as error:
            self.close()
            raise TurnLockError(path, error.strerror) from error

    def take(self) -> None:
        try:
            while not self._try():
                self._waiter.sleep(_TRY_EVERY_S, waiting_for="the turn lock")
        except OSError as error:
            raise GuardRefused(str(TurnLockError(self._path, error.strerror))) from error

    def release(self) -> None:
        # Not by closing the file: a process that is just being started may have a copy of the descriptor.
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Closes the file, which also releases the lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _try(self) -> bool:
        """Takes the lock if no other program holds it exclusively. Returns whether the lock is held."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
