"""All output of a run: one `Events` sink that writes both standard streams, redacted. It decides nothing
about the run.

Standard output has the result, in the chosen format; standard error has lines for people.
"""

from __future__ import annotations

import json
import math
import random
import uuid
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from ralph.output.narration import Narration
from ralph.output.result_file import write_result_file
from ralph.output.result_object import result_object
from ralph.output.shown_object import redacted, shown
from ralph.output.spool import Spool
from ralph.output.stream_json import failure_message, stream_objects
from ralph.values.events import Event, RunEnded, SessionOpened
from ralph.values.outcome import Delivery
from ralph.values.ports import Interrupted
from ralph.values.screen_text import foreign_lines, json_for_terminal

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.values.ports import Clock, Waiter

OutputFormat = Literal["text", "json", "stream-json"]

# A reader that never reads is waited for this long at the end; it fits into the six seconds of a signal.
LAST_CHANCE_S = 5.0
LAST_CHANCE_AFTER_SIGNAL_S = 0.5

# Answers are never left out, so there may not be more of them than this and one.
MOST_UNANSWERED_BYTES = 8 * 1024 * 1024

_CLEAR_LINE = b"\r\x1b[K"


class OutputOptions(Struct, frozen=True):
    output_format: OutputFormat = "text"
    include_partial: bool = False
    is_quiet: bool = False
    result_file: str | None = None
    """The file that also gets the `result` object, by atomic rename; None: no file."""
    directories: tuple[str, ...] = ()
    """The directories where ralph was called and where it works, absolute; links in them may not lead
    outside them."""


class Writer:
    """An `Events` sink over two file descriptors."""

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
        last_chance_s: float = LAST_CHANCE_S,
    ) -> None:
        """`is_on_terminal`: standard output is a terminal, so control sequences are removed from what it
        shows.

        `is_one_terminal`: both descriptors are the same terminal, which need not show the answer twice.
        `is_one_stream`: both are one pipe or file. Then lines for people would break the JSON, and text
        output would hold the model's text twice.
        """
        self._options = options
        self._session_id = session_id
        """The id of the session; before it is open, the id that a new session would get."""
        self._ralph_version = ralph_version
        self._redact = redact
        """Cuts secrets out of everything that is written."""
        self.tells_people = not is_one_stream or options.output_format == "text"
        """Whether lines are written to standard error."""
        self._narration = Narration(
            is_quiet=options.is_quiet, has_color=has_color, shows_text=not is_one_stream
        )
        self._is_on_terminal = is_on_terminal
        self._shows_answer_twice = is_one_terminal and not options.is_quiet
        self._stdout = Spool(stdout_fd)
        # One spool for one stream: nothing overtakes the answer or tears it.
        self._stderr = self._stdout if is_one_stream else Spool(stderr_fd)
        self._counting = ""
        """The countdown that is on the screen; empty: there is none."""
        self._last_chance_s = last_chance_s
        self._last_chance_ends_s: float | None = None
        self._is_closing = False
        self._random = random.Random()  # noqa: S311 - tells events apart, protects nothing; urandom costs 14 us each

    def emit(self, event: Event) -> None:
        """Writes the event. At the end of a run it writes only the result; `tell_end` writes the last lines."""
        if self._is_closing:
            return  # a heartbeat of the last wait: the result stays the last word
        if isinstance(event, SessionOpened):
            self._session_id = event.session_id
            return
        if isinstance(event, RunEnded):
            self._write_result(event)
            return
        self._narrate(event)
        if self._options.output_format == "stream-json":
            for fields in stream_objects(
                event, ralph_version=self._ralph_version, include_partial=self._options.include_partial
            ):
                self._put_json(self._json_line(fields))

    @property
    def has_room(self) -> bool:
        """Whether little enough is unread that the driver may get another answer. A driver that reads its answers leaves
        this room.
        """
        return self._stdout.unread_bytes < MOST_UNANSWERED_BYTES

    def respond(self, fields: dict[str, Any]) -> None:
        """Writes an answer to the driver, even while the output is closing."""
        line = json.dumps(shown(fields, self._redact), ensure_ascii=False, separators=(",", ":"))
        self._put_json(line, must_arrive=True)

    def count_down(self, waiting_for: str, left_s: float) -> None:
        """Shows the remaining seconds of a wait on a terminal, in one line. 0 removes the line."""
        left = f"[wait] {waiting_for} in {math.ceil(left_s)}s" if left_s > 0 else ""
        if left != self._counting:
            self._counting = left
            self._stderr.write(_CLEAR_LINE + self._narration.color("dim", left).encode())

    def write_result_file(self, ended: RunEnded) -> None:
        """Writes the result file. Raises OSError; the file then has its old content or does not exist."""
        if self._options.result_file is not None:
            result = self._json_line(result_object(ended, self._session_id))
            write_result_file(self._options.result_file, _encoded(result), self._options.directories)

    def deliver(self, waiter: Waiter, clock: Clock) -> OSError | None:
        """Gives the reader of standard output a last chance to read the rest. A signal shortens the wait.

        Returns the error that kept the result from being written, such as a full disk; None: there was no such error. A
        reader that has gone or never reads is no such error.
        """
        self._is_closing = True
        self._drain(self._stdout, waiter, clock)
        return self._stdout.failure

    @property
    def delivery(self) -> Delivery:
        """The state of the delivery of everything that was written to standard output so far."""
        if self._stdout.failure is not None:
            return Delivery.FAILED
        if self._stdout.has_lost_reader:
            return Delivery.READER_LEFT
        return Delivery.UNREAD if self._stdout.unread_bytes else Delivery.DELIVERED

    def tell(self, event: Event) -> None:
        """Writes a line for people: before the run begins, or after its result is written."""
        self._narrate(event)

    def tell_end(self, ended: RunEnded) -> None:
        """Writes the hints and the outcome to standard error, once nothing can change the outcome."""
        self._narrate(ended)

    def conclude(self, waiter: Waiter, clock: Clock) -> None:
        """Gives the reader of standard error the time that is left of the last chance."""
        self._drain(self._stderr, waiter, clock)

    def _narrate(self, event: Event) -> None:
        if not self.tells_people:
            return
        for line in self._narration.lines(event):
            if self._counting:
                self._counting = ""
                self._stderr.write(_CLEAR_LINE)
            self._stderr.write(_encoded(self._redact(line)), must_arrive=isinstance(event, RunEnded))

    def _drain(self, spool: Spool, waiter: Waiter, clock: Clock) -> None:
        """Waits until the stream is written. The waits for both streams together are no longer than the last chance."""
        if self._last_chance_ends_s is None:
            self._last_chance_ends_s = clock.now_s() + self._last_chance_s
        while True:
            try:
                spool.drain(waiter, clock, self._last_chance_ends_s)
            except Interrupted:
                # A healthy reader needs milliseconds; the signal may be older than this wait.
                soon_s = clock.now_s() + LAST_CHANCE_AFTER_SIGNAL_S
                self._last_chance_ends_s = min(self._last_chance_ends_s, soon_s)
            else:
                return

    def _write_result(self, ended: RunEnded) -> None:
        if self._options.output_format == "stream-json":
            failure = failure_message(ended, self._new_id())
            if failure is not None:
                self._put_json(self._json_line(failure))
        if self._options.output_format != "text":
            fields = result_object(ended, self._session_id)
            if self._stdout.dropped_writes:
                fields["dropped_events"] = self._stdout.dropped_writes
            self._put_json(self._json_line(fields), must_arrive=True)
        else:
            answer = self._text_answer(ended)
            if answer is not None:
                self._stdout.write(_encoded(answer), must_arrive=True)

    def _text_answer(self, ended: RunEnded) -> str | None:
        """The answer as text: the report's payload, otherwise the model's last text.

        None: there is no text, or the screen shows it already.
        """
        report = ended.report
        if report is not None and report.payload is not None:
            payload = json.dumps(redacted(report.payload, self._redact), ensure_ascii=False)
            return json_for_terminal(payload) if self._is_on_terminal else payload
        # The model's own words are narrated; a report that stood in a text or is synthetic has others.
        is_narrated = report is None or report.source == "tool_call"
        if ended.result is None or (is_narrated and self._shows_answer_twice):
            return None
        exact = ended.result
        return self._redact("\n".join(foreign_lines(exact)) if self._is_on_terminal else exact)

    def _new_id(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def _put_json(self, line: str, *, must_arrive: bool = False) -> None:
        fit = json_for_terminal(line) if self._is_on_terminal else line
        self._stdout.write(_encoded(fit), must_arrive=must_arrive)

    def _json_line(self, fields: dict[str, Any]) -> str:
        stamped = {**fields, "uuid": self._new_id(), "session_id": self._session_id}
        return json.dumps(shown(stamped, self._redact), ensure_ascii=False, separators=(",", ":"))


def _encoded(line: str) -> bytes:
    # Half a surrogate pair becomes \udxxx, which inside a JSON string is that half's escape.
    return line.encode("utf-8", "backslashreplace") + b"\n"
