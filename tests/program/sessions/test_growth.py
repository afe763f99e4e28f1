"""Long journals, and journals with a long torn end, take little memory in a whole process."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from ralph.conversation.journal_lines import line_of
from ralph.conversation.messages import RequestShape, user_message
from ralph.conversation.records import (
    CompactedRecord,
    EventRecord,
    assistant_record,
    intent_record,
    result_record,
    run_record,
    session_record,
    user_record,
)
from ralph.mock_api import Turn
from ralph.sessions.journal import FileJournal
from ralph.values.answer import ToolCall, ToolOutput, ToolResult
from tests.fakes import answer, call, text
from tests.program.conftest import without_sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ralph.conversation.records import Record
    from tests.program.conftest import Ralph

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems count in bytes, or not at all")

ID = "0000000a-0000-4000-8000-00000000000a"
MB = 1_000_000
SIZE = 40 * MB
TURN_BYTES = 50_000
_TELLS_PEAK = """
import os, sys
process = os.posix_spawn(sys.executable, [sys.executable, "-m", "ralph", *sys.argv[1:]], os.environ)
_, status, usage = os.wait4(process, 0)
print(usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""
"""A small program between the test and ralph: a process inherits the peak of its parent."""


class Measured:
    def __init__(self, ralph: Ralph) -> None:
        self.ralph = ralph

    def peak(self, *arguments: str, code: int = 0) -> int:
        """The peak of resident memory of a whole process, in bytes."""
        words = [*arguments, "--session-dir", str(self.ralph.cwd.parent / "journals")]
        ran = subprocess.run(
            [sys.executable, "-S", "-c", _TELLS_PEAK, *without_sandbox(words)],
            cwd=self.ralph.cwd,
            env=self.ralph.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        assert ran.returncode == code, ran.stderr
        return int(ran.stdout.splitlines()[-1]) * 1024

    @property
    def journal(self) -> Path:
        return self.ralph.cwd.parent / "journals" / "x" / f"{ID}.jsonl"


@pytest.fixture
def measured(ralph, serve) -> Measured:
    serve(*[Turn("Done.")] * 9)
    return Measured(ralph)


def records(cwd: Path, size: int, turns_of_context: int | None) -> Iterator[Record]:
    """A session that was killed. `turns_of_context` is the number of turns between two compactions."""
    yield session_record(ID, str(cwd), "2026-11-21T12:00:00+00:00", "0")
    shape = RequestShape("claude-sonnet-5-5", f"You are ralph.\nWorking directory: {cwd}\n", ())
    yield run_record(shape, "2026-11-21T12:00:01+00:00", 1)
    yield user_record(user_message("Do it."), task=1)
    for number in range(size // TURN_BYTES):
        one = f"c{number}"
        yield EventRecord(event={"subtype": "notice", "text": f"turn {number}"})
        yield assistant_record(answer(text(f"Step {number}."), call(one, "Bash", command="ls")))
        yield intent_record(ToolCall(one, "Bash", {}), None)
        yield result_record(ToolResult(one, ToolOutput(f"{number:019d}\n" * (TURN_BYTES // 21))))
        if turns_of_context and number % turns_of_context == turns_of_context - 1:
            content = ({"type": "text", "text": "So far."},)
            yield CompactedRecord(
                content=content, summary="s", trigger="auto", source="model", pre_tokens=1, post_tokens=1
            )


def write(path: Path, cwd: Path, size: int, turns_of_context: int | None) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for seq, record in enumerate(records(cwd, size, turns_of_context)):
            file.write(line_of(seq, record, 1764012345.0))
    return path.stat().st_size


@pytest.mark.parametrize(
    ("turns_of_context", "most"),
    [pytest.param(20, 0.25, id="compacted"), pytest.param(None, 1.5, id="one context")],
)
def test_a_resumed_session_takes_the_memory_of_its_context(measured, turns_of_context, most) -> None:
    """Not even a context as large as the journal is in memory twice."""
    write(measured.journal, measured.ralph.cwd, MB, 20)
    small = measured.peak("--resume", ID, "on")
    size = write(measured.journal, measured.ralph.cwd, SIZE, turns_of_context)
    assert size > 0.9 * SIZE
    assert measured.peak("--resume", ID, "on") - small < most * size
    assert measured.peak("--resume", ID, "--fork-session", "on") - small < most * size
    copies = [path for path in measured.journal.parent.parent.rglob("*.jsonl") if path != measured.journal]
    assert [path.stat().st_size > 0.9 * size for path in copies] == [True]


def test_who_holds_a_long_journal_is_said_without_reading_it_into_memory_exits_78(measured) -> None:
    write(measured.journal, measured.ralph.cwd, MB, 20)
    small = measured.peak("--resume", ID, "on")
    size = write(measured.journal, measured.ralph.cwd, SIZE, None)
    holder = FileJournal.open(measured.journal)
    try:
        assert measured.peak("--resume", ID, "on", code=78) - small < 0.25 * size
    finally:
        holder.close()


def test_a_torn_end_is_set_aside_without_reading_it_into_memory(measured) -> None:
    write(measured.journal, measured.ralph.cwd, MB, 20)
    small = measured.peak("--resume", ID, "on")
    whole = measured.journal.read_bytes()
    torn = b'{"seq":9999,"kind":"tool_result","content":"' + b"x" * SIZE
    measured.journal.write_bytes(whole + torn)
    for words in (["sessions", "ls"], ["report", "-o", str(measured.ralph.cwd.parent / "page.html"), ID]):
        assert measured.peak(*words) - small < 0.25 * SIZE, words
    assert measured.peak("--resume", ID, "on") - small < 0.25 * SIZE
    assert measured.journal.read_bytes().startswith(whole)
    assert measured.journal.with_suffix(".torn").read_bytes() == torn
