"""The sinks of a loop's events: lines on standard error, the loop's log, the program of `--notify`, and a summary for a CI
system. An iteration is a process, which writes its own lines and its own part of the log.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from typing import TYPE_CHECKING, Any

from msgspec import Struct, to_builtins

from ralph.loop.events import (
    CheckedFirst,
    IterationBegan,
    IterationCutOff,
    IterationEnded,
    IterationResumed,
    LoopEnded,
    LoopWaits,
    Pushed,
    line_of,
    step_summary,
)
from ralph.output.iteration_log import LogFiles
from ralph.output.result_file import opened_to_append
from ralph.output.standard_streams import ErrorLines
from ralph.output.stream_json import system_fields
from ralph.values.events import Heartbeat, LoopEvent, Notice
from ralph.values.screen_text import in_one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime
    from pathlib import Path

    from ralph.output.notifier import Notifier
    from ralph.output.standard_streams import Color
    from ralph.values.events import Event
    from ralph.values.ports import Clock, Events

_HIDDEN_BY_QUIET = (CheckedFirst, IterationBegan, IterationResumed, Pushed, Heartbeat)
"""Events that `--quiet` hides: not those about problems and ends."""

MARK = "[loop]"
"""The beginning of each line of a loop."""
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")


class LoopNarration:
    """Writes one line to standard error for each event."""

    def __init__(
        self,
        *,
        redact: Callable[[str], str],
        has_color: bool,
        is_quiet: bool = False,
        clears_line: bool = False,
    ) -> None:
        self._lines = ErrorLines(MARK, redact=redact, has_color=has_color, clears_line=clears_line)
        self._is_quiet = is_quiet

    def emit(self, event: Event) -> None:
        line = None if self._is_quiet and _is_detail(event) else line_of(event)
        if line is not None:
            self._lines.write(line, _color_of(event))


def _is_detail(event: Event) -> bool:
    return isinstance(event, _HIDDEN_BY_QUIET) or (isinstance(event, Notice) and not event.is_vital)


def _color_of(event: Event) -> Color | None:
    match event:
        case LoopEnded(end=end):
            return "red" if end.outcome.is_error else "green"
        case IterationEnded(record=record):
            return "green" if record.made_progress else "yellow"
        case IterationCutOff():
            return "yellow"
        case Heartbeat():
            return "dim"
        case _:
            return None if _is_detail(event) else "yellow"


class LoopLog:
    """Appends every event of the loop itself to the loop's log. Until the loop has a folder, the events are kept here."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._files: LogFiles | None = None
        self._waiting: list[tuple[datetime, Event]] = []
        self._head: dict[str, Any] = {"iteration": None, "session_id": None}
        """The number and the session of the current iteration."""

    def open(self, folder: Path, redact: Callable[[str], str], tell: Callable[[str], None]) -> None:
        """The parameters are those of `LogFiles`."""
        self._files = LogFiles(folder, redact, tell)
        for at, event in self._waiting:
            self._write(self._files, at, event)
        self._waiting.clear()

    def emit(self, event: Event) -> None:
        at = self._clock.utc_now()
        if self._files is None:
            self._waiting.append((at, event))
        else:
            self._write(self._files, at, event)

    def _write(self, files: LogFiles, at: datetime, event: Event) -> None:
        if isinstance(event, IterationBegan | IterationResumed):
            self._head = {"iteration": event.number, "session_id": event.session_id}
        fields = _fields_of(event)
        line = line_of(event)
        lines = [] if line is None else [f"{MARK} {' '.join(in_one_line(line).split())}"]
        files.append(at, [] if fields is None else [{**self._head, "type": "loop", **fields}], lines)
        if isinstance(event, IterationEnded | IterationCutOff):
            self._head = {"iteration": None, "session_id": None}


def _fields_of(event: Event) -> dict[str, Any] | None:
    """The event as an object of the log. None for an event that is not the loop's own."""
    if not isinstance(event, LoopEvent):
        return system_fields(event)
    fields: dict[str, Any] = to_builtins(event)
    fields.pop("state", None)  # `loop.json` has it
    if isinstance(event, LoopWaits):
        fields["setback"] = event.setback.name.lower()
        fields["session_id"] = event.session_id
    return {"subtype": _CAPITAL.sub("_", type(event).__name__).lower(), **fields}


class LoopNotices(Struct, frozen=True):
    """Tells the program of `--notify` about the end of the loop and about outages."""

    notifier: Notifier
    directory: str
    narration: Events
    """Gets an event if the program fails at the end."""

    def emit(self, event: Event) -> None:
        """Raises Interrupted, but not for the end."""
        match event:
            case LoopWaits():
                if event.setbacks == 1:
                    self.notifier.outage_ended()
                self.notifier.tell_wait(event.wait_s, line_of(event) or "")
            case IterationEnded():
                self.notifier.outage_ended()
            case LoopEnded(end=end, state=state):
                told = {
                    "type": "loop",
                    "is_error": end.outcome.is_error,
                    "terminal_reason": end.outcome.value,
                    "exit_code": end.exit_code,
                    "reason": end.reason,
                    "directory": self.directory,
                }
                notice = self.notifier.tell_end(told if state is None else {**told, **state.totals})
                if notice is not None:
                    self.narration.emit(notice)


class StepSummary(Struct, frozen=True):
    """Appends a table about the ended loop to a file that a CI system displays. Only to a regular file, because another kind
    could block, and through no link, because a model's text must not get into the user's other files.
    """

    path: str
    directories: Sequence[str]
    """As in `append_text`."""
    redact: Callable[[str], str]
    narration: Events

    def emit(self, event: Event) -> None:
        if not isinstance(event, LoopEnded):
            return
        try:
            text = self.redact(step_summary(event.state, event.end))
            append_text(self.path, text, self.directories)
        except OSError as error:
            problem = f"cannot write the summary {self.path}: {error.strerror}"
            self.narration.emit(Notice(problem, is_vital=True))


def append_text(path: str, text: str, directories: Sequence[str]) -> None:
    """Appends text to a file, which may be missing. `directories` are as in `result_file_problem`. Raises OSError, also for
    files that `StepSummary` does not write to.
    """
    descriptor = opened_to_append(os.path.abspath(path), directories, 0o644)  # noqa: PTH100 - links are to be seen
    with os.fdopen(descriptor, "wb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", path)
        file.write(text.encode("utf-8", "replace"))  # names of files may be no text
