"""Waits for a supervised command to end, keeps its output, and limits its time and its output. If ralph gets a signal, it stops the
command too. At the end, every remaining process of the command is killed.

The thread that waits also reads the output, until the capture writes to a file: then a thread takes over the reading, because
a file system may not answer. `OutputCapture` keeps the beginning and the end of the output in memory, and writes long output
completely to a file. Credentials are redacted before output is stored, even if one arrives in two pieces.
"""

from __future__ import annotations

import codecs
import enum
import math
import os
import re
import select
from collections import deque
from contextlib import suppress
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any, Protocol, Self

from msgspec import Struct

from ralph.machine.starting import start_job, start_thread
from ralph.values.answer import os_error_text
from ralph.values.outcome import ShortageError
from ralph.values.ports import TIMED_OUT, Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.machine.command_supervisor import SupervisedCommand
    from ralph.machine.files.trees import SpillDirectory
    from ralph.values.ports import Clock, Mailbox, Waiter
    from ralph.values.redaction import Redactor

_CHUNK_BYTES = 65_536
# An escaped process may keep the output open for ever, so reading ends soon after the command has ended.
OUTPUT_AFTER_END_S = 1.0
_READER_LOOKS_UP_EVERY_MS = 100
_MOST_ERROR_BYTES = 8_192
# Time beyond the grace, for the launcher to kill processes that ignored SIGTERM.
LAUNCHER_MARGIN_S = 3.0
KILL_S = 2.0
# Of the time for a stop, the part that is kept for killing what a launcher did not end.
TO_KILL_S = 1.0
KILL_AGAIN_EVERY_S = 0.01


class Capture(Protocol):
    """Receives a command's output. One thread at a time calls `feed`, and after it has stopped, another one `close`."""

    def fits_in_memory(self, size: int) -> bool:
        """Whether `feed` only needs memory for a chunk of `size` bytes. Otherwise `feed` may wait for a file system."""
        ...

    def feed(self, chunk: bytes) -> bool:
        """Adds a chunk of output. Returns False if there is too much output, so that the command is stopped."""
        ...

    def close(self) -> None: ...


class MemoryCapture:
    """A `Capture` that keeps all output in memory. `feed` returns False if the output exceeds `most_bytes`."""

    def __init__(self, most_bytes: int) -> None:
        self.data = bytearray()
        self._most_bytes = most_bytes

    def feed(self, chunk: bytes) -> bool:
        self.data += chunk
        return len(self.data) <= self._most_bytes

    def fits_in_memory(self, size: int) -> bool:  # noqa: ARG002 - see `Capture`
        return True

    def close(self) -> None:
        """Does nothing, because there is nothing to release."""


class KeptErrors:
    """A pipe for the standard error of a command, which may print without end: the beginning and the end are kept."""

    def __init__(self) -> None:
        """Raises OSError and ShortageError."""
        self._beginning, self._end, self._is_cut = b"", b"", False
        self._reading, self.fileno = os.pipe2(os.O_CLOEXEC)
        try:
            self._thread = start_thread(self._take, name="errors of a command")
        except BaseException:
            os.close(self._reading)
            os.close(self.fileno)
            raise

    def _take(self) -> None:
        with os.fdopen(self._reading, "rb", buffering=0) as pipe:
            while chunk := pipe.read(_MOST_ERROR_BYTES):
                space = _MOST_ERROR_BYTES - len(self._beginning)
                end = self._end + chunk[space:]
                self._beginning, self._end = self._beginning + chunk[:space], end[-_MOST_ERROR_BYTES:]
                self._is_cut |= len(end) > len(self._end)

    def read(self) -> bytes:
        """The beginning and the end of what was printed. Called once, when the command has ended."""
        os.close(self.fileno)
        self.fileno = -1
        self._thread.join(OUTPUT_AFTER_END_S)
        return self._beginning + (b"\n[...]\n" if self._is_cut else b"") + self._end

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.fileno >= 0:
            os.close(self.fileno)


NEVER_STARTED = -256
"""The status of a command that was never started, because the supervisor was gone."""
ELSEWHERE = -257
"""The status of a command that was never started, because its working directory was removed or replaced."""


class EndCause(enum.Enum):
    BY_ITSELF = enum.auto()
    TIMED_OUT = enum.auto()
    TOO_MUCH_OUTPUT = enum.auto()
    TOO_MANY_PROCESSES = enum.auto()
    TOO_MUCH_MEMORY = enum.auto()
    WITHOUT_SUPERVISOR = enum.auto()
    NEVER_STARTED = enum.auto()
    ELSEWHERE = enum.auto()


STARTER_GONE = "the process that starts commands is gone"
"""Nobody has seen why: the command itself, an earlier one, the kernel or a person may have ended it."""
UNSEEN_END = "how it ended is unknown, as the process that supervised it is gone"
STILL_RUNS = "something it started could not be stopped and still runs"

_WITHOUT_STATUS = {NEVER_STARTED: EndCause.NEVER_STARTED, ELSEWHERE: EndCause.ELSEWHERE}


class CommandEnding(Struct, frozen=True):
    how: EndCause
    status: int = 0
    """The exit code, or 128 + n if signal n killed the command. Valid only if the command ended by itself."""
    is_all_gone: bool = True
    """False if a process that the command started could not be killed: it is another user's, or is stuck in the kernel."""
    blocked_by: str = ""
    """The path of the file for which the command would have waited for ever, so that it was stopped before its time limit."""
    stopped: int = 0
    """The number of processes that it left running, so that they were stopped."""

    @property
    def rest(self) -> str:
        """The end of a sentence about the command: whether its other processes were stopped."""
        return "all it had started was stopped" if self.is_all_gone else STILL_RUNS


class BlockSearch(Struct, frozen=True):
    """A search for what keeps a command from its end. It is made on a thread, if the command takes long."""

    after_s: float
    """The seconds after which the search begins."""
    find: Callable[[Callable[[], bool]], str | None]
    """Returns the path of a file for which the command waits, or other words, or None if there is nothing. Its argument returns True
    as soon as the command has ended."""


class _News(enum.Enum):
    OUTPUT = enum.auto()
    REPORT = enum.auto()
    OUTPUT_ENDED = enum.auto()
    TOO_MUCH_OUTPUT = enum.auto()
    INTERRUPTED = enum.auto()


def is_killed(kill_what_is_left: Callable[[], bool], clock: Clock, wait: Callable[[float], object]) -> bool:
    """Calls `kill_what_is_left` until it returns True, for at most `KILL_S`. `wait` waits until a time. Returns whether all is gone."""
    deadline_s = clock.now_s() + KILL_S
    while not kill_what_is_left():
        if clock.now_s() >= deadline_s:
            return False
        wait(clock.now_s() + KILL_AGAIN_EVERY_S)
    return True


class RunningCommand:
    def __init__(self, process: SupervisedCommand, capture: Capture, *, waiter: Waiter, clock: Clock) -> None:
        self._process = process
        self._capture = capture
        self._waiter = waiter
        self._clock = clock
        self._mailbox = waiter.mailbox()
        self._status: int | None = None
        self._has_output_ended = False
        self._has_ended = False
        """Whether nothing is awaited any more. A thread looks at it."""
        self._blocked_by = ""
        self._interrupted: Interrupted | None = None
        self._reading_thread: _ReadingThread | None = None

    def run(self, limit_s: float, waiting_for: str, search: BlockSearch | None = None) -> CommandEnding:
        """Waits up to `limit_s` seconds for the end, and then stops the command. Also stops it if `search` finds a file that it
        waits for. Kills every remaining process before it returns or raises. Raises Interrupted if a signal arrived.
        """
        try:
            os.set_blocking(self._process.output_descriptor, False)
            self._mailbox.watch(self._process.output_descriptor, _News.OUTPUT)
            self._mailbox.watch(self._process.report_descriptor, _News.REPORT)
            how = self._wait_for_end(limit_s, waiting_for, search)
            if self._status is None:
                self._stop()
        finally:
            self._has_ended = True
            next_item = partial(self._next, waiting_for="the command to stop")
            is_all_gone = is_killed(self._process.kill_what_is_left, self._clock, next_item)
            self._end_output()
        if self._interrupted is not None:
            raise self._interrupted
        if self._reading_thread is not None and self._reading_thread.failure is not None:
            raise self._reading_thread.failure
        if how is EndCause.BY_ITSELF and self._status is not None and self._status < 0:
            how = _WITHOUT_STATUS.get(self._status, EndCause.WITHOUT_SUPERVISOR)
        if how is EndCause.BY_ITSELF and self._process.exceeded is not None:
            how = self._process.exceeded
        return CommandEnding(how, self._status or 0, is_all_gone, self._blocked_by, self._process.stopped)

    def _wait_for_end(self, limit_s: float, waiting_for: str, search: BlockSearch | None) -> EndCause:
        def look(search: BlockSearch) -> None:
            found = search.find(lambda: self._has_ended)
            if found is not None:
                self._mailbox.put(found)

        began_s = self._clock.now_s()
        deadline_s, search_s = began_s + limit_s, began_s + (math.inf if search is None else search.after_s)
        while self._status is None:
            news = self._next(min(deadline_s, search_s), waiting_for)
            if news is TIMED_OUT and search is not None and search_s < deadline_s:
                search_s = math.inf
                with suppress(ShortageError):  # the limit is still there
                    start_job(look, search, name="search for a block")
                continue
            if isinstance(news, str):
                self._blocked_by = news
                return EndCause.TIMED_OUT
            if news is TIMED_OUT:
                return EndCause.TIMED_OUT
            if news is _News.TOO_MUCH_OUTPUT:
                return EndCause.TOO_MUCH_OUTPUT
            if news is _News.INTERRUPTED:
                break
        return EndCause.BY_ITSELF

    def _stop(self) -> None:
        """Asks the processes to end, and waits for the command for `grace_s`, or until a stop must be over or a signal comes."""
        self._process.ask_to_stop()
        limit_s = min(self._process.grace_s + LAUNCHER_MARGIN_S, self._waiter.stop_left_s() - TO_KILL_S)
        deadline_s = self._clock.now_s() + limit_s
        while self._status is None:
            if self._next(deadline_s, "the command to stop") in (TIMED_OUT, _News.INTERRUPTED):
                return

    def _end_output(self) -> None:
        """Reads the rest of the output. If other processes still hold the pipe open, does not wait for them."""
        self._read_on(OUTPUT_AFTER_END_S)
        if self._reading_thread is None:
            self._has_output_ended = True
        else:
            self._reading_thread.stop.set()
            self._read_on(OUTPUT_AFTER_END_S)
        self._mailbox.close()
        if self._has_output_ended:
            self._process.close()
            self._capture.close()

    def _read_on(self, limit_s: float) -> None:
        deadline_s = self._clock.now_s() + limit_s
        while not self._has_output_ended:
            if self._next(deadline_s, "the end of the command's output") is TIMED_OUT:
                return

    def _next(self, until_s: float, waiting_for: str) -> Any:
        """Waits for the next item, acts on it and returns it. A signal is one too: `run` raises Interrupted when nothing is left."""
        try:
            news = self._waiter.wait(self._mailbox, until_s=until_s, waiting_for=waiting_for)
        except Interrupted as interrupted:
            self._interrupted = self._interrupted or interrupted
            return _News.INTERRUPTED
        if news is _News.OUTPUT:
            news = self._read_output()
            # Otherwise a command that prints without end would have no time limit. But its end may be reported already.
            if news is _News.OUTPUT and self._clock.now_s() >= until_s:
                return news if self._hear() else TIMED_OUT
        elif news is _News.REPORT:
            self._hear()
        elif news is _News.OUTPUT_ENDED:
            self._has_output_ended = True
        return news

    def _hear(self) -> bool:
        """Takes the status. True if the command has ended, and that was not known."""
        if self._status is None:
            self._status = self._process.hear()
            if self._status is not None:
                self._mailbox.unwatch(self._process.report_descriptor)
                return True
        return False

    def _read_output(self) -> _News:
        try:
            chunk = os.read(self._process.output_descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return _News.OUTPUT
        if chunk and not self._capture.fits_in_memory(len(chunk)):
            with suppress(ShortageError):  # then this thread reads on, and may have to wait for a file
                self._reading_thread = _ReadingThread(
                    self._process.output_descriptor, self._capture, self._mailbox, chunk
                )
                self._mailbox.unwatch(self._process.output_descriptor)
                return _News.OUTPUT
        is_too_much = bool(chunk) and not self._capture.feed(chunk)
        if is_too_much or not chunk:
            self._mailbox.unwatch(self._process.output_descriptor)
            self._has_output_ended = True
        return _News.TOO_MUCH_OUTPUT if is_too_much else _News.OUTPUT


class _ReadingThread:
    """Reads the rest of the output on a thread. Puts OUTPUT_ENDED into the mailbox at its end, and TOO_MUCH_OUTPUT before if
    there was too much, or the capture failed: nobody would empty the pipe, and the command would wait for ever.
    """

    def __init__(self, descriptor: int, capture: Capture, mailbox: Mailbox, chunk: bytes) -> None:
        """`chunk` is output that was already read. Raises ShortageError if the machine has no free thread."""
        self._descriptor = descriptor
        self._capture = capture
        self._mailbox = mailbox
        self.stop = Event()
        self.failure: Exception | None = None
        """An error of the capture, set when its thread has ended."""
        start_thread(self._read, chunk, name="command output")

    def _read(self, chunk: bytes) -> None:
        try:
            while chunk:
                if not self._capture.feed(chunk):
                    self._mailbox.put(_News.TOO_MUCH_OUTPUT)
                    return
                chunk = self._next_chunk()
        except Exception as error:  # noqa: BLE001 - it is raised on the main thread, when the command has ended
            self.failure = error
            self._mailbox.put(_News.TOO_MUCH_OUTPUT)
        finally:
            self._mailbox.put(_News.OUTPUT_ENDED)

    def _next_chunk(self) -> bytes:
        """Empty if the output has ended or `stop` is set."""
        poller = select.poll()
        poller.register(self._descriptor, select.POLLIN)
        while not self.stop.is_set():
            if poller.poll(_READER_LOOKS_UP_EVERY_MS):
                return os.read(self._descriptor, _CHUNK_BYTES)
        return b""


# ECMA-48: CSI sequences; strings (OSC, DCS, PM, APC, SOS) up to their terminator; other escapes.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|\x1b[ -/]*[0-~]"
)
_OVERSTRIKES = re.compile(r"[^\n\x08]\x08")
_CARRIAGE_RETURNS_AT_END = re.compile(r"\r+\n")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# The characters that `surrogateescape` makes of bytes that are not UTF-8.
_UNDECODABLE = re.compile(r"[\udc80-\udcff]+")


class StreamRedaction:
    """Redacts a stream in chunks. The last bytes, in which a credential could begin, are withheld, and searched again only when
    as many new ones have arrived, so that single bytes cost no more than large chunks. What `redactor` learns meanwhile counts
    too.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = b""
        self._new = bytearray()

    def feed(self, chunk: bytes) -> bytes:
        held_bytes = max(self._redactor.longest_bytes - 1, 0)  # it never becomes less
        if not held_bytes:
            return chunk
        self._new += chunk
        return self._passed_on(held_bytes) if len(self._new) >= held_bytes else b""

    @property
    def held_bytes(self) -> int:
        """The number of bytes that were fed and not yet returned. Redaction may change it."""
        return len(self._held) + len(self._new)

    def end(self) -> bytes:
        return self._passed_on(0)

    def _passed_on(self, kept_bytes: int) -> bytes:
        text = (self._held + self._new).decode("utf-8", "surrogateescape")
        redacted = self._redactor.redact(text).encode("utf-8", "surrogateescape")
        border = max(len(redacted) - kept_bytes, 0)
        self._held = redacted[border:]
        self._new.clear()
        return redacted[:border]


class OutputCapture:
    """Stores the output of one command. One thread writes, and another may read the result after `close()`."""

    def __init__(
        self, *, max_bytes: int, spill_bytes: int, spill: SpillDirectory, redaction: StreamRedaction
    ) -> None:
        self._half_bytes = max(max_bytes // 2, 1)
        self._spill_bytes = spill_bytes
        self._spill = spill
        self._redaction = redaction
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._total_bytes = 0
        self._descriptor: int | None = None
        self._where_the_whole_is = ""

    def fits_in_memory(self, size: int) -> bool:
        # The text in place of a credential may be longer than the credential.
        most_bytes = 2 * (size + self._redaction.held_bytes)
        return self._total_bytes + most_bytes <= self._half_bytes * 2

    def feed(self, chunk: bytes) -> bool:
        """Adds a chunk. Returns False if the whole output now has more than `spill_bytes` bytes."""
        self._keep(self._redaction.feed(chunk))
        return self._total_bytes <= self._spill_bytes

    def close(self) -> None:
        self._keep(self._redaction.end())
        self._close_spill()

    @property
    def has_text(self) -> bool:
        """Whether there is output already, apart from bytes that the redaction withholds."""
        return self._total_bytes > 0

    @property
    def has_output(self) -> bool:
        return self.has_text or self._redaction.held_bytes > 0

    def cut(self, *, is_quiet: bool) -> OutputCapture:
        """Closes this capture, and returns the one for more output. Unless `is_quiet`, the end may be the beginning of a
        credential, and what the redaction withholds comes with the next output.
        """
        if is_quiet:
            self._keep(self._redaction.end())
        self._close_spill()
        sizes = {"max_bytes": 2 * self._half_bytes, "spill_bytes": self._spill_bytes}
        return OutputCapture(**sizes, spill=self._spill, redaction=self._redaction)

    def _close_spill(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def text(self) -> str:
        """The whole output, or if it has more than `max_bytes`, its beginning and end, with a note between them about the bytes
        that were left out and the file with the whole.
        """
        tail = b"".join(self._tail)[-self._half_bytes :]
        if len(self._head) + len(tail) >= self._total_bytes:
            text, invalid = readable_text(bytes(self._head) + tail)
            return _at_most(2 * self._half_bytes, text, invalid) + _note_on(invalid)
        head, tail = _to_border_before(bytes(self._head)), _to_border_after(tail)
        left_out_bytes = self._total_bytes - len(head) - len(tail)
        note = f"[... {left_out_bytes:,} bytes left out{self._where_the_whole_is} ...]"
        head_text, head_invalid = readable_text(head)
        tail_text, tail_invalid = readable_text(tail)
        head_text = _at_most(self._half_bytes, head_text, head_invalid).rstrip("\n")
        tail_text = _at_most(self._half_bytes, tail_text, tail_invalid)
        return f"{head_text}\n{note}\n{tail_text}" + _note_on(head_invalid + tail_invalid)

    def _keep(self, data: bytes) -> None:
        if not data:
            return
        fits = self._total_bytes + len(data) <= self._half_bytes * 2
        if not fits and not self._where_the_whole_is:
            self._open_spill()
        self._write_spill(data)
        self._total_bytes += len(data)
        space = self._half_bytes - len(self._head)
        self._head += data[:space]
        if rest := data[max(space, 0) :]:
            self._tail.append(rest[-self._half_bytes :])
            self._tail_bytes += len(self._tail[-1])
            while self._tail_bytes - len(self._tail[0]) >= self._half_bytes:
                self._tail_bytes -= len(self._tail.popleft())

    def _open_spill(self) -> None:
        try:
            self._descriptor, path = self._spill.new_file()
        except OSError as error:
            self._where_the_whole_is = f"; the whole could not be kept: {os_error_text(error)}"
            return
        self._where_the_whole_is = f"; whole output: {path}"
        self._write_spill(bytes(self._head) + b"".join(self._tail))

    def _write_spill(self, data: bytes) -> None:
        if self._descriptor is None:
            return
        if self._total_bytes > self._spill_bytes:
            self._close_spill()
            self._where_the_whole_is += f" (only its first {self._total_bytes:,} bytes)"
            return
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError as error:
            self._close_spill()
            self._where_the_whole_is += f" (incomplete: {os_error_text(error)})"


def _at_most(max_bytes: int, text: str, invalid_bytes: int) -> str:
    """The text, cut to `max_bytes` if invalid bytes, whose replacements are longer, were in it."""
    return text.encode()[:max_bytes].decode("utf-8", "ignore") if invalid_bytes else text


def _note_on(invalid_bytes: int) -> str:
    return (
        f"\n[{invalid_bytes:,} bytes were not valid UTF-8 and are shown as \ufffd]" if invalid_bytes else ""
    )


def _to_border_before(data: bytes) -> bytes:
    """The data up to the last line break. If the second half has none, all but an incomplete character at the end."""
    newline = data.rfind(b"\n")
    if newline >= len(data) // 2:
        return data[: newline + 1]
    complete = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode(data)
    return complete.encode("utf-8", "surrogateescape")


def _to_border_after(data: bytes) -> bytes:
    newline = data.find(b"\n", 0, len(data) // 2)
    if newline >= 0:
        return data[newline + 1 :]
    start = 0
    while start < min(3, len(data)) and 0x80 <= data[start] < 0xC0:
        start += 1
    return data[start:]


def readable_text(data: bytes) -> tuple[str, int]:
    """The readable text, and the number of bytes that were not UTF-8. Consecutive ones become one U+FFFD."""
    text = data.decode("utf-8", "surrogateescape")
    text = _ESCAPES.sub("", text)
    text = _CARRIAGE_RETURNS_AT_END.sub("\n", text)
    if "\r" in text:
        # What is visible after all carriage returns of a line: progress bars overwrite it.
        states = (reversed(line.split("\r")) for line in text.split("\n"))
        text = "\n".join(next(filter(str.strip, of_line), "") for of_line in states)
    text = _OVERSTRIKES.sub("", text)
    text = _CONTROLS.sub("", text)
    invalid = sum(len(run) for run in _UNDECODABLE.findall(text))
    return (_UNDECODABLE.sub("\ufffd", text) if invalid else text), invalid
