"""Journals that were recorded once and are kept for ever: every later ralph goes on from them as the first one did."""

from __future__ import annotations

import json

import pytest

from ralph.conversation.journal_lines import FORMAT, Record, line_of, read_lines
from ralph.conversation.session import NewerFormatError, replay
from tests.journals.corpus import EXPECTED, JOURNALS, summary_of
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
        "queued",
        "ended",
        "event",
    }
    assert {record.kind for record in RECORDS} == kinds
    answers = [record.fields for record in RECORDS if record.kind == "assistant"]
    blocks = {block["type"] for answer in answers for block in answer["message"]["content"]}
    assert blocks == {"text", "thinking", "redacted_thinking", "tool_use", "of_tomorrow"}
    assert any(answer["malformed"] for answer in answers)
    assert any("forked_from" in record.fields for record in RECORDS)
    assert any(record.fields.get("amends") for record in RECORDS)
    assert any(record.fields.get("change") for record in RECORDS)
    results = [record.fields for record in RECORDS if record.kind == "tool_result"]
    assert any(isinstance(result["content"], list) for result in results), "an image"
    assert any(result.get("is_error") for result in results)


def test_p14_a_journal_of_a_newer_format_is_refused_whatever_else_it_holds() -> None:
    opening = {"format": FORMAT + 1, "ralph": "99.0.0", "of_tomorrow": True}
    lines = line_of(Record(0, "session", opening)) + line_of(Record(1, "of_tomorrow", {}))
    with pytest.raises(NewerFormatError, match=r"made by ralph 99\.0\.0 in format"):
        replay(read_lines(lines).records)
