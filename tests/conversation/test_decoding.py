"""A journal's records are decoded into types: older formats, records of a newer ralph, and errors that name the
path.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import ValidationError

from ralph.conversation.journal_lines import TYPES, JournalDamage, decoded, line_of, sealed
from ralph.conversation.records import EndedRecord, Record, RunRecord, TargetRecord, UnknownRecord, UserRecord
from tests.journals.reading import read_lines, readable_part
from tests.rows import every_row

TEXT = {"type": "text", "text": "x"}
CALL = {"type": "tool_use", "id": "c", "name": "Bash", "input": {}}
HEAD = '{"model":"m","max_tokens":5}'
MESSAGE = {"content": [TEXT, CALL], "stop_reason": "tool_use", "usage": {}}
WHOLE: dict[str, dict[str, Any]] = {
    "session": {"format": 3, "ralph": "0", "id": "s", "cwd": "/work", "created_at": "now"},
    "moved": {"cwd": "/work"},
    "run": {"started_at": "now", "pid": 1, "target": "t", "model": "m", "endpoint": "u", "head": HEAD},
    "target": {"target": "t", "cooling": {"t": "2026-11-21T12:00:00+00:00"}, "first": "t"},
    "queued": {"content": [TEXT]},
    "user": {"content": [TEXT], "task": 1},
    "assistant": {"message": MESSAGE, "request_id": None, "calls": ["c"], "malformed": {"c": ["{", "cut"]}},
    "tool_intent": {"id": "c", "name": "Edit", "change": {"path": "/a", "before": None, "after": "f"}},
    "tool_result": {"type": "tool_result", "tool_use_id": "c", "content": [TEXT]},
    "background": {"count": 2, "running": {"bash_2": "npm run dev"}},
    "compacted": {
        "content": [TEXT],
        "summary": "",
        "trigger": "overflow",
        "source": "cut",
        "pre_tokens": 2,
        "post_tokens": 1,
    },
    "thinking_refused": {"model": "m", "endpoint": "u", "is_off": True},
    "event": {"event": {"subtype": "turn_asked", "turn": 1, "attempts": 1, "took_s": 0.5}},
    "ended": {
        "outcome": "completed",
        "exit_code": 0,
        "result": None,
        "errors": [],
        "num_turns": 1,
        "duration_s": 1.5,
        "cost_usd": 0,
        "delivered": False,
    },
    "delivery": {"state": "delivered"},
}


LACKING_BEFORE = {"target", "endpoint", "first", "task", "delivered"}
"""Fields that older formats do not have."""


def test_there_is_a_decoder_for_every_kind_and_what_it_reads_is_written_again() -> None:
    assert WHOLE.keys() == TYPES.keys()
    assert {kind.__name__ for kind in TYPES.values()} | {"UnknownRecord"} == {
        kind.__name__ for kind in Record.__args__
    }
    for kind, fields in WHOLE.items():
        record = decoded(kind, fields)
        assert isinstance(record, TYPES[kind])
        assert line_of(0, record) == sealed({"seq": 0, "kind": kind, **fields})


@every_row(
    ("kind", "field", "value", "says"),
    [
        ("session", "cwd_bytes", 5, "Expected `str | null`, got `int` - at `$.cwd_bytes`"),
        ("session", "copied", "many", "Expected `int | null`, got `str` - at `$.copied`"),
        ("run", "pid", "1", "Expected `int`, got `str` - at `$.pid`"),
        ("run", "head", 5, "Expected `str`, got `int` - at `$.head`"),
        ("run", "head", "[5]", "at `$.head`"),
        ("target", "cooling", {"t": 1}, "Expected `str`, got `int` - at `$.cooling[...]`"),
        ("target", "cooling", {"t": "then"}, "Invalid RFC3339 encoded datetime - at `$.cooling[...]`"),
        ("user", "task", 2, "More blocks than there are - at `$.task`"),
        ("user", "content", [{"type": 5}], "Expected `str`, got `int` - at `$.content[0].type`"),
        ("queued", "content", [TEXT, 5], "Expected `object`, got `int` - at `$.content[1]`"),
        ("compacted", "content", [{"type": "text"}], "field `text` - at `$.content[0]`"),
        ("tool_result", "content", [{"type": "text"}], "field `text` - at `$.content[0]`"),
        ("user", "content", [{**TEXT, "text": None}], "Expected `str`, got `null` - at `$.content[0].text`"),
        ("assistant", "calls", [5], "Expected `str`, got `int` - at `$.calls[0]`"),
        ("assistant", "calls", ["c", "d"], "No tool_use block has this id - at `$.calls[1]`"),
        (
            "assistant",
            "message",
            {**MESSAGE, "usage": 5},
            "Expected `object`, got `int` - at `$.message.usage`",
        ),
        (
            *("assistant", "message", {**MESSAGE, "content": [{**CALL, "input": "x"}]}),
            "Expected `object`, got `str` - at `$.message.content[0].input`",
        ),
        ("assistant", "malformed", {"c": ["{"]}, "at `$.malformed[...]`"),
        ("tool_intent", "change", {"path": "/a"}, "missing required field `before` - at `$.change`"),
        ("tool_result", "seen", {"/a": 5}, "Expected `str`, got `int` - at `$.seen[...]`"),
        ("event", "event", {"subtype": "attempt"}, "missing required field `turn` - at `$.event`"),
        ("background", "running", {"bash_1": 5}, "Expected `str`, got `int` - at `$.running[...]`"),
        ("ended", "errors", [5], "Expected `str`, got `int` - at `$.errors[0]`"),
        ("delivery", "state", "splendid", "Invalid enum value 'splendid' - at `$.state`"),
    ],
)
def test_a_wrong_field_is_damage_with_its_line_and_its_path(kind, field, value, says) -> None:
    wrong = sealed({"seq": 1, "kind": kind, **WHOLE[kind], field: value})
    whole = line_of(0, decoded("session", WHOLE["session"]))
    with pytest.raises(JournalDamage) as caught:
        read_lines(whole + wrong)
    assert str(caught.value).startswith("line 2 makes no sense: ")
    assert str(caught.value).endswith(says)
    records, damage = readable_part(whole + wrong)
    assert (len(records), str(damage)) == (1, str(caught.value))


def test_every_field_is_required_but_those_that_are_left_out_or_filled_in() -> None:
    for kind, fields in WHOLE.items():
        for name in fields:
            if name in {"change", "is_off"} or name in LACKING_BEFORE:
                continue
            with pytest.raises(ValidationError, match=f"missing required field `{name}`"):
                decoded(kind, {other: value for other, value in fields.items() if other != name})


def test_older_formats_lack_fields_that_are_filled_in_before_they_are_decoded() -> None:
    def older(kind: str, *lacks: str) -> Any:
        return decoded(kind, {name: value for name, value in WHOLE[kind].items() if name not in lacks})

    run, target = older("run", "target", "endpoint"), older("target", "first")
    assert isinstance(run, RunRecord)
    assert (run.target, run.endpoint) == ("m", None)
    assert isinstance(target, TargetRecord)
    assert target.first is None
    user, ended = older("user", "task"), older("ended", "delivered")
    assert isinstance(user, UserRecord)
    assert user.task is None
    assert isinstance(ended, EndedRecord)
    assert ended.delivered


def test_what_a_newer_ralph_wrote_passes_through() -> None:
    fields = {"content": 5, "deep": [{"x": None}]}
    [record] = read_lines(sealed({"seq": 0, "kind": "of_tomorrow", **fields})).records
    assert record == UnknownRecord("of_tomorrow", fields)
    assert decoded("moved", {"cwd": "/work", "of_tomorrow": 1}) == decoded("moved", {"cwd": "/work"})
    assert decoded("event", {"event": {"subtype": "of_tomorrow", "turn": "x"}})


@every_row(
    "odd",
    [
        {"odd": [10**30, 1e16, 1.0, "\u2028", {"b": 1, "a": 2}]},
        {"\ud800": 1, "content": [*MESSAGE["content"], {"type": "text", "text": "t", "\ud800": 1}]},
    ],
)
def test_numbers_and_bytes_of_an_answer_stay_as_they_came(odd) -> None:
    message = {**MESSAGE, **odd}
    line = sealed({"seq": 0, "kind": "assistant", **WHOLE["assistant"], "message": message})
    [record] = read_lines(line).records
    assert line_of(0, record) == line
