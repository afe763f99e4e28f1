"""Tests what counts as a final report, where a report is found in text, and what replaces it if none came."""

from __future__ import annotations

import json
import time
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ralph.run.report_check import report_tool
from ralph.values.answer import FINAL_REPORT, MalformedCall, ToolCall
from ralph.values.report import (
    LONGEST_TEXT,
    NO_CALL,
    NO_SUMMARY,
    Report,
    ReportReceiver,
    plain_problems,
    synthetic_report,
)
from tests.rows import every_row

DONE = {"status": "success", "summary": "All green."}


def call(arguments: dict[str, Any]) -> ToolCall:
    return ToolCall("toolu_1", FINAL_REPORT, arguments)


def files_problems(arguments: Any) -> list[str]:
    """The problems with a schema for the payload that is {"type": "object", "required": ["files"]}."""
    problems = plain_problems(arguments)
    payload = arguments.get("payload")
    if arguments.get("status") != "failure" and not (isinstance(payload, dict) and "files" in payload):
        problems.append("payload.files: required")
    return problems


def lenient_problems(arguments: Any) -> list[str]:
    """The problems with a schema for the payload that every object fits."""
    problems = plain_problems(arguments)
    if not isinstance(arguments.get("payload", {}), dict):
        problems.append("payload: expected an object")
    return problems


def plain_receiver() -> ReportReceiver:
    return ReportReceiver(plain_problems, has_payload=False)


def files_receiver() -> ReportReceiver:
    return ReportReceiver(files_problems, has_payload=True)


# -- The tool. ---------------------------------------------------------------------------------------------------


def test_the_plain_tool_is_small_and_its_bytes_are_known() -> None:
    tool = report_tool(None)
    assert tool.name == "final_report"
    assert not tool.is_read_only
    assert json.dumps(tool.input_schema) == (
        '{"type": "object", "properties": {"status": {"type": "string", "enum": ["success", "failure"]}, '
        '"summary": {"type": "string", "minLength": 1, "description": "what was done, or why it could not be '
        'done"}}, "required": ["status", "summary"]}'
    )


@every_row(
    ("ref", "embedded"),
    [
        ("#/", "#/properties/payload/"),
        ("#/$defs/x", "#/properties/payload/$defs/x"),
        ("#/definitions/a~1b%20c", "#/properties/payload/definitions/a~1b%20c"),
        ("https://example.com/report#/$defs/x", "#/properties/payload/$defs/x"),
        ("https://example.com/other#/$defs/x", "https://example.com/other#/$defs/x"),
    ],
)
def test_references_into_the_schema_stay_right(ref: str, embedded: str) -> None:
    schema = {"$id": "https://example.com/report", "properties": {"a": {"items": {"$ref": ref}}}}
    before = json.dumps(schema)
    payload = report_tool(schema).input_schema["properties"]["payload"]
    assert (payload, json.dumps(schema)) == ({"properties": {"a": {"items": {"$ref": embedded}}}}, before)


def test_a_reference_is_rewritten_only_where_it_is_one() -> None:
    as_data = {"const": {"$ref": "#/a"}, "enum": [{"$ref": "#/a"}], "default": {"$ref": "#/a"}}
    as_name = {"properties": {"$ref": {"type": "string"}}}
    schema = {**as_data, **as_name}
    assert report_tool(schema).input_schema["properties"]["payload"] == schema


def test_a_reference_is_followed_to_where_no_keyword_leads() -> None:
    schema = {"$ref": "#/shared/node", "shared": {"node": {"items": {"$ref": "#/shared/node"}}}}
    payload = report_tool(schema).input_schema["properties"]["payload"]
    assert payload["shared"]["node"]["items"]["$ref"] == "#/properties/payload/shared/node"


@every_row(
    ("draft", "kept"),
    [
        ("https://json-schema.org/draft/2020-12/schema", None),
        ("https://json-schema.org/draft/2020-12/schema#", None),
        ("http://json-schema.org/draft-07/schema#", "http://json-schema.org/draft-07/schema#"),
    ],
)
def test_another_draft_than_the_default_is_named_at_the_top(draft: str, kept: str | None) -> None:
    schema = report_tool({"$schema": draft, "type": "object"}).input_schema
    assert (schema.get("$schema"), schema["properties"]["payload"]) == (kept, {"type": "object"})


# -- Calls. ------------------------------------------------------------------------------------------------------


@every_row(
    ("arguments", "problems"),
    [
        (DONE, []),
        ({**DONE, "more": 1}, []),
        ({}, ['status: required ("success" or "failure")', "summary: required (a text that is not empty)"]),
        ({**DONE, "status": "done"}, ['status: expected "success" or "failure", got "done"']),
        ({**DONE, "status": None}, ['status: expected "success" or "failure", got null']),
        ({**DONE, "status": ["success"]}, ['status: expected "success" or "failure", got an array']),
        ({**DONE, "summary": " \n"}, ['summary: expected a text that is not empty, got " \\n"']),
        ({**DONE, "summary": {}}, ["summary: expected a text that is not empty, got an object"]),
        ({**DONE, "status": 10**5000}, ['status: expected "success" or "failure", got a very large integer']),
        (
            {**DONE, "status": "x" * 1_000_000},
            [f'status: expected "success" or "failure", got "{"x" * 60}"... (1000000 characters)'],
        ),
        ({**DONE, "status": "\ud800"}, ['status: expected "success" or "failure", got "\\ud800"']),
    ],
)
def test_what_is_wrong_is_said_in_a_line_each(arguments: dict[str, Any], problems: list[str]) -> None:
    assert plain_problems(arguments) == problems


def test_a_report_with_faults_is_not_accepted_and_the_model_is_told_each() -> None:
    receiver = files_receiver()
    output = receiver.receive(call({"status": "done", "summary": "x"}))
    assert output.is_error
    assert output.content == (
        "This report was not accepted:\n"
        '- status: expected "success" or "failure", got "done"\n'
        "- payload.files: required\n"
        "Put this right and send the whole report again."
    )
    assert (receiver.attempts, receiver.accepted) == (1, None)
    assert receiver.last_problem == (
        'status: expected "success" or "failure", got "done"; payload.files: required'
    )


def test_a_malformed_call_is_an_attempt_too() -> None:
    receiver = plain_receiver()
    output = receiver.receive(MalformedCall("toolu_1", FINAL_REPORT, '{"sta', "the answer was cut"))
    assert output.is_error
    assert (
        output.content
        == "This report was not accepted: the answer was cut. Send it again, whole and as valid JSON."
    )
    assert (receiver.attempts, receiver.accepted, receiver.last_problem) == (1, None, "the answer was cut")


def test_a_right_report_is_accepted_and_clears_the_last_problem() -> None:
    receiver = files_receiver()
    receiver.receive(call({}))
    output = receiver.receive(call({**DONE, "payload": {"files": 2}}))
    assert not output.is_error
    assert receiver.accepted == Report("success", "All green.", {"files": 2}, "tool_call")
    assert (receiver.attempts, receiver.last_problem) == (2, None)


@every_row("make_receiver", [plain_receiver, files_receiver])
@every_row("second", [{"status": "failure", "summary": "no"}, {}])
def test_the_first_accepted_report_stays(make_receiver: Any, second: dict[str, Any]) -> None:
    receiver = make_receiver()
    receiver.receive(call({**DONE, "payload": {"files": 2}}))
    first = receiver.accepted
    output = receiver.receive(call(second))
    assert output.is_error
    assert "stays as it is" in str(output.content)
    assert receiver.accepted is first
    assert (receiver.attempts, receiver.last_problem) == (2, None)


def test_a_payload_that_nobody_asked_for_is_no_payload() -> None:
    receiver = plain_receiver()
    receiver.receive(call({**DONE, "payload": 1}))
    assert receiver.accepted == Report("success", "All green.", None, "tool_call")


# -- Text. -------------------------------------------------------------------------------------------------------

WHOLE = '{"status": "failure", "summary": "no"}'
NO = Report("failure", "no", None, "text")


@every_row(
    ("text", "cached"),
    [
        (WHOLE, NO),
        (f"Here:\n```json\n{WHOLE}\n```\nBye.", NO),
        (f"Here:\n```\n{WHOLE}\n```", NO),
        (f"  ```JSON\n{WHOLE}\n  ```", NO),
        (f"```json\n{WHOLE}\n", None),  # an open fence
        (f"I will end with {WHOLE} once it is done.", None),
        (f"```json\n{json.dumps(DONE)}\n```\n```json\n{WHOLE}\n```", NO),
        (f"```json\n{WHOLE}\n```\n```json\n{{}}\n```", None),
        (f"{json.dumps(DONE)}\n{WHOLE}", None),
        ('{"status": "failure", "summary": "a } [ \\" { b"}', Report("failure", 'a } [ " { b', None, "text")),
        ("", None),
        ("null", None),
        ('{"status": "failure"}', None),
        (WHOLE[:-1], None),
        ('{"report": ' + WHOLE + ', "more": [1', None),  # a part of something that was cut is not a report
        (f"[{WHOLE}]", None),
    ],
)
def test_a_report_is_found_in_text(text: str, cached: Report | None) -> None:
    receiver = plain_receiver()
    assert receiver.look_at_text(text) is (cached is not None)
    assert receiver.cached == cached
    assert receiver.accepted is None
    assert receiver.attempts == 0


BARE = '{"files": [1, 2]}'


@every_row("text", [BARE, f"\n{BARE}\n", f"```json\n{BARE}\n```", f"```\n{BARE}\n```\n"])
def test_a_payload_that_is_the_whole_answer_is_a_success(text: str) -> None:
    receiver = files_receiver()
    assert receiver.look_at_text(text)
    assert receiver.cached == Report("success", NO_SUMMARY, {"files": [1, 2]}, "text")


@every_row(
    "text",
    [
        f"I could not finish. The last error was {BARE}",
        f"I could not finish; this is what I tried:\n```json\n{BARE}\n```",
    ],
)
def test_words_beside_a_payload_may_say_that_it_is_none(text: str) -> None:
    receiver = files_receiver()
    assert not receiver.look_at_text(text)
    assert receiver.cached is None


@every_row(
    "text",
    [
        '{"status": "failure", "summary": "", "payload": {}}',
        '{"status": "failure"}',
        '{"status": "success", "summary": "x", "payload": 1}',
    ],
)
def test_a_report_with_a_mistake_never_passes_for_a_payload(text: str) -> None:
    receiver = ReportReceiver(lenient_problems, has_payload=True)
    assert not receiver.look_at_text(text)


def test_a_payload_may_have_a_status_of_its_own() -> None:
    receiver = files_receiver()
    assert receiver.look_at_text('{"status": "success", "files": 1}')
    assert receiver.cached is not None
    assert receiver.cached.payload == {"status": "success", "files": 1}


def test_the_newest_text_counts_and_other_words_take_an_older_one_back() -> None:
    receiver = plain_receiver()
    assert receiver.look_at_text(json.dumps(DONE))
    assert receiver.look_at_text(WHOLE)
    assert not receiver.look_at_text(" ")
    assert receiver.cached == NO
    assert not receiver.look_at_text("The tests fail after all.")
    assert receiver.cached is None


def test_a_text_that_the_model_was_told_about_is_forgotten() -> None:
    receiver = plain_receiver()
    assert receiver.take_text(json.dumps(DONE))
    receiver.forget_text()
    assert receiver.accept_cached() is None


def test_plain_text_in_the_place_of_a_call_is_an_attempt_that_says_what_was_wrong() -> None:
    receiver = plain_receiver()
    assert not receiver.take_text("All is done.")
    assert (receiver.attempts, receiver.last_problem) == (1, NO_CALL)
    assert not receiver.take_text(" ")
    assert receiver.take_text(json.dumps(DONE))
    assert (receiver.attempts, receiver.last_problem) == (2, None)


def test_a_call_that_is_refused_takes_an_older_text_back() -> None:
    receiver = plain_receiver()
    assert receiver.look_at_text(json.dumps(DONE))
    assert receiver.receive(call({"status": "failure"})).is_error
    assert receiver.accept_cached() is None


def test_a_cached_report_counts_only_when_it_is_accepted() -> None:
    receiver = plain_receiver()
    assert receiver.accept_cached() is None
    receiver.look_at_text(WHOLE)
    assert receiver.accepted is None
    assert receiver.accept_cached() == NO
    assert receiver.accepted == NO


@every_row(("extra", "is_found"), [(0, True), (1, False)])
def test_a_text_over_a_megabyte_is_not_looked_at(extra: int, is_found: bool) -> None:
    text = " " * (LONGEST_TEXT + extra - len(WHOLE)) + WHOLE
    assert plain_receiver().look_at_text(text) is is_found


@every_row("piece", ["[", "{", '{"\\"', "```\n", "```json\n{}\n```\n"])
def test_no_text_takes_long(piece: str) -> None:
    """A quadratic search would take minutes. The limit is on CPU time."""
    receivers = plain_receiver(), files_receiver()
    began = time.process_time()
    for receiver in receivers:
        assert not receiver.look_at_text(piece * (LONGEST_TEXT // 8 // len(piece)))
    assert time.process_time() - began < 2


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
likely = st.fixed_dictionaries(
    {},
    optional={
        "status": st.sampled_from(["success", "failure"]) | json_values,
        "summary": json_values,
        "payload": json_values,
    },
)
chunks = st.sampled_from(["```json\n", "```\n", "{", "}", "[", "]", '"', "\\", "\n", ",", WHOLE, BARE, " a "])


@given(st.one_of(likely.map(json.dumps), json_values.map(json.dumps), st.lists(chunks).map("".join)))
def test_whatever_a_model_writes_is_looked_at_and_what_is_found_is_valid(text: str) -> None:
    for receiver in (plain_receiver(), files_receiver()):
        if receiver.look_at_text(text):
            assert receiver.cached is not None
            assert receiver.cached.status in ("success", "failure")
            assert receiver.cached.summary.strip()


# -- Where none came. --------------------------------------------------------------------------------------------


ATTEMPTS = "1 attempt at a final report was not accepted"


@every_row(
    ("reason", "turns", "attempts", "stop", "error", "sentence"),
    [
        ("max_turns", 12, 0, None, None, "the turn limit (--max-turns) ended the run after 12 turns."),
        (
            *("max_turns", 1, 1, "tool_use", "payload.x: required"),
            (
                f"the turn limit (--max-turns) ended the run after 1 turn. {ATTEMPTS}. "
                "The last answer ended with tool_use. Last error: payload.x: required."
            ),
        ),
        (
            *("context", 0, 2, "max_tokens", "It broke."),
            (
                "the context was full after 0 turns. 2 attempts at a final report were not accepted. "
                "The last answer ended with max_tokens. Last error: It broke."
            ),
        ),
        ("a_new_one", 3, 0, None, None, "a new one after 3 turns."),
    ],
)
def test_a_synthetic_report_says_what_happened_as_the_only_output(
    reason: str, turns: int, attempts: int, stop: str | None, error: str | None, sentence: str
) -> None:
    report = synthetic_report(
        reason=reason,
        turns=turns,
        turns_completed=turns,
        attempts=attempts,
        last_stop_reason=stop,
        last_error=error,
    )
    sentence = f"No final answer: {sentence}"
    assert report.summary == sentence
    assert report.as_object() == {
        "source": "synthetic",
        "status": "failure",
        "summary": sentence,
        "reason": reason,
        "turns_completed": turns,
        "final_report_attempts": attempts,
        "last_stop_reason": stop,
        "last_error": error,
    }


def test_the_payload_is_no_part_of_what_a_result_says_of_its_report() -> None:
    assert Report("success", "s", {"files": 1}, "text").as_object() == {
        "source": "text",
        "status": "success",
        "summary": "s",
    }
