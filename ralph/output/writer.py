"""Writes all output of a run. One `Events` sink writes redacted text to both standard streams.

Standard output gets the result in the chosen format. If a driver steers ralph through standard input, standard output
also gets the responses to the driver. Standard error gets lines for people. This module makes no decision about the
run.

The run does not wait for a reader. A `Spool` has a thread that writes the data. Data that the reader has not taken yet is
kept up to a limit. If the reader has closed its end (EPIPE), or if the descriptor is closed, the run continues without an
error. If the machine has no free thread, the data is kept until there is one. At the end, the main thread writes the
remaining data, so that the result is not lost.
"""

from __future__ import annotations

import errno
import json
import math
import os
import queue
import select
import stat
import threading
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from msgspec import Struct

from ralph.machine.starting import start_thread
from ralph.output.narration import Narration
from ralph.output.result_file import write_result_file
from ralph.output.standard_streams import CLEAR_LINE
from ralph.output.stream_json import failure_message, result_object, stream_objects
from ralph.values.events import Event, RunEnded, SessionOpened
from ralph.values.outcome import Delivery, ShortageError
from ralph.values.ports import Clock, Interrupted, Waiter
from ralph.values.redaction import redacted, shown
from ralph.values.screen_text import (
    for_runner,
    foreign_lines,
    in_one_line,
    json_for_runner,
    json_for_terminal,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.values.ports import Clock, Mailbox, Waiter


OutputFormat = Literal["text", "json", "stream-json"]

# How long ralph waits at the end for a reader that does not read. A signal allows six seconds in all.
LAST_CHANCE_S = 5.0
LAST_CHANCE_AFTER_SIGNAL_S = 0.5

# Responses are never dropped. So another one is written only if at most this much is unread.
MOST_UNANSWERED_BYTES = 8 * 1024 * 1024

# Made once: `json.dumps` makes an encoder for each call with such options.
_to_line = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class OutputOptions(Struct, frozen=True):
    output_format: OutputFormat = "text"
    include_partial: bool = False
    is_quiet: bool = False
    result_file: str | None = None
    """The path of a file to which the `result` object is also written, by an atomic rename. None if there is no
    such file."""
    directories: tuple[str, ...] = ()
    """The directory where ralph was called and those where commands may write, as absolute paths, for
    `result_file_problem`."""


class Writer:
    """An `Events` sink that writes to two file descriptors."""

    def __init__(
        self,
        options: OutputOptions,
        session_id: str,
        ralph_version: str,
        *,
        redact: Callable[[str], str],
        stdout_fd: int = 1,
        stderr_fd: int = 2,
        has_color: bool = False,
        is_on_terminal: bool = False,
        is_one_terminal: bool = False,
        is_one_stream: bool = False,
        is_for_runner: bool = False,
        last_chance_s: float = LAST_CHANCE_S,
    ) -> None:
        """`is_on_terminal` is True if standard output is a terminal. Control sequences are then removed from the
        output.

        `is_one_terminal` is True if both descriptors are the same terminal. The answer is then shown only once.
        `is_one_stream` is True if both are the same pipe or file. A text answer is then written only once, and JSON
        output contains no lines for people, which would make it invalid.
        `is_for_runner` is True if the program that runs a CI job may look for commands in standard output.
        """
        self._options = options
        self._session_id = session_id
        """The id of the session. Until a session is open, this is the id that a new session would get."""
        self._ralph_version = ralph_version
        self._redact = redact
        """Removes secrets from everything that is written."""
        self.tells_people = not is_one_stream or options.output_format == "text"
        """True if lines for people are written to standard error."""
        self._narration = Narration(
            is_quiet=options.is_quiet, has_color=has_color, shows_text=not is_one_stream, redact=redact
        )
        self._is_on_terminal = is_on_terminal
        self._is_for_runner = is_for_runner
        self._is_one_terminal = is_one_terminal
        self._shows_answer_twice = is_one_terminal and not options.is_quiet
        self._stdout = Spool(stdout_fd)
        # One spool for one stream, so that lines for people cannot overtake or split the answer.
        self._stderr = self._stdout if is_one_stream else Spool(stderr_fd)
        self._in_place = ""
        """The countdown or status that the terminal shows now, below all other lines. Empty if it shows none."""
        self._is_counting = False
        self._has_drawn = False
        self._last_chance_s = last_chance_s
        self._last_chance_ends_s: float | None = None
        self._is_closing = False
        self._beginning_of_ids = str(uuid4())[:24]
        self._ids = count()

    def emit(self, event: Event) -> None:
        """Writes an event. At the end of a run, writes only the result: `tell` later writes the last lines for
        people.
        """
        if self._is_closing:
            return  # a heartbeat during the last wait must not follow the result
        if isinstance(event, SessionOpened):
            self._session_id = event.session_id
            return
        if isinstance(event, RunEnded):
            self._write_result(event)
            return
        self.tell(event)
        if self._options.output_format == "stream-json":
            for fields in stream_objects(
                event, ralph_version=self._ralph_version, include_partial=self._options.include_partial
            ):
                self._put_json(self._json_line(fields))

    @property
    def has_room(self) -> bool:
        """Whether another response to the driver can be queued. Always True if the driver reads its responses."""
        return self._stdout.unread_bytes < MOST_UNANSWERED_BYTES

    def respond(self, fields: dict[str, Any]) -> None:
        """Writes a response to the driver. This works even while the output is closing."""
        line = _to_line(shown(fields, self._redact))
        self._put_json(line, must_arrive=True)

    def count_down(self, waiting_for: str, left_s: float) -> None:
        """Shows the remaining seconds of a wait in one line on a terminal. If `left_s` is 0, removes the line."""
        left = f"[wait] {waiting_for} in {math.ceil(left_s)}s" if left_s > 0 else ""
        self._is_counting = bool(left)
        self._show_in_place(left)

    def show_status(self, text: str) -> None:
        """Shows a line below all other lines, in place of the last such line. An empty text removes the line. Does
        nothing during a countdown, which has the same place. Call this only if standard error is a terminal.
        """
        if not self._is_counting and not self._is_closing:
            self._show_in_place(text)

    def forget_status(self) -> None:
        """Forgets the line of `show_status` without removing it from the screen, because something else uses the
        screen.
        """
        self._in_place = ""

    def _show_in_place(self, text: str) -> None:
        if text != self._in_place:
            self._in_place, self._has_drawn = text, True
            self._stderr.write(CLEAR_LINE + _encoded(self._narration.color("dim", text))[:-1])

    def _clear_place(self) -> None:
        if self._in_place:
            self._in_place = ""
            self._stderr.write(CLEAR_LINE)

    def result(self, ended: RunEnded) -> dict[str, Any]:
        """The `result` object. It may contain secrets."""
        return {**result_object(ended, self._session_id), "uuid": self._new_id()}

    def write_result_file(self, ended: RunEnded) -> None:
        """Writes the result file, if the options name one. Raises OSError. The file then still has its old content,
        or still does not exist.
        """
        if self._options.result_file is not None:
            result = self._json_line(self.result(ended))
            write_result_file(self._options.result_file, _encoded(result), self._options.directories)

    def deliver(self, waiter: Waiter, clock: Clock) -> OSError | None:
        """Waits until everything is written to standard output, but at most `last_chance_s` seconds. A signal, also an
        earlier one, shortens the wait. After this call, `emit` writes nothing more.

        If an error such as a full disk kept the result from being written, returns the error. Otherwise returns None,
        even if the reader has closed its end or does not read.
        """
        self._is_closing = True
        self._drain(self._stdout, waiter, clock)
        return self._stdout.failure

    @property
    def delivery(self) -> Delivery:
        """The state of standard output so far: all was delivered, the reader has not read all, the reader has left,
        or writing failed.
        """
        if self._stdout.failure is not None:
            return Delivery.FAILED
        if self._stdout.has_lost_reader:
            return Delivery.READER_LEFT
        return Delivery.UNREAD if self._stdout.unread_bytes else Delivery.DELIVERED

    def write_line(self, line: str) -> None:
        """Writes a line that does not come from an event to standard error, if lines for people are written there."""
        if self.tells_people:
            self._clear_place()
            self._stderr.write(_encoded(for_runner(self._redact(in_one_line(line)))))

    def conclude(self, waiter: Waiter, clock: Clock) -> None:
        """Waits until everything is written to standard error. This wait and that in `deliver` share one time limit."""
        self._drain(self._stderr, waiter, clock)

    def tell(self, event: Event) -> None:
        """Writes the lines for people about an event to standard error. Others call this only before a run begins, or after
        its result is written: then also with the end of the run, when its outcome can no longer change.
        """
        if not self.tells_people:
            return
        for line in self._narration.lines(event):
            self._clear_place()
            self._stderr.write(
                _encoded(for_runner(self._redact(line))), must_arrive=isinstance(event, RunEnded)
            )

    def _drain(self, spool: Spool, waiter: Waiter, clock: Clock) -> None:
        """Waits until everything in `spool` is written, or until the time limit, which all calls share. A signal
        shortens it.
        """
        if self._last_chance_ends_s is None:
            chance_s = min(self._last_chance_s, max(waiter.stop_left_s(), LAST_CHANCE_AFTER_SIGNAL_S))
            self._last_chance_ends_s = clock.now_s() + chance_s
        while True:
            try:
                spool.drain(waiter, clock, self._last_chance_ends_s)
            except Interrupted:
                # A healthy reader needs milliseconds. The signal may have come before this wait.
                soon_s = clock.now_s() + LAST_CHANCE_AFTER_SIGNAL_S
                self._last_chance_ends_s = min(self._last_chance_ends_s, soon_s)
            else:
                return

    def _write_result(self, ended: RunEnded) -> None:
        if self._is_one_terminal and self._has_drawn:
            # Another thread writes standard error, and may remove the line only after the answer is written.
            self._stdout.write(CLEAR_LINE)
        if self._options.output_format == "stream-json":
            failure = failure_message(ended, self._new_id())
            if failure is not None:
                self._put_json(self._json_line(failure))
        if self._options.output_format != "text":
            fields = self.result(ended)
            if self._stdout.dropped_writes:
                fields["dropped_events"] = self._stdout.dropped_writes
            self._put_json(self._json_line(fields), must_arrive=True)
        else:
            answer = self._text_answer(ended)
            if answer is not None:
                self._stdout.write(_encoded(answer), must_arrive=True)

    def _text_answer(self, ended: RunEnded) -> str | None:
        """The answer as text: the payload of the final report if there is one, otherwise the model's last text.
        None if there is no text, or if the screen already shows it.
        """
        report = ended.report
        if report is not None and report.payload is not None:
            payload = json.dumps(redacted(report.payload, self._redact), ensure_ascii=False)
            payload = json_for_runner(payload) if self._is_for_runner else payload
            return json_for_terminal(payload) if self._is_on_terminal else payload
        # The narration has shown the model's text, but not that of a synthetic report or of a report found in text.
        is_narrated = report is None or report.source == "tool_call"
        if ended.result is None or (is_narrated and self._shows_answer_twice):
            return None
        exact = ended.result
        answer = self._redact("\n".join(foreign_lines(exact)) if self._is_on_terminal else exact)
        # A runner ends a line at a carriage return too.
        lines = answer.splitlines(keepends=True)
        return "".join(map(for_runner, lines)) if self._is_for_runner else answer

    def _new_id(self) -> str:
        """A UUID in the form of version 4. It tells events apart and protects nothing: only its beginning is random."""
        return f"{self._beginning_of_ids}{next(self._ids):012x}"

    def _put_json(self, line: str, *, must_arrive: bool = False) -> None:
        fit = json_for_terminal(line) if self._is_on_terminal else line
        fit = json_for_runner(fit) if self._is_for_runner else fit
        self._stdout.write(_encoded(fit), must_arrive=must_arrive)

    def _json_line(self, fields: dict[str, Any]) -> str:
        stamped = {**fields, "uuid": fields.get("uuid") or self._new_id(), "session_id": self._session_id}
        return _to_line(shown(stamped, self._redact))


def _encoded(line: str) -> bytes:
    # Half a surrogate pair becomes \udxxx, which is its escape inside a JSON string.
    return line.encode("utf-8", "backslashreplace") + b"\n"


# --- Writing without waiting for the reader

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
