"""The files that an iteration of `ralph loop` writes into the loop's folder: its part of the loop's log, and the live
file, which `ralph loop --status` reads. The loop itself appends to the same log.

A failure of the log or of the live file never ends or delays the iteration.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ralph.machine.files.opened_file import opened, read_regular_file
from ralph.output.narration import Narration
from ralph.output.status_line import LiveRun, live_after
from ralph.output.stream_json import journal_fields, result_object, stream_objects
from ralph.values import events as ev
from ralph.values.redaction import redacted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime
    from pathlib import Path

    from ralph.values.ports import Clock

LOG_EVENTS, LOG_TEXT = "log.jsonl", "log.txt"
LIVE_FILE = "live.json"
OLDER = ".1"
"""The suffix of the older part of a log file."""
MOST_LOG_BYTES = 16 * 1024 * 1024
"""The size at which a log file becomes the older part, which replaces the previous older part."""
# A part of a conversation that is longer is in the session's journal.
_MOST_TEXT_CHARS = 65_536
_MOST_LIVE_BYTES = 1024 * 1024
_WRITES_APART_S = 0.25
_PRIVATE = 0o600
_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str).encode


class LogFiles:
    """The two log files of a loop. Several processes may append to them."""

    def __init__(
        self,
        folder: str | Path,
        redact: Callable[[str], str],
        tell: Callable[[str], None],
        most_bytes: int = MOST_LOG_BYTES,
    ) -> None:
        """`redact` removes credentials. `tell` gets one sentence if the log cannot be written. Later failures are
        not told. Each event tries again.
        """
        self._folder = str(folder)
        self.redact = redact
        self._tell = tell
        self._most_bytes = most_bytes
        self._has_failed = False

    def append(self, at: datetime, objects: Iterable[dict[str, Any]], lines: Iterable[str]) -> None:
        """Appends JSON objects and lines for people, both with the time `at`. Line breaks inside `lines` become
        spaces.
        """
        stamp = at.isoformat(timespec="milliseconds")
        events = "".join(f"{_to_json({'at': stamp, **redacted(one, self._text)})}\n" for one in objects)
        local = f"{at.astimezone():%Y-%m-%d %H:%M:%S}"
        texts = "".join(
            f"{local} {' '.join(self.redact(line).splitlines())}".rstrip() + "\n" for line in lines
        )
        try:
            for name, text in ((LOG_EVENTS, events), (LOG_TEXT, texts)):
                if text:
                    self._append(f"{self._folder}/{name}", text.encode("utf-8", "backslashreplace"))
        except OSError as error:
            if not self._has_failed:
                self._has_failed = True
                why = error.strerror or type(error).__name__
                self._tell(f"the loop's log in {self._folder} is incomplete, the work continues: {why}")

    def _text(self, text: str) -> str:
        text = self.redact(text)
        left_out = len(text) - _MOST_TEXT_CHARS
        return text if left_out <= 0 else f"{text[:_MOST_TEXT_CHARS]} … [{left_out:,} more characters]"

    def _append(self, path: str, data: bytes) -> None:
        """Appends whole lines in one write. If the disk is full, cuts off the part that was written."""
        descriptor = _opened_to_append(path)
        try:
            size = os.fstat(descriptor).st_size
            if size and size + len(data) > self._most_bytes and _moved_away(path, descriptor):
                full, descriptor = descriptor, _opened_to_append(path)  # may fail; each is closed once
                os.close(full)
            written = os.write(descriptor, data)
            if written < len(data):
                end = os.lseek(descriptor, 0, os.SEEK_CUR)
                if os.fstat(descriptor).st_size == end:  # no other process has appended since
                    os.ftruncate(descriptor, end - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)


def _opened_to_append(path: str) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, _PRIVATE)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return descriptor


def _moved_away(path: str, descriptor: int) -> bool:
    """Renames a full log file. False if another process is about to do so or has done so: a second rename would
    replace the older part by a new, nearly empty file.
    """
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.stat(path), os.fstat(descriptor)):  # noqa: PTH116 - the path is a str
            os.replace(path, path + OLDER)  # noqa: PTH105 - the path is a str
            return True
    return False


class IterationLog:
    """An `Events` sink that writes every event of an iteration to the loop's log, without the parts of an answer that
    is still arriving. The lines for people have the words of standard error, whether or not `--quiet` is given.
    """

    def __init__(
        self, files: LogFiles, clock: Clock, number: int, session_id: str, *, ralph_version: str
    ) -> None:
        """`number` is the number of the iteration."""
        self._files = files
        self._clock = clock
        self._number = number
        self._session_id = session_id
        self._version = ralph_version
        self._narration = Narration(is_quiet=False, has_color=False, redact=files.redact)

    def emit(self, event: ev.Event) -> None:
        if isinstance(event, ev.StreamReceived):
            return
        if isinstance(event, ev.SessionOpened):
            self._session_id = event.session_id
        head = {"iteration": self._number, "session_id": self._session_id}
        objects = [{**head, **fields} for fields in self._objects(event)]
        self._files.append(self._clock.utc_now(), objects, list(self._narration.lines(event)))

    def _objects(self, event: ev.Event) -> Iterable[dict[str, Any]]:
        match event:
            case ev.RunEnded():
                return [result_object(event, self._session_id)]
            case ev.AttemptEnded() | ev.TurnAsked():
                return [{"type": "system", **(journal_fields(event) or {})}]
            case ev.TurnStarted(turn=turn):
                return [_own("turn_started", turn=turn)]
            case ev.ToolStarted(call=call):
                return [_own("tool_started", tool=call.name, tool_use_id=call.id)]
            case ev.ToolFinished(call=call, result=result, took_s=took_s):
                is_error, took = result.output.is_error, round(took_s, 3)
                return [
                    _own("tool_finished", tool=call.name, tool_use_id=call.id, is_error=is_error, took_s=took)
                ]
            case ev.SessionOpened():
                return [_own("session_opened")]
            case _:
                return stream_objects(event, ralph_version=self._version, include_partial=False)


def _own(subtype: str, **fields: Any) -> dict[str, Any]:
    return {"type": "system", "subtype": subtype, **fields}


class LiveIteration(Struct, frozen=True):
    """The content of the live file. All times are seconds since 1970."""

    pid: int
    number: int
    session_id: str
    began_s: float
    run: LiveRun
    max_turns: int | None = None
    """The limit on turns of this process. None without a limit. The next two fields are limits of this process too."""
    max_budget_usd: float | None = None
    max_time_s: float | None = None


class LiveFile:
    """An `Events` sink that keeps the live file current. It is replaced at most four times a second. If it cannot
    be written, nobody is told.
    """

    def __init__(self, folder: str, first: LiveIteration, clock: Clock, redact: Callable[[str], str]) -> None:
        self._path = f"{folder}/{LIVE_FILE}"
        self._live = first
        self._clock = clock
        self.redact = redact
        self._is_due = True
        self._next_s = 0.0
        self._write()

    def emit(self, event: ev.Event) -> None:
        if isinstance(event, ev.StreamReceived):
            return
        live = self._live
        run = live_after(live.run, event, self._clock.utc_now().timestamp(), self.redact)
        session_id = event.session_id if isinstance(event, ev.SessionOpened) else live.session_id
        if run is live.run and session_id == live.session_id:
            return
        self._live = replace(live, run=run, session_id=session_id)
        self._is_due = True
        if run.has_ended:
            self._write()
        else:
            self.look()

    def look(self) -> None:
        """Writes the file if it is out of date and the last write was long enough ago."""
        if self._is_due and self._clock.now_s() >= self._next_s:
            self._write()

    def _write(self) -> None:
        self._is_due = False
        self._next_s = self._clock.now_s() + _WRITES_APART_S
        temporary = f"{self._path}.tmp"
        with suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
            with opened(temporary, flags, _PRIVATE) as descriptor:
                os.write(descriptor, _to_json(msgspec.to_builtins(self._live)).encode("utf-8", "replace"))
            os.replace(temporary, self._path)  # noqa: PTH105 - the paths are texts


def read_live(folder: Path) -> LiveIteration | None:
    """The content of the live file. None if there is none, or if it cannot be used."""
    try:
        return msgspec.json.decode(
            read_regular_file(folder / LIVE_FILE, _MOST_LIVE_BYTES), type=LiveIteration
        )
    except (OSError, ValueError, RecursionError):
        # ValueError: also a DecodeError, a ValidationError, bad UTF-8.
        return None
