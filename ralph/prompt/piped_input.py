"""Reads a pipe or a file to its end. Only the wait for the first byte has a time limit. If none arrives in time, ralph takes
nothing, and another program that reads the pipe finds all data.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import termios
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.machine.starting import patiently, start_thread
from ralph.values.ports import TIMED_OUT, Mailbox
from ralph.values.shortage import ShortageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.prompt.prompt_input import InputWait

SAYS_SO_AFTER_S = 3.0
"""Then the user, who may not know that there is a pipe, gets a notice that ralph is waiting."""
_CHUNK_BYTES = 65_536


class PipedData(Struct, frozen=True):
    data: bytes
    error: OSError | None = None
    """The error that ended the reading early."""


class SilentPipe(Struct, frozen=True):
    """A pipe on standard input that sent no byte in time, and from which nothing was read."""

    fd: int
    waited_s: float

    @property
    def notice(self) -> str:
        return (
            f"standard input is an open pipe, and no data arrived within {self.waited_s:g}s: ralph ignores it, and data that "
            "arrives later; if there is no input, start ralph with </dev/null; else raise clocks.input_s"
        )

    @property
    def refusal(self) -> str:
        """The error for data that arrived after ralph had stopped waiting, and would be missing in the prompt."""
        return (
            f"data arrived on standard input after {self.waited_s:g}s of silence, when ralph had stopped waiting: nothing was "
            "sent to the model; raise clocks.input_s, or, if the data is not for ralph, start it with </dev/null"
        )

    @property
    def in_the_end(self) -> tuple[str, ...]:
        """Notices for the result: that no data arrived in time, and how many bytes have since then."""
        count = self.unread_bytes()
        arrived = "1 byte" if count == 1 else f"{count:,} bytes"
        later = (f"{arrived} arrived on standard input later and were not read",) if count else ()
        return (self.notice, *later)

    def unread_bytes(self) -> int:
        """The number of bytes that have arrived, or 0 if the system cannot tell."""
        try:
            answer = fcntl.ioctl(self.fd, termios.FIONREAD, struct.pack("i", 0))
        except OSError:
            return 0
        (count,) = struct.unpack("i", answer)
        return int(count)


class InputReader:
    """Reads the input from one descriptor, once."""

    def __init__(self, wait: InputWait, fd: int, name: str, *, most_bytes: int, advice: str = "") -> None:
        """`name` stands for the input in messages. Reading stops after `most_bytes`. `advice` ends the notice about a long wait."""
        self._wait = wait
        self._fd = fd
        self._name = name
        self._most_bytes = most_bytes
        self._advice = advice
        self._says_so_at_s: float | None = wait.clock.now_s() + SAYS_SO_AFTER_S

    def read(self) -> PipedData | None:
        """Reads the whole input, or a little more than `most_bytes`. Returns None if no byte and no end came in time. Raises
        Interrupted, and ShortageError if the machine lacks a thread or memory.
        """
        if not _is_readable(self._fd) and not self._has_something():
            return None
        mailbox = self._wait.waiter.mailbox()
        self._start(_read_chunks, self._fd, mailbox, self._most_bytes)
        data = bytearray()
        while True:
            so_far = f"{len(data):,} bytes so far"
            chunk = self._next(mailbox, None, f"the end of {self._name}", so_far)
            if isinstance(chunk, MemoryError):
                raise ShortageError("memory") from chunk
            if isinstance(chunk, OSError):
                return PipedData(bytes(data), chunk)
            data += chunk
            if not chunk or len(data) > self._most_bytes:
                mailbox.close()
                return PipedData(bytes(data))

    def _has_something(self) -> bool:
        seconds = self._wait.first_byte_s
        until_s = self._wait.clock.now_s() + seconds if seconds > 0 else None
        limit = f"{seconds:g}s at most" if seconds > 0 else "without a limit"
        mailbox = self._wait.waiter.mailbox()
        self._start(_watch, self._fd, mailbox)
        spoke = self._next(mailbox, until_s, f"the first byte of {self._name}", f"{limit}, clocks.input_s")
        mailbox.close()
        return spoke is not TIMED_OUT or _is_readable(self._fd)

    def _next(self, mailbox: Mailbox, until_s: float | None, waiting_for: str, about: str) -> Any:
        waiter, says_so_at_s = self._wait.waiter, self._says_so_at_s
        if says_so_at_s is not None and (until_s is None or says_so_at_s < until_s):
            item = waiter.wait(mailbox, until_s=says_so_at_s, waiting_for=waiting_for)
            if item is not TIMED_OUT:
                return item
            self._says_so_at_s = None
            self._wait.tell(f"waiting for {waiting_for} ({about}){self._advice}")
        return waiter.wait(mailbox, until_s=until_s, waiting_for=waiting_for)

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        def start() -> None:
            start_thread(work, *arguments, name="ralph-input")

        patiently(start, self._wait.waiter, self._wait.clock)


def _poll(fd: int, timeout_ms: int | None) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout_ms))


def _is_readable(fd: int) -> bool:
    return _poll(fd, 0)


def _watch(fd: int, mailbox: Mailbox) -> None:
    """Runs in a thread, which may last until the process ends."""
    _poll(fd, None)
    mailbox.put(True)


def _read_chunks(fd: int, mailbox: Mailbox, most_bytes: int) -> None:
    """Runs in a thread, until the input ends or has more than `most_bytes`."""
    read_bytes = 0
    while read_bytes <= most_bytes:
        try:
            chunk = os.read(fd, _CHUNK_BYTES)
        except BlockingIOError:  # another process that shares the pipe has made it non-blocking for all
            _poll(fd, None)
            continue
        except (OSError, MemoryError) as error:
            mailbox.put(error)
            return
        mailbox.put(chunk)
        read_bytes += len(chunk)
        if not chunk:
            return
