"""Writes to a file descriptor without making the run wait for the reader.

A thread writes the data. Data that the reader has not taken yet is kept up to a limit. If the reader has closed its
end (EPIPE), or if the descriptor is closed, the run continues without an error. If the machine has no free thread,
the data is kept until there is one. At the end, the main thread writes the remaining data, so that the result is not
lost.
"""

from __future__ import annotations

import errno
import os
import queue
import select
import stat
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from ralph.machine.starting import start_thread
from ralph.values.shortage import ShortageError

if TYPE_CHECKING:
    from ralph.values.ports import Clock, Mailbox, Waiter

# The reader of a pipe, socket or terminal has closed it, or there never was a reader.
_READER_IS_GONE = frozenset({errno.EPIPE, errno.EBADF, errno.ECONNRESET, errno.ENXIO})

# The events of an overnight run are a few megabytes. A reader that is further behind has stopped reading.
MOST_UNREAD_BYTES = 64 * 1024 * 1024

# A pipe that is ready takes this much without blocking (PIPE_BUF on Linux; POSIX asks for 512).
_SURE_BYTES = min(select.PIPE_BUF, 4096)
_LOOK_EVERY_S = 0.02
_A_READER = "a reader of the output"


def is_one_stream(one_fd: int, other_fd: int) -> bool:
    """Whether both descriptors refer to the same pipe, socket or file, as after `2>&1`. False for a terminal."""
    try:
        one, other = os.fstat(one_fd), os.fstat(other_fd)
    except OSError:
        return False
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino) and not os.isatty(one_fd)


class Spool:
    def __init__(self, fd: int, most_unread_bytes: int = MOST_UNREAD_BYTES) -> None:
        self._fd = fd
        self._most_unread_bytes = most_unread_bytes
        self._queue: queue.SimpleQueue[bytes | Mailbox] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._unread_bytes = 0
        self._is_broken = False
        self.failure: OSError | None = None
        """The error that caused a loss of data, such as a full disk, or None. A reader that has closed its end
        causes no such error."""
        self.dropped_writes = 0
        """The number of writes that were dropped because too much data was unread."""
        self._has_thread = False
        self._rest = memoryview(b"")
        """The rest of a write that the main thread has begun but not finished yet."""
        self._start_thread()

    def write(self, data: bytes, *, must_arrive: bool = False) -> None:
        """Queues data to be written. If too much data is unread, drops the new data, unless `must_arrive` is True,
        as it is for the result.
        """
        with self._lock:
            if self._unread_bytes + len(data) > self._most_unread_bytes and not must_arrive:
                self.dropped_writes += 1
                return
            self._unread_bytes += len(data)
        self._queue.put(data)
        if not self._has_thread:
            self._start_thread()

    @property
    def has_lost_reader(self) -> bool:
        """Whether the reader has closed its end."""
        return self._is_broken and self.failure is None

    @property
    def unread_bytes(self) -> int:
        with self._lock:
            return self._unread_bytes

    def drain(self, waiter: Waiter, clock: Clock, until_s: float) -> None:
        """Waits until everything is written, or until the time `until_s` of `clock`. Raises `Interrupted`."""
        drained = waiter.mailbox()
        self._queue.put(drained)
        if not self._has_thread:
            self._start_thread()
        if not self._has_thread:
            self._write_here(waiter, clock, until_s)
        waiter.wait(drained, until_s=until_s, waiting_for=_A_READER)

    def _start_thread(self) -> None:
        with suppress(ShortageError):  # the next write tries again
            start_thread(self._work, name=f"ralph-spool-{self._fd}")
            self._has_thread = True

    def _work(self) -> None:
        self._handle(bytes(self._rest))
        item = self._queue.get()
        while True:
            following = None
            if isinstance(item, bytes):
                item, following = self._joined(item)
            self._handle(item)
            item = self._queue.get() if following is None else following

    def _joined(self, first: bytes) -> tuple[bytes, bytes | Mailbox | None]:
        """Joins `first` with the next items of the queue, up to the size that a pipe accepts in one indivisible
        write. In a larger write, output of another program could land in the middle of a line.

        Returns the joined bytes, and the next item if it was taken from the queue but not joined, otherwise None.
        """
        parts, size = [first], len(first)
        while size < _SURE_BYTES:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                break
            if not isinstance(item, bytes) or size + len(item) > _SURE_BYTES:
                return b"".join(parts), item
            parts.append(item)
            size += len(item)
        return b"".join(parts), None

    def _handle(self, item: bytes | Mailbox) -> None:
        if not isinstance(item, bytes):
            item.put(True)
            return
        if not self._is_broken:
            self._write(memoryview(item))
        with self._lock:
            self._unread_bytes -= len(item)

    def _write_here(self, waiter: Waiter, clock: Clock, until_s: float) -> None:
        """Writes the queue from the main thread, in pieces that are small enough not to block, until it is empty or
        the time `until_s` has come. Raises `Interrupted`.
        """
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        nobody = waiter.mailbox()
        while self._rest or not self._queue.empty():
            if not self._rest:
                item = self._queue.get()
                if not isinstance(item, bytes):
                    item.put(True)
                    continue
                self._rest = memoryview(item)
            if self._is_broken or poll.poll(0):
                piece, self._rest = self._rest[:_SURE_BYTES], self._rest[_SURE_BYTES:]
                self._handle(bytes(piece))
            elif clock.now_s() >= until_s:
                return
            else:
                waiter.wait(nobody, until_s=clock.now_s() + _LOOK_EVERY_S, waiting_for=_A_READER)

    def _write(self, view: memoryview) -> None:
        try:
            while view:
                try:
                    view = view[os.write(self._fd, view) :]
                except BlockingIOError:
                    # Another process that shares the pipe has made it non-blocking for all.
                    poll = select.poll()
                    poll.register(self._fd, select.POLLOUT)
                    poll.poll()
        except OSError as error:
            self._is_broken = True
            if not self._has_left(error):
                self.failure = error

    def _has_left(self, error: OSError) -> bool:
        """Whether the error means that the reader has closed its end. EIO means it only for a terminal, because a
        failing disk reports EIO too.
        """
        if error.errno == errno.EIO:
            return stat.S_ISCHR(os.fstat(self._fd).st_mode)
        return error.errno in _READER_IS_GONE
