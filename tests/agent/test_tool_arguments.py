from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ralph.agent.call_rules import CallRules, fault_in_arguments, fitted_arguments
from ralph.agent.run_end import Finishing
from ralph.permissions.gate import CallGate
from ralph.values.answer import Runnable, ToolCall, ToolDefinition, ToolOutput, unknown_arguments
from ralph.values.controls import RunControls
from ralph.values.events import Notice
from tests.fakes import RecordingEvents
from tests.rows import every_row

SCHEMA = {
    "type": "object",
    "properties": {
        "file_path": {"type": "string"},
        "limit": {"type": "integer", "minimum": 1},
        "ratio": {"type": "number"},
        "all": {"type": "boolean"},
        "mode": {"type": "string", "enum": ["content", "count"]},
        "items": {
            "type": "array",
            "items": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
        },
        "either": {"type": ["string", "null"]},
    },
    "required": ["file_path"],
}


def error(**arguments: Any) -> str | None:
    return fault_in_arguments("Read", SCHEMA, {"file_path": "x", **arguments})


@every_row(
    "arguments",
    [
        {},
        {"limit": 1},
        {"ratio": 0.5},
        {"ratio": 2},
        {"all": False},
        {"mode": "count"},
        {"items": []},
        {"items": [{"n": 1}, {"n": 2, "more": 3}]},
        {"either": None},
    ],
)
def test_arguments_that_fit_the_schema_pass(arguments) -> None:
    assert error(**arguments) is None


@every_row(
    ("arguments", "sentence"),
    [
        ({"limit": "ten"}, 'Read: "limit" must be an integer, got "ten" (string)'),
        ({"limit": "10"}, 'Read: "limit" must be an integer, got "10" (string)'),
        ({"limit": True}, 'Read: "limit" must be an integer, got true (boolean)'),
        ({"limit": 1.0}, 'Read: "limit" must be an integer, got 1.0 (number)'),
        ({"limit": None}, 'Read: "limit" must be an integer, got null'),
        ({"limit": 0}, 'Read: "limit" must be at least 1, got 0 (integer)'),
        ({"ratio": float("nan")}, 'Read: "ratio" must be a number, got NaN (not JSON)'),
        ({"all": 1}, 'Read: "all" must be a boolean, got 1 (integer)'),
        ({"mode": "lines"}, 'Read: "mode" must be one of "content", "count", got "lines" (string)'),
        ({"items": [{"n": 1}, {"n": "x"}]}, 'Read: "items[1].n" must be an integer, got "x" (string)'),
        ({"items": [{}]}, 'Read: "items[0].n" is required (an integer)'),
        ({"items": {}}, 'Read: "items" must be an array, got {} (object)'),
        ({"either": 1}, 'Read: "either" must be a string or null, got 1 (integer)'),
        ({"file_path": ["x"]}, 'Read: "file_path" must be a string, got ["x"] (array)'),
    ],
)
def test_a_fault_is_named_with_path_and_expected_type(arguments, sentence) -> None:
    assert error(**arguments) == sentence


def rules_for(name: str) -> tuple[CallRules, RecordingEvents]:
    events = RecordingEvents()
    tool = ToolDefinition(name, "", {"type": "object", "properties": {"n": {"type": "integer"}, "any": {}}})
    return CallRules([tool], Finishing(), None, events, CallGate(RunControls(), events)), events


def test_a_converted_call_is_judged_and_run_and_the_input_of_a_server_passes_as_it_is() -> None:
    written = {"n": "5", "any": "5"}
    rules, events = rules_for("Own")
    assert rules.ruling(ToolCall("a", "Own", written)) == Runnable(ToolCall("a", "Own", {"n": 5, "any": "5"}))
    rules.ruling(ToolCall("b", "Own", written))
    told = ['Own: "n" came as "5" (string) and is taken as 5 (integer)']
    assert [event.text for event in events.of(Notice)] == told
    assert written == {"n": "5", "any": "5"}, "the input of the model is kept"
    rules, events = rules_for("mcp__a__b")
    assert isinstance(rules.ruling(ToolCall("a", "mcp__a__b", written)), ToolOutput)
    sent = ToolCall("b", "mcp__a__b", {"n": 5, "any": None, "more": "5"})
    ruling = rules.ruling(sent)
    assert isinstance(ruling, Runnable)
    assert ruling.call is sent
    assert events.of(Notice) == []


def test_calls_that_differ_only_in_how_a_number_is_written_are_equal_for_the_guards() -> None:
    rules, _ = rules_for("Own")
    for number, value in enumerate([5, "5", 5.0]):
        ruling = rules.ruling(ToolCall(f"t{number}", "Own", {"n": value}))
        assert isinstance(ruling, Runnable)
        rules.observe(ruling.call, ToolOutput("same"), None)
    refused = rules.ruling(ToolCall("t3", "Own", {"n": "5.0"}))
    assert isinstance(refused, ToolOutput)
    assert "Refused" in str(refused.content)


@every_row(
    ("written", "meant"),
    [
        ({"limit": "5000"}, {"limit": 5000}),
        ({"limit": " 5000 "}, {"limit": 5000}),
        ({"limit": "-5"}, {"limit": -5}),
        ({"limit": 5000.0}, {"limit": 5000}),
        ({"limit": "5000.0"}, {"limit": 5000}),
        ({"limit": "5e3"}, {"limit": 5000}),
        ({"limit": None}, {}),
        ({"ratio": "0.5"}, {"ratio": 0.5}),
        ({"ratio": "2"}, {"ratio": 2}),
        ({"all": "true"}, {"all": True}),
        ({"all": "False"}, {"all": False}),
        ({"all": None, "mode": None}, {}),
    ],
)
def test_a_value_of_another_type_is_taken_where_it_has_one_meaning(written, meant) -> None:
    fitted = fitted_arguments(SCHEMA, {"file_path": "x", **written})
    assert repr(fitted) == repr({"file_path": "x", **meant}), "1 and true are equal in Python"


@every_row(
    "arguments",
    [
        *(
            {"limit": value}
            for value in ("ten", "", "5000ms", "0x10", "1_000", "+5", "07", "٣", "true", "null", "[1]")
        ),
        *({"limit": value} for value in ("9" * 5000, 5.5, "5.5", True, [1], float("nan"), "1e999")),
        *({"all": value} for value in (1, 0, "1", "yes", "", "on", [True])),
        {"ratio": "half"},
        {"mode": 1},
        {"file_path": None},
        {"file_path": 5},
        {"either": None},
        {"either": "5"},
        {"items": "[]"},
        {"encoding": None},
    ],
)
def test_a_value_whose_meaning_is_not_clear_stays_as_it_is(arguments) -> None:
    given = {"file_path": "x", **arguments}
    fitted = fitted_arguments(SCHEMA, given)
    assert list(fitted) == list(given)
    assert all(fitted[name] is value for name, value in given.items())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
likely_keys = st.sampled_from([*SCHEMA["properties"], "other"])


@given(st.dictionaries(likely_keys, json_values) | json_values)
def test_whatever_a_model_sends_is_answered_and_what_passes_fits(arguments) -> None:
    fault = fault_in_arguments("Read", SCHEMA, arguments)
    if fault is not None:
        assert fault.startswith("Read: ")
        json.dumps(fault)
        return
    assert type(arguments["file_path"]) is str
    assert type(arguments.get("limit", 1)) is int
    assert arguments.get("limit", 1) >= 1
    assert type(arguments.get("all", True)) is bool
    assert arguments.get("mode", "count") in ("content", "count")
    assert set(unknown_arguments(SCHEMA, arguments)) == set(arguments) - set(SCHEMA["properties"])


def test_a_default_takes_the_place_of_what_is_required() -> None:
    """@playwright/mcp 0.0.83 writes each property with a default as required."""
    properties = {"scale": {"type": "string", "default": "css"}, "name": {"type": "string"}}
    schema = {"type": "object", "properties": properties, "required": ["scale", "name", "other"]}
    assert fault_in_arguments("t", schema, {"name": "x", "other": 1}) is None
    assert (
        fault_in_arguments("t", schema, {}) == 't: "name" is required (a string); "other" is required (any)'
    )
    assert fault_in_arguments("t", schema, {"scale": 1}) is not None


@every_row(
    "schema",
    [
        {"type": 3, "properties": {"a": True}, "required": "a"},
        {"type": [], "properties": []},
        {"properties": {"a": {"items": False, "enum": "x", "minimum": "1", "type": ["string", 2]}}},
        {"properties": {"a": {"type": "array", "items": [{"type": "string"}]}}, "required": [1, None]},
    ],
)
def test_a_senseless_schema_of_a_server_refuses_nothing(schema) -> None:
    assert fault_in_arguments("t", schema, {"a": [1]}) is None
