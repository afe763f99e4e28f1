"""Measures `ralph sessions ls --all` with a gigabyte of journals: 2,000 sessions, of which four have 50 to 100 MB."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.harness import Figure, Row, figure, ralph, show, workplace
from ralph.conversation.messages import RequestShape, user_message
from ralph.conversation.records import (
    EventRecord,
    Record,
    assistant_record,
    delivery_record,
    ended_record,
    intent_record,
    result_record,
    run_record,
    session_record,
    user_record,
)
from ralph.output.stream_json import journal_fields
from ralph.sessions.store import SessionStore
from ralph.values.answer import Answer, ToolCall, ToolOutput, ToolResult
from ralph.values.events import AttemptEnded, RunEnded
from ralph.values.outcome import Delivery, Outcome
from ralph.values.servers import facts_of
from ralph.values.usage import RunUsage, TokenUsage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.harness import Workplace

SESSIONS = 2_000
LARGE_MB = (50, 60, 80, 100)
ALL_MB = 1_000
RUNS = 5
_MODEL = "claude-sonnet-5-5"
_WORDS = "the tests of the parser fail because a line break at the end of the file counts twice "
_SEED = 16


class ResultLines(NamedTuple):
    """The lines of a tool's result."""

    line: str
    most: int
    """The number of lines is less than this."""


RESULT_LINES = ResultLines(_WORDS, 140)


def main() -> None:
    with workplace() as place:
        size_mb = make_journals(place)
        wall, cpu, peak_mb = list_all(place)
    rows = [Row("wall", wall), Row("CPU", cpu), Row("peak memory, MB", peak_mb)]
    show(f"sessions ls --all, {SESSIONS:,} journals, {size_mb:,.0f} MB", rows, unit="ms")


def list_all(place: Workplace, runs: int = RUNS) -> tuple[Figure, Figure, Figure]:
    """Lists the sessions several times. Returns the wall and the CPU time in ms, and the peak memory in MB."""
    command = ralph("sessions", "ls", "--all")
    place.measure(command)
    measured = [place.measure(command) for _ in range(runs)]
    return (
        figure([one.wall_s * 1000 for one in measured]),
        figure([one.cpu_s * 1000 for one in measured]),
        figure([one.peak_mb for one in measured]),
    )


def make_journals(place: Workplace) -> float:
    """Writes the sessions into the session store of the workplace. Returns their total size in MB."""
    chance = random.Random(_SEED)
    store = SessionStore.for_user(place.environment())
    rest_mb = (ALL_MB - sum(LARGE_MB)) / (SESSIONS - len(LARGE_MB))
    sizes_mb = [*LARGE_MB, *(chance.uniform(0.1, 1.9) * rest_mb for _ in range(SESSIONS - len(LARGE_MB)))]
    return sum(
        write_journal(store, place.directory / str(number % 20), number, size_mb, chance)
        for number, size_mb in enumerate(sizes_mb)
    )


def write_journal(
    store: SessionStore,
    cwd: Path,
    number: int,
    size_mb: float,
    chance: random.Random,
    *,
    lines: ResultLines = RESULT_LINES,
) -> float:
    """Writes the journal of one session and returns its size in MB. Every twentieth session looks as if it was
    killed.
    """
    session_id = f"{number:08x}-0000-4000-8000-000000000000"
    journal = store.create(session_id, cwd)
    for record in _records(session_id, cwd, size_mb, chance, lines=lines, is_killed=number % 20 == 3):
        journal.append(record, sync=False)
    journal.close()
    return journal.path.stat().st_size / 1e6


def _records(
    session_id: str,
    cwd: Path,
    size_mb: float,
    chance: random.Random,
    *,
    lines: ResultLines,
    is_killed: bool,
) -> Iterator[Record]:
    """Yields the records of a session. Their sizes are like those of real work: about 1.5 kB for an answer and 0.2 to
    12 kB for a tool result. With `is_killed`, the records of the end are missing.
    """
    yield session_record(session_id, str(cwd), "2026-11-21T12:00:00+00:00", "0.1.0")
    yield run_record(RequestShape(_MODEL, _WORDS * 10, ()), "2026-11-21T12:00:01+00:00", 4711)
    yield user_record(user_message(f"Task {session_id}: {_WORDS}"), task=1)
    attempt = journal_fields(AttemptEnded(1, 1, _MODEL, _MODEL, 1.25, TokenUsage(1000, 50), facts_of(_MODEL)))
    size, turns = 0, 0
    while size < size_mb * 1e6:
        call = ToolCall(f"toolu_{turns:020}", "Bash", {"command": f"make test-{turns}"})
        output = (lines.line + "\n") * chance.randrange(2, lines.most)
        block = {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
        content = [{"type": "text", "text": _WORDS * 14}, block]
        tokens = {"input_tokens": 1000, "output_tokens": 300}
        message = {"content": content, "stop_reason": "tool_use", "usage": tokens}
        yield EventRecord(event=dict(attempt or {}))
        yield assistant_record(Answer(message, (call,), request_id=f"req_{turns}"))
        yield intent_record(call, None)
        yield result_record(ToolResult(call.id, ToolOutput(output)))
        size += len(output) + 2_400
        turns += 1
    if not is_killed:
        usage = RunUsage().plus(_MODEL, TokenUsage(1000, 100), facts_of(_MODEL))
        ended = RunEnded(Outcome.COMPLETED, 0, "Done.", (), None, turns, 12.34, 9.0, usage)
        yield ended_record(ended)
        yield delivery_record(Delivery.DELIVERED, ended)


if __name__ == "__main__":
    main()
