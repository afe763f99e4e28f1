"""Reads the events that agents print, a JSON object a line, keeps them in the file of the agent's session, and judges how a run
of an agent ended.

The exit code of no agent is enough: some exit with 0 after a refused request, a cut answer or no answer. So a run is
good only if its exit code, its last event and its answer all say so. Measured with claude 2.1.332, codex 0.171.0,
opencode 1.18.33 and pi 0.73.1.

The file of a session is in the loop's folder. It contains what the agent's processes have printed, and a line of ralph's own at
the beginning and at the end of each process. If the loop did not see the end of an iteration, it uses this file to judge,
count and resume the iteration.
"""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ralph.loop.record import new_file
from ralph.loop.values import IterationResult  # noqa: TC001 - lines are read by their hints
from ralph.machine.files.opened_file import open_regular_file
from ralph.machine.running_command import BlockSearch, readable_text
from ralph.values.outcome import Outcome
from ralph.values.refusals import exhausted_account
from ralph.values.usage import total_usd

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from ralph.loop.agents import AgentRow

    Event = Mapping[str, Any]
    Reader = Callable[["AgentRun", Event], None]


_MOST_USD = 1e6  # a number above it is not a cost


class AgentRun:
    """The events of one process of an agent so far."""

    def __init__(self, before_usd: float = 0.0) -> None:
        """`before_usd` is what the session that the process resumes has cost before it."""
        self._before_usd = before_usd
        self.session = ""
        """The agent's own id of the session. Empty if it is not known yet."""
        self.turns = 0
        self.cost_usd: float | None = None
        """The cost of this process in US dollars. None if no event contained one."""
        self.answer = ""
        self.has_ended_well = False
        self.failure = ""
        """The agent's own words about its failure. Empty if there are none."""
        self.status: int | None = None
        """The HTTP status of the failed request, if an event has it as a number."""
        self.has_events = False

    def add_cost(self, value: object) -> None:
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST_USD:
            self.cost_usd = (self.cost_usd or 0.0) + value

    def set_session_cost(self, value: object) -> None:
        """An event reports the cost of the whole session, or only of this process if that is less than the session had
        cost before.
        """
        self.cost_usd = None
        self.add_cost(value)
        if self.cost_usd is not None and self.cost_usd >= self._before_usd:
            self.cost_usd -= self._before_usd


# --- Readers, one for each agent


def read_claude(run: AgentRun, event: Event) -> None:
    run.session = _text(event, "session_id") or run.session
    if event.get("type") == "assistant":
        run.turns += 1
    if event.get("type") != "result":
        return
    # `--resume` counts on from what the session's file says.
    run.set_session_cost(event.get("total_cost_usd"))
    run.answer = _text(event, "result")
    run.has_ended_well = event.get("subtype") == "success" and event.get("is_error") is False
    run.status = _number(event.get("api_error_status"))
    why = [*map(str, _listed(event, "errors")), _text(event, "terminal_reason"), _text(event, "subtype")]
    run.failure = "" if run.has_ended_well else run.answer or "; ".join(filter(None, why))


def read_codex(run: AgentRun, event: Event) -> None:
    match event.get("type"):
        case "thread.started":
            run.session = _text(event, "thread_id")
        case "turn.started":
            run.has_ended_well, run.failure = False, ""
        case "item.completed":
            item = _object(event, "item")
            kind = _text(item, "type")
            if kind == "agent_message":
                run.answer = _text(item, "text")
            run.turns += kind in {"agent_message", "command_execution", "file_change"}
        case "turn.completed":
            run.has_ended_well = True  # without a message before it, it is a refusal or an empty answer
        case "turn.failed":
            run.failure = _text(_object(event, "error"), "message") or "the turn failed"
        case "error":
            run.failure = _text(event, "message") or run.failure
        case _:
            pass


def read_opencode(run: AgentRun, event: Event) -> None:
    run.session = _text(event, "sessionID") or run.session
    part = _object(event, "part")
    match event.get("type"):
        case "text":
            run.answer = _text(part, "text")
        case "step_finish":
            run.turns += 1
            run.add_cost(part.get("cost"))
            reason = _text(part, "reason")
            run.has_ended_well = reason == "stop"
            run.failure = "" if run.has_ended_well else f"its last step ended with {reason or 'no reason'}"
        case "error":
            error = _object(event, "error")
            data = _object(error, "data")
            run.has_ended_well = False
            run.failure = _text(data, "message") or _text(error, "name") or "an error"
            run.status = _number(data.get("statusCode"))
        case _:
            pass


def read_pi(run: AgentRun, event: Event) -> None:
    match event.get("type"):
        case "session":
            run.session = _text(event, "id")
        case "message_end":
            message = _object(event, "message")
            if message.get("role") != "assistant":
                return
            run.turns += 1
            run.add_cost(_object(_object(message, "usage"), "cost").get("total"))
            run.answer = "".join(
                _text(part, "text") for part in _listed(message, "content") if isinstance(part, dict)
            )
            stop = _text(message, "stopReason")
            run.has_ended_well = stop == "stop"
            run.failure = (
                "" if run.has_ended_well else _text(message, "errorMessage") or f"it stopped: {stop}"
            )
        case _:
            pass


# --- The judgement

_LIMIT = re.compile(
    r"(?i)insufficient_quota|quota exceeded|usage limit|credit balance|billing|limit reached|spend limit|\b402\b"
)
_AUTH = re.compile(
    r"(?i)\b40[13]\b|unauthorized|invalid api key|not logged in|please run /login|authentication"
)
_AWAY = re.compile(
    r"(?i)\b(?:429|5\d\d)\b|high demand|at capacity|overloaded|rate.?limit|disconnected|connection (?:refused|reset|error)"
    r"|econnre|enotfound|etimedout|fetch failed|timed? ?out|network|unable to connect|api connection"
)

_NO_SESSION = re.compile(
    r"(?i)\bno (?:session|conversation|rollout|thread)\b|\b(?:session|conversation|rollout|thread)\b.{0,60}not f(?:ou|i)nd"
)


def is_session_unknown(run: AgentRun, reason: str) -> bool:
    """Whether the reason for the end says that the agent does not know the session that it was to resume. An agent
    that was killed soon after its start may have reported a session that it had not stored yet.
    """
    return run.turns == 0 and bool(_NO_SESSION.search(reason))


def outcome_of_run(run: AgentRun, exit_code: int, said: str) -> tuple[Outcome, str]:
    """How a process of an agent ended by itself, and why. `exit_code` is 0-255. `said` is its last line that is no event."""
    if exit_code == 0 and run.has_ended_well and run.answer.strip():
        return Outcome.COMPLETED, ""
    if not run.has_events:
        why = f"it ended with exit {exit_code} and without any event{': ' if said else ''}{said}"
        outcome = _by_words(said)
        # The next process would end in the same way, as with a wrong option.
        return Outcome.CONFIG if outcome is Outcome.TASK_FAILED else outcome, why
    why = run.failure or ("it gave no answer" if exit_code == 0 else f"it ended with exit {exit_code}")
    account = exhausted_account((), why)
    if (
        account is not None and not account.is_refilled
    ):  # only a person can change that; some vendors send it as 429
        return Outcome.API_REJECTED, why
    return _by_status(run.status) or _by_words(why), why


def _by_status(status: int | None) -> Outcome | None:
    if status is None:
        return None
    if status in {401, 403}:
        return Outcome.AUTH
    if status == 402:
        return Outcome.API_REJECTED
    return Outcome.API_UNAVAILABLE if status == 429 or status >= 500 else None


def _by_words(why: str) -> Outcome:
    if _LIMIT.search(why):
        return Outcome.API_REJECTED
    if _AUTH.search(why):
        return Outcome.AUTH
    return Outcome.API_UNAVAILABLE if _AWAY.search(why) else Outcome.TASK_FAILED


def _object(event: Event, name: str) -> Event:
    value = event.get(name)
    return value if isinstance(value, dict) else {}


def _listed(event: Event, name: str) -> list[Any]:
    value = event.get(name)
    return value if isinstance(value, list) else []


def _text(event: Event, name: str) -> str:
    value = event.get(name)
    return value if isinstance(value, str) else ""


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# --- The file of a session

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
