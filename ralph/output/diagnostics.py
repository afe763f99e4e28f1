"""Writes one line per event for people who search for a fault: the event's time, its kind and its facts. The lines
contain no text of models, tools and files. While an answer arrives, its pieces get no lines.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ralph.output.result_file import opened_to_append
from ralph.output.system_events import journal_fields
from ralph.values import events as ev

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ralph.values.ports import Clock

_DELTA = "content_block_delta"


class Diagnostics:
    """An `Events` sink that makes a line from each event and passes it to `write`. The line may contain secrets, so
    `write` must redact it.
    """

    def __init__(self, clock: Clock, started_s: float, write: Callable[[str], None]) -> None:
        self._clock = clock
        self._started_s = started_s
        self._write = write

    def emit(self, event: ev.Event) -> None:
        facts = _facts(event)
        if facts is None:
            return
        after_s = self._clock.now_s() - self._started_s
        shown = f" {json.dumps(facts, ensure_ascii=False, default=str)}" if facts else ""
        self._write(f"[debug] {after_s:.3f}s {type(event).__name__}{shown}")


class DiagnosticsFile:
    """The file of `--debug-file`, to which lines are appended. A symbolic link is not opened, because a repository
    may have put it there. If a line cannot be written, it is lost and the run continues.
    """

    def __init__(self, path: str, redact: Callable[[str], str], directories: Sequence[str] = ()) -> None:
        """Opens the file. Raises OSError if that fails. `path` and `directories` are as in `result_file_problem`."""
        self._descriptor = opened_to_append(path, directories, 0o600)
        self._redact = redact

    def write(self, line: str) -> None:
        with suppress(OSError):
            os.write(self._descriptor, self._redact(line).encode("utf-8", "backslashreplace") + b"\n")


def _facts(event: ev.Event) -> dict[str, Any] | None:
    match event:
        case ev.StreamReceived():
            kind = event.event.get("type")
            return None if kind == _DELTA else {"type": kind}
        case ev.RunStarted():
            return {"model": event.model, "cwd": event.cwd, "tools": event.tools, "sandbox": event.sandbox}
        case ev.AnswerAccepted():
            message = event.message
            facts = {name: message.get(name) for name in ("id", "model", "stop_reason", "usage")}
            return {**facts, "request_id": event.request_id}
        case ev.ToolStarted():
            return {"tool": event.call.name, "id": event.call.id}
        case ev.ToolFinished():
            is_error, took_s = event.result.output.is_error, round(event.took_s, 3)
            return {"tool": event.call.name, "id": event.call.id, "is_error": is_error, "took_s": took_s}
        case ev.Heartbeat():
            return {"waiting_for": event.waiting_for, "since_s": round(event.since_s, 1)}
        case ev.RunEnded():
            return {
                "outcome": event.outcome.value,
                "exit_code": event.exit_code,
                "num_turns": event.num_turns,
            }
        case _:
            return journal_fields(event) or {}
