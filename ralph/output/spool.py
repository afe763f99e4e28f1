"""Writes to a file descriptor without making the run wait for its reader.

A thread writes; unread data is kept up to a limit. A reader that has gone (EPIPE) or never existed (closed
descriptor) is no error: the run continues. If the machine has no thread left, the data waits for one, and at
the end the main thread writes it: a missing thread must not cost the result.
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

# The other side of a pipe, socket or terminal left, or there never was one: it does not want to know.
_READER_IS_GONE = frozenset({errno.EPIPE, errno.EBADF, errno.ECONNRESET, errno.ENXIO})

# A night's events are a few megabytes; a reader further behind than this has stopped reading.
MOST_UNREAD_BYTES = 64 * 1024 * 1024

# A pipe that is ready takes this much without blocking (PIPE_BUF on Linux; POSIX asks for 512).
_SURE_BYTES = min(select.PIPE_BUF, 4096)
_LOOK_EVERY_S = 0.02
_A_READER = "a reader of the output"


def is_one_stream(one_fd: int, other_fd: int) -> bool:
    """Whether both descriptors lead to the same pipe, socket or file, as after `2>&1`.

    False for a terminal.
    """
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
        """The error that lost data although the reader had not gone (a full disk, a broken device); None: there was
        no such error."""
        self.dropped_writes = 0
        """Writes that were dropped because the reader was too far behind."""
        self._has_thread = False
        self._rest = memoryview(b"")
        """The unwritten rest of a write that the main thread has started."""
        self._start_thread()

    def write(self, data: bytes, *, must_arrive: bool = False) -> None:
        """Queues one write. With `must_arrive`, as for the result, the data is kept even beyond the limit of unread
        bytes.
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
        """Waits until everything is written, at most until `until_s`. Raises `Interrupted`."""
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
        while True:
            self._handle(self._queue.get())

    def _handle(self, item: bytes | Mailbox) -> None:
        if not isinstance(item, bytes):
            item.put(True)
            return
        if not self._is_broken:
            self._write(memoryview(item))
        with self._lock:
            self._unread_bytes -= len(item)

    def _write_here(self, waiter: Waiter, clock: Clock, until_s: float) -> None:
        """Writes the queue from the main thread, in pieces small enough never to block.

        Raises `Interrupted`.
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
        """Whether the error means that the reader has gone.

        EIO means so only for a terminal: a failing disk reports it too.
        """
        if error.errno == errno.EIO:
            return stat.S_ISCHR(os.fstat(self._fd).st_mode)
        return error.errno in _READER_IS_GONE
