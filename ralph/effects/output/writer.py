"""All output of a run: one sink for events that writes both streams, each in its form, redacted.

It decides nothing about the run. Standard output belongs to the result, standard error to people.
"""

from __future__ import annotations

import json
import os
import random
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ralph.core.events import Event, RunEnded
from ralph.effects.output.narration import Narration
from ralph.effects.output.result_object import result_object
from ralph.effects.output.spool import Spool
from ralph.effects.output.stream_json import stream_objects
from ralph.ports import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.ports import Clock, Waiter

OutputFormat = Literal["text", "json", "stream-json"]

# A reader that never reads is waited for this long at the end; it fits into the six seconds of a signal.
LAST_CHANCE_S = 5.0


@dataclass(frozen=True)
class OutputOptions:
    output_format: OutputFormat = "text"
    include_partial: bool = False
    is_quiet: bool = False
    result_file: str | None = None
    """Where the `result` object is written too, by atomic rename. None: nowhere."""


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
        is_one_terminal: bool = False,
        last_chance_s: float = LAST_CHANCE_S,
    ) -> None:
        """`is_one_terminal`: both descriptors are the same screen, which need not show the answer twice."""
        self._options = options
        self._session_id = session_id
        self._ralph_version = ralph_version
        self.redact = redact
        """Cuts secrets out of everything written. Replaced once the settings have told all of them."""
        self._narration = Narration(is_quiet=options.is_quiet, has_color=has_color)
        self._shows_answer_twice = is_one_terminal and not options.is_quiet
        self._stdout = Spool(stdout_fd)
        self._stderr = Spool(stderr_fd)
        self._last_chance_s = last_chance_s
        self._is_closing = False
        self._random = random.Random()  # noqa: S311 - tells events apart, protects nothing; urandom costs 14 us each

    def emit(self, event: Event) -> None:
        if self._is_closing:
            return  # a heartbeat of the last wait: the result stays the last word
        for line in self._narration.lines(event):
            self._stderr.write(_encoded(self.redact(line)), must_arrive=isinstance(event, RunEnded))
        if isinstance(event, RunEnded):
            self._write_result(event)
        elif self._options.output_format == "stream-json":
            for fields in stream_objects(
                event, ralph_version=self._ralph_version, include_partial=self._options.include_partial
            ):
                self._stdout.write(self._json_line(fields))

    def write_result_file(self, ended: RunEnded) -> None:
        """Raises OSError; the file then has its old content or none."""
        if self._options.result_file is not None:
            _write_atomically(
                self._options.result_file, self._json_line(result_object(ended, self._session_id))
            )

    def close(self, waiter: Waiter, clock: Clock) -> None:
        """Give readers a last chance to take what is there. A signal ends even that."""
        self._is_closing = True
        until_s = clock.now_s() + self._last_chance_s
        try:
            self._stdout.drain(waiter, until_s)
            self._stderr.drain(waiter, until_s)
        except Interrupted:
            return

    def _write_result(self, ended: RunEnded) -> None:
        if self._options.output_format != "text":
            fields = result_object(ended, self._session_id)
            if self._stdout.dropped_writes:
                fields["dropped_events"] = self._stdout.dropped_writes
            self._stdout.write(self._json_line(fields), must_arrive=True)
        elif ended.result is not None and not self._shows_answer_twice:
            self._stdout.write(_encoded(self.redact(ended.result)), must_arrive=True)

    def _json_line(self, fields: dict[str, Any]) -> bytes:
        event_id = uuid.UUID(int=self._random.getrandbits(128), version=4)
        stamped = {**fields, "uuid": str(event_id), "session_id": self._session_id}
        return _encoded(self._redacted_json(stamped))

    def _redacted_json(self, fields: dict[str, Any]) -> str:
        line = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
        # What a file tool read or wrote is shown as it is: an edit must match what was shown.
        return line if fields["type"] in ("assistant", "user", "stream_event") else self.redact(line)


def _encoded(line: str) -> bytes:
    # Half a surrogate pair becomes \udxxx, which inside a JSON string is that half's escape.
    return line.encode("utf-8", "backslashreplace") + b"\n"


def _write_atomically(path: str, data: bytes) -> None:
    path = os.path.realpath(path)  # a link stays, its target is replaced
    if os.path.exists(path) and not os.path.isfile(path):  # noqa: PTH110, PTH113
        # A pipe or a device is written to; to replace /dev/null would harm everybody.
        with open(path, "wb") as file:  # noqa: PTH123
            file.write(data)
        return
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:  # noqa: PTH123 - paths stay strings on this short way
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)  # noqa: PTH105
    except OSError:
        if os.path.exists(temporary):  # noqa: PTH110
            os.unlink(temporary)  # noqa: PTH108
        raise
