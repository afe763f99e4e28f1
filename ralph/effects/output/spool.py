"""Write to a file descriptor without ever making the run wait for its reader.

A thread writes; what the reader has not taken is kept up to a bound. A reader that is gone (EPIPE) or never
was (closed descriptor) is no error: the work goes on.
"""

from __future__ import annotations

import errno
import os
import queue
import select
import stat
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ralph.ports import Mailbox, Waiter

# The other side of a pipe, socket or terminal left, or there never was one: it does not want to know.
_READER_IS_GONE = frozenset({errno.EPIPE, errno.EBADF, errno.ECONNRESET, errno.ENXIO})

# A night's events are a few megabytes; a reader further behind than this has stopped reading.
MOST_UNREAD_BYTES = 64 * 1024 * 1024


def is_one_stream(one_fd: int, other_fd: int) -> bool:
    """Whether both lead into the same pipe, socket or file, as after `2>&1`. A terminal is read by a person: it does not count."""
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
        """Why bytes were lost although nobody had turned away: a full disk, a broken device."""
        self.dropped_writes = 0
        """Writes left out because the reader was too far behind."""
        threading.Thread(target=self._work, name=f"ralph-spool-{fd}", daemon=True).start()

    def write(self, data: bytes, *, must_arrive: bool = False) -> None:
        """Queue one write, whole. `must_arrive`: keep it even over the bound (the result)."""
        with self._lock:
            if self._unread_bytes + len(data) > self._most_unread_bytes and not must_arrive:
                self.dropped_writes += 1
                return
            self._unread_bytes += len(data)
        self._queue.put(data)

    @property
    def unread_bytes(self) -> int:
        with self._lock:
            return self._unread_bytes

    def drain(self, waiter: Waiter, until_s: float) -> None:
        """Wait until everything was written, or `until_s`. Raises `Interrupted`."""
        drained = waiter.mailbox()
        self._queue.put(drained)
        waiter.wait(drained, until_s=until_s, waiting_for="a reader of the output")

    def _work(self) -> None:
        while True:
            item = self._queue.get()
            if not isinstance(item, bytes):
                item.put(True)
                continue
            if not self._is_broken:
                self._write(item)
            with self._lock:
                self._unread_bytes -= len(item)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                try:
                    view = view[os.write(self._fd, view) :]
                except BlockingIOError:
                    # Whoever shares the pipe has made it non-blocking for all of us.
                    poll = select.poll()
                    poll.register(self._fd, select.POLLOUT)
                    poll.poll()
        except OSError as error:
            self._is_broken = True
            if not self._has_left(error):
                self.failure = error

    def _has_left(self, error: OSError) -> bool:
        """A terminal that was closed says EIO, and so does a disk that fails."""
        if error.errno == errno.EIO:
            return stat.S_ISCHR(os.fstat(self._fd).st_mode)
        return error.errno in _READER_IS_GONE
