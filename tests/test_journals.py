"""Journals that were recorded once and are kept for ever. Every later ralph must resume them like the ralph that
recorded them.
"""

from __future__ import annotations

import json

import pytest

from ralph.conversation.journal_lines import line_of, sealed
from ralph.conversation.records import (
    FORMAT,
    AssistantRecord,
    IntentRecord,
    NewerFormatError,
    ResultRecord,
    SessionRecord,
    UserRecord,
)
from tests.journals.corpus import EXPECTED, JOURNALS, summary_of
from tests.journals.reading import read_lines, readable_part
from tests.recorded.raw_journals import recorded_journals
from tests.rows import every_row

NAMES = sorted(path.stem for path in JOURNALS.glob("*.jsonl"))
RECORDS = [
    record for name in NAMES for record in read_lines((JOURNALS / f"{name}.jsonl").read_bytes()).records
]


@every_row("name", NAMES)
def test_p14_a_recorded_journal_leads_to_the_same_request_for_ever(name) -> None:
    assert summary_of((JOURNALS / f"{name}.jsonl").read_bytes()) == json.loads(EXPECTED.read_text())[name]


def test_every_recorded_journal_is_there() -> None:
    assert sorted(json.loads(EXPECTED.read_text())) == NAMES


def test_the_recorded_journals_hold_every_kind_of_record_and_block() -> None:
    kinds = {
        "session",
        "run",
        "target",
        "user",
        "assistant",
        "tool_intent",
        "tool_result",
        "compacted",
        "thinking_refused",
        "delivery",
        "queued",
        "ended",
        "event",
    }
    assert {record.kind for record in RECORDS} == kinds
    answers = [record for record in RECORDS if isinstance(record, AssistantRecord)]
    blocks = {block["type"] for answer in answers for block in answer.blocks}
    assert blocks == {"text", "thinking", "redacted_thinking", "tool_use", "of_tomorrow"}
    assert any(answer.malformed for answer in answers)
    assert any(isinstance(record, SessionRecord) and record.forked_from for record in RECORDS)
    assert any(isinstance(record, UserRecord) and record.amends for record in RECORDS)
    assert any(isinstance(record, IntentRecord) and record.change for record in RECORDS)
    results = [record for record in RECORDS if isinstance(record, ResultRecord)]
    assert any(not isinstance(result.content, str) for result in results), "an image"
    assert any(result.is_error for result in results)


def test_p14_a_journal_of_a_newer_format_is_refused_whatever_else_it_holds() -> None:
    opening = {"format": FORMAT + 1, "ralph": "99.0.0", "of_tomorrow": True}
    lines = sealed({"seq": 0, "kind": "session", **opening}) + b"something quite new\n"
    for read in (read_lines, readable_part):
        with pytest.raises(NewerFormatError, match=r"made by ralph 99\.0\.0 in format"):
            read(lines)


def test_records_of_todays_kinds_are_written_as_they_were_read() -> None:
    """A run must write records of the current format exactly as it always did, to the byte."""
    todays = [
        (name, journal) for name, journal in recorded_journals().items() if not name.startswith("older/")
    ]
    assert len(todays) > 20
    for name, journal in todays:
        for seq, (line, record) in enumerate(
            zip(journal.splitlines(keepends=True), read_lines(journal).records, strict=True)
        ):
            assert line_of(seq, record) == line, (name, seq)
