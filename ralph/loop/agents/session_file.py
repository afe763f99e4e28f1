"""The file of an agent's session in the loop's folder. It contains what the agent's processes have printed, and a line
of ralph's own at the beginning and at the end of each process. If the loop did not see the end of an iteration, it
uses this file to judge, count and resume the iteration.
"""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ralph.loop.agents.events import AgentRun
from ralph.loop.record import new_file
from ralph.loop.values import IterationResult  # noqa: TC001 - lines are read by their hints
from ralph.machine.files.opened_file import open_regular_file
from ralph.machine.output_capture import readable_text
from ralph.machine.running_command import BlockSearch
from ralph.values.usage import total_usd

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ralph.loop.agents.table import AgentRow

ENDS_WITHIN_S = 120.0
"""If an agent has reported that its work is done, and then prints nothing for this many seconds, ralph stops it. It
may wait for a process or a connection of its own for ever."""
_LOOK_EVERY_S = 0.2
_MOST_FILE_BYTES = 200_000_000
_LONGEST_LINE_BYTES = 20_000_000
_TAIL_BYTES = 16_384
_SESSION = re.compile(r"(?:[\w.:/][\w.:/-]{0,199})?", re.ASCII)


class _OwnLine(Struct, frozen=True, omit_defaults=True):
    ralph: str
    """`began` or `ended`."""
    result: IterationResult | None = None
    """At the end: the result of the whole session."""


class AgentSession(Struct, frozen=True):
    """The state of a session, from its file."""

    id: str = ""
    """The agent's own id of the session. Empty if it has reported none."""
    turns: int = 0
    cost_usd: float | None = 0.0
    ended: IterationResult | None = None
    """The result of its last process, or None if nobody saw that end."""
    written_s: float = 0.0
    """The time of the last write, in seconds of the epoch."""

    def with_run(self, run: AgentRun, *, tells_cost: bool) -> AgentSession:
        """The session after one more process."""
        cost_usd = total_usd((self.cost_usd, run.cost_usd)) if tells_cost else None
        return replace(
            self, id=run.session or self.id, turns=self.turns + run.turns, cost_usd=cost_usd, ended=None
        )


def read_session(path: Path, row: AgentRow) -> AgentSession:
    """Reads the file of a session. Raises OSError."""
    session, run = AgentSession(), AgentRun()
    with os.fdopen(open_regular_file(path), "rb") as file:
        written_s = os.fstat(file.fileno()).st_mtime
        is_running = False
        while line := file.readline(_LONGEST_LINE_BYTES):
            event = _decoded(line)
            own = _own_line(event)
            if own is None:
                read_event(run, row, event)
                continue
            if is_running:
                session = session.with_run(run, tells_cost=row.tells_cost)
            is_running = own.ralph == "began"
            if own.result is not None:
                ended = own.result
                session = replace(
                    session.with_run(run, tells_cost=row.tells_cost),
                    turns=ended.turns,
                    cost_usd=ended.cost_usd,
                    ended=ended,
                )
            run = AgentRun(session.cost_usd or 0.0)
    if is_running:
        session = session.with_run(run, tells_cost=row.tells_cost)
    return replace(session, written_s=written_s)


def read_event(run: AgentRun, row: AgentRow, event: Any) -> None:
    """Adds the facts of an event. Ignores anything that is not an event, and a session id that cannot be a word of a
    command line or would be an option there.
    """
    if isinstance(event, dict) and row.read is not None:
        run.has_events = True
        row.read(run, event)
        if not _SESSION.fullmatch(run.session):
            run.session = ""


class EventLog:
    """Receives what a process of an agent prints (`Capture`), keeps it in the file of the session without known credentials, and
    reads its events. If the file cannot be written, the process continues.
    """

    def __init__(
        self,
        descriptor: int,
        row: AgentRow,
        *,
        redact: Callable[[str], str],
        is_over_budget: Callable[[AgentRun], bool],
        before_usd: float = 0.0,
    ) -> None:
        """`descriptor` is the open file of the session, which has cost `before_usd` so far. `is_over_budget` stops the process."""
        self.run = AgentRun(before_usd)
        self._descriptor = descriptor
        self._row = row
        self._redact = redact
        self._is_over_budget = is_over_budget
        self._line = bytearray()
        self._tail = b""
        self._room_bytes = _MOST_FILE_BYTES
        self._is_whole = True
        self._fed_s = time.monotonic()
        self._write(_own_text(_OwnLine("began")))

    def fits_in_memory(self, size: int) -> bool:  # noqa: ARG002 - see `Capture`
        return False

    def feed(self, chunk: bytes) -> bool:
        self._fed_s = time.monotonic()
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            self._line += part
            line, self._line = self._line, bytearray()
            self._take(self._redact(line.decode("utf-8", "replace")).encode("utf-8", "replace"))
        self._line += rest
        if len(self._line) > _LONGEST_LINE_BYTES:
            self._line.clear()
        return not self._is_over_budget(self.run)

    def close(self) -> None:
        self.feed(b"\n")

    @property
    def search(self) -> BlockSearch:
        """Whether the agent keeps running although it has reported that its work is done."""
        return BlockSearch(ENDS_WITHIN_S, self._hung)

    def _hung(self, is_over: Callable[[], bool]) -> str | None:
        while not is_over():
            if self.run.has_ended_well and time.monotonic() >= self._fed_s + ENDS_WITHIN_S:
                return f"it had not ended {ENDS_WITHIN_S:g} s after its last event, and was stopped"
            time.sleep(_LOOK_EVERY_S)
        return None

    def end(self, result: IterationResult) -> None:
        """Writes the result of the session and closes the file. Raises OSError."""
        try:
            self._room_bytes = _MOST_FILE_BYTES
            self._is_whole = True
            self._write(b"\n" + _own_text(_OwnLine("ended", result)))
            os.fsync(self._descriptor)
        finally:
            os.close(self._descriptor)

    @property
    def words(self) -> str:
        """The end of the printed text that is not an event, as readable text."""
        return readable_text(self._tail)[0].strip()

    def _take(self, line: bytes) -> None:
        if len(line) >= _LONGEST_LINE_BYTES:
            return  # it would be read in pieces, and one could look like a line of ralph's own
        event = _decoded(line)
        if isinstance(event, dict):
            read_event(self.run, self._row, event)
        elif line.strip():
            self._tail = (self._tail + line + b"\n")[-_TAIL_BYTES:]
        if _own_line(event) is None:  # an agent cannot write ralph's lines
            self._write(line + b"\n")

    def _write(self, data: bytes) -> None:
        self._room_bytes -= len(data)
        left = memoryview(data if self._room_bytes > 0 and self._is_whole else b"")
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError:  # a full disk does not change how the iteration ends
            self._is_whole = False


def open_session(folder: Path, name: str, *, is_new: bool) -> int:
    """Opens the file of a session for appending. Raises OSError."""
    if is_new:
        return new_file(folder, name)
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(folder / name, flags)
    os.write(descriptor, b"\n")  # after a line that a kill has cut
    return descriptor


def _decoded(line: bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _own_line(event: Any) -> _OwnLine | None:
    if not isinstance(event, dict) or event.get("ralph") not in ("began", "ended"):
        return None
    try:
        return msgspec.convert(event, _OwnLine)
    except msgspec.ValidationError:
        return None


def _own_text(line: _OwnLine) -> bytes:
    return msgspec.json.encode(line) + b"\n"
