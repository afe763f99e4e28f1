from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ralph.agent.call_rules import fault_in_arguments
from ralph.values.tool_calls import unknown_arguments
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
def test_arguments_that_fit_the_schema_pass(arguments: dict[str, Any]) -> None:
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
def test_a_fault_is_named_with_path_and_expected_type(arguments: dict[str, Any], sentence: str) -> None:
    assert error(**arguments) == sentence


def test_a_missing_argument_is_named_with_its_type() -> None:
    assert fault_in_arguments("Read", SCHEMA, {}) == 'Read: "file_path" is required (a string)'


@every_row("arguments", [None, [], "x", 1, [{"file_path": "x"}]])
def test_arguments_that_are_no_object_are_refused(arguments: Any) -> None:
    sentence = fault_in_arguments("Read", SCHEMA, arguments)
    assert sentence is not None
    assert sentence.startswith("Read: the arguments must be an object, got ")


def test_keys_the_schema_does_not_know_are_returned_and_do_no_harm() -> None:
    assert error(encoding="utf-8", x=1) is None
    assert unknown_arguments(SCHEMA, {"file_path": "x", "encoding": "utf-8", "x": 1}) == ("encoding", "x")


def test_several_faults_come_together_and_a_flood_is_counted() -> None:
    two = error(limit="a", all="b")
    assert two is not None
    assert two.count("must be") == 2
    flood = error(items=[{"n": "x"}] * 50)
    assert flood is not None
    assert flood.endswith("; and 45 more")


def test_a_long_value_is_shown_in_part() -> None:
    sentence = error(limit="x" * 10_000)
    assert sentence is not None
    assert len(sentence) < 200


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
likely_keys = st.sampled_from([*SCHEMA["properties"], "other"])


@given(st.dictionaries(likely_keys, json_values) | json_values)
def test_whatever_a_model_sends_is_answered_and_what_passes_fits(arguments: Any) -> None:
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


def test_arguments_beyond_an_open_schema_are_not_ignored() -> None:
    assert unknown_arguments({"type": "object"}, {"a": 1}) == ()
    opened = {"properties": {"b": {}}, "additionalProperties": {"type": "string"}}
    assert unknown_arguments(opened, {"a": "x"}) == ()
    assert unknown_arguments({"properties": {"b": {}}}, {"a": 1, "b": 2}) == ("a",)
