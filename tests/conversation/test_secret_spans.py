"""The places of secrets in records: where they are written, and what is cut there."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.conversation.journal_lines import FIELD, JournalDamage, RecordView, line_of, sealed, spans_field
from ralph.conversation.records import AssistantRecord, EventRecord, ResultRecord, UnknownRecord
from ralph.values.redaction import Redactor
from tests.journals.reading import readable_part
from tests.rows import every_row
from tests.sessions.session_journals import JournalBuilder, completed

SECRET = 'pä"ss/w+o rd\\1?'
KNOWS, FORGOT = Redactor([SECRET]), Redactor()


def shown(fields: dict[str, Any], kind: str = "event") -> dict[str, Any]:
    """The fields as somebody sees them who does not know the secret."""
    stored = json.loads(json.dumps({**fields, **spans_field(kind, fields, KNOWS.spans)}))
    return dict(RecordView(FORGOT)(kind, stored))


json_values = st.recursive(
    st.sampled_from([SECRET, f"😀{SECRET} and {SECRET}", "nothing", 7, None, json.dumps(SECRET)]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", SECRET]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(json_values)
def test_a_secret_is_cut_wherever_it_is_in_a_value(value) -> None:
    assert KNOWS.redact(json.dumps(value)) == json.dumps(value) or SECRET not in str(shown({"event": value}))
    text = json.dumps(shown({"event": value}))
    assert (KNOWS.redact(text), shown({"event": "nothing"})) == (text, {"event": "nothing"})


@every_row(
    ("fields", "spans"),
    [
        ({"event": {"x": f"a😀{SECRET}"}}, [[["event", "x"], 2, len(SECRET)]]),
        (
            {"content": ["", {"text": f"{SECRET},{SECRET}"}]},
            [[["content", 1, "text"], 0, 15], [["content", 1, "text"], 16, 15]],
        ),
        ({"input": {"a": 1, f"x{SECRET}": "y"}}, [[["input", 1], 1, 15, True]]),
        ({"input": {SECRET: SECRET}}, [[["input", 0], 0, 15, True], [["input", 0], 0, 15]]),
        ({"head": json.dumps({"system": [{"text": SECRET}]})}, [[["head", "system", 0, "text"], 0, 15]]),
        ({"text": "\r".join((SECRET[:4], SECRET[4:]))}, [[["text"], 0, 16]]),
        ({"source": {"type": "base64", "data": SECRET}}, None),
        ({"cwd": "/tmp"}, None),
    ],
)
def test_a_place_is_a_path_and_code_points_of_the_decoded_string(fields, spans) -> None:
    found = json.loads(json.dumps(spans_field("event", fields, KNOWS.spans)))
    assert found == ({} if spans is None else {FIELD: spans})
    assert SECRET not in json.dumps(found)


def test_a_run_always_has_the_field_and_other_records_only_with_secrets() -> None:
    assert spans_field("run", {"model": "x"}, KNOWS.spans) == {FIELD: []}
    assert spans_field("run", {"model": "x"}, None) == {}
    assert spans_field("ended", {"result": "x"}, KNOWS.spans) == {}
    view = RecordView(FORGOT)
    view("run", {FIELD: []})
    assert not view.has_unmarked
    view("run", {})
    assert view.has_unmarked


def test_the_places_change_no_record_that_is_read_to_resume() -> None:
    record = ResultRecord(type="tool_result", tool_use_id="c", content=f"x {SECRET}")
    told = JournalBuilder().run().prompt("do it").records
    lines = [line_of(at, one, 1.0, KNOWS.spans) for at, one in enumerate([*told, record])]
    data = b"".join(lines)
    assert b'"secrets":[[["content"],2,15]],"at":1.0' in lines[-1]
    assert readable_part(data)[0][-1] == record
    view = RecordView(FORGOT)
    seen = readable_part(data, view)[0]
    assert isinstance(seen[-1], ResultRecord)
    assert (seen[-1].content, view.found) == ("x [redacted]", {SECRET})
    assert seen[1] == told[1], "the request head is read again"


def test_a_journal_without_secrets_is_shown_as_it_is() -> None:
    told = completed()
    data = b"".join(line_of(at, one, 1.0, KNOWS.spans) for at, one in enumerate(told.records))
    assert readable_part(data, RecordView(FORGOT)) == (tuple(told.records), None)


@every_row(
    "spans",
    [
        [[["event", "x"], 0, 99]],
        [[["event", "y"], 0, 1]],
        [[["event"], 0, 1]],
        [[["event", "x", 0], 0, 1]],
        [[["event", "x"], 0, 2], [["event", "x"], 1, 2]],
        [[["event", "x"], -1, 2]],
        [["event"]],
        7,
    ],
)
def test_a_place_that_is_not_in_the_record_is_damage_for_those_who_show_it(spans) -> None:
    line = sealed({"seq": 0, "kind": "event", "event": {"x": "some text"}, FIELD: spans})
    assert readable_part(line)[1] is None
    assert isinstance(readable_part(line, RecordView(FORGOT))[1], JournalDamage)


def test_a_value_that_is_nested_deep_does_not_keep_a_record_from_the_journal() -> None:
    deep: Any = SECRET
    for _ in range(700):
        deep = [deep]
    line = line_of(0, EventRecord(event={"x": deep}), 1.0, KNOWS.spans)
    assert b'"secrets":' in line
    records, damage = readable_part(line, RecordView(FORGOT))
    assert (SECRET not in str(records)) or damage is not None


def test_keys_of_known_forms_are_cut_without_places_and_own_words_stay() -> None:
    key = "sk-ant-api03-" + "a1B2" * 8
    message = {"content": [{"type": "tool_use", "id": "a", "name": "Bash", "input": {key: "x", "type": key}}]}
    record = AssistantRecord(
        message=message, request_id=f"req {key[:9]}\r{key[9:]}", calls=("a",), malformed={}
    )
    line = json.loads(line_of(0, record))
    clean = RecordView(Redactor(["tool_use"]))("assistant", line)
    assert key not in "".join(char for char in json.dumps(clean) if char.isprintable())
    assert (clean["message"]["content"][0]["type"], clean["request_id"]) == ("tool_use", "req [redacted]")


def test_an_unknown_record_keeps_its_field() -> None:
    line = sealed({"seq": 0, "kind": "of_tomorrow", "text": SECRET, FIELD: [[["text"], 0, 15]]})
    assert readable_part(line)[0] == (
        UnknownRecord("of_tomorrow", {"text": SECRET, FIELD: [[["text"], 0, 15]]}),
    )
    assert SECRET not in str(readable_part(line, RecordView(FORGOT))[0])


def test_damage_is_told_without_the_secret() -> None:
    line = sealed({"seq": 0, "kind": "event", "event": SECRET, FIELD: [[["event"], 0, 15]]})
    with pytest.raises(JournalDamage) as damage:
        raise readable_part(line, RecordView(FORGOT))[1] or AssertionError
    assert SECRET not in str(damage.value)
