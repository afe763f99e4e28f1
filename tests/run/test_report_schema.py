"""A user's schema: what is refused and why. Reports are checked as jsonschema alone would check them."""

from __future__ import annotations

import functools
import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.run.report_check import report_tool
from ralph.run.report_problems import MOST_PROBLEMS, validator_of
from ralph.run.report_schema import MOST_SCHEMA_BYTES, read_schema
from tests.rows import every_row

if TYPE_CHECKING:
    from ralph.values.report import Validator

DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def fault(schema: Any, cwd: Path | str = "/") -> str:
    """The error message for this schema. A string is used as it is, anything else as JSON."""
    with pytest.raises(ValueError, match=r".") as caught:
        read_schema(schema if isinstance(schema, str) else json.dumps(schema), cwd)
    (line,) = str(caught.value).splitlines()
    assert len(line) < 700
    return line


def problems(schema: dict[str, Any], payload: Any) -> list[str]:
    """The problems of a payload, after the schema has passed through text, tool definition, journal and checker."""
    check = _check_by(json.dumps(schema))
    return list(check({"status": "success", "summary": "s", "payload": payload}))


@functools.lru_cache(maxsize=1)  # many rows check several payloads by one schema
def _check_by(text: str) -> Validator:
    tool = report_tool(read_schema(text, "/"))
    return validator_of(json.loads(json.dumps(tool.input_schema)))


# -- Reading. ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b'{"type":\n nope}', "s.json is not JSON: Expecting value (line 2, column 2)"),
        (b"", "s.json is not JSON: Expecting value (line 1, column 1)"),
        (b"true", "s.json must be a JSON object, got true"),
        (b"[{}]", "s.json must be a JSON object, got an array"),
        (b'{"minimum": NaN}', "s.json is not usable JSON: NaN is not JSON"),
        (b'{"a": "\xff"}', "s.json is not UTF-8 (byte 7)"),
        (b"[" * 100_000, "s.json is not usable JSON: nested too deeply"),
        (
            b'{"type": "strnig"}',
            (
                's.json is not a usable JSON Schema: #/type: expected one of "array", "boolean", "integer", '
                '"null", "number", "object", "string" or an array, got "strnig"'
            ),
        ),
    ],
)
def test_a_file_that_is_no_schema_is_named_with_the_place(tmp_path, content, line) -> None:
    (tmp_path / "s.json").write_bytes(content)
    assert fault("s.json", tmp_path) == line


@pytest.mark.parametrize(("extra", "is_read"), [(0, True), (1, False)])
def test_a_megabyte_at_most(tmp_path, extra, is_read) -> None:
    text = "{}" + " " * (MOST_SCHEMA_BYTES - 2 + extra)
    (tmp_path / "s.json").write_text(text)
    for given_as in ("s.json", text):
        if is_read:
            assert read_schema(given_as, tmp_path) == {}
        else:
            with pytest.raises(ValueError, match="is longer than 1000000 bytes"):
                read_schema(given_as, tmp_path)


def open_files() -> int:
    held = Path("/proc/self/fd")
    return len(list(held.iterdir())) if held.is_dir() else 0


def test_what_is_no_file_is_named_at_once(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    open_before = open_files()
    for name, line in [
        (".", "cannot read .: it is not a regular file and no pipe"),
        ("", "cannot read : it is not a regular file and no pipe"),
        ("pipe", "cannot read pipe: it is a named pipe, which may never have a writer"),
        ("gone.json", "cannot read gone.json: no such file (and a schema as text begins with {)"),
        ("true", "cannot read true: no such file (and a schema as text begins with {)"),
        ("pipe/x", "cannot read pipe/x: Not a directory"),
        ("x" * 5000, f"cannot read {'x' * 200}...: File name too long"),
        ("a\nb", 'cannot read "a\\nb": no such file (and a schema as text begins with {)'),
        ("a\0b", 'cannot read "a\\u0000b": a path cannot contain a NUL byte'),
    ]:
        assert fault(name, tmp_path) == line
    with pytest.raises(ValueError, match="cannot read pipe: it is not a regular file"):
        read_schema("pipe", tmp_path, takes_pipe=False)
    assert open_files() == open_before


UNUSABLE = "the schema is not a usable JSON Schema: "
OUTSIDE = "leads outside the schema; nothing is fetched"
STANDARD = "https://json-schema.org/draft/2020-12/schema"
CIRCLE = {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"not": {"$ref": "#/$defs/a"}}}


@every_row(
    ("schema", "why"),
    [
        ({"$ref": "http://127.0.0.1/x"}, f'#: $ref "http://127.0.0.1/x" {OUTSIDE}'),
        ({"items": {"$ref": "other.json#/a"}}, f'#/items: $ref "other.json#/a" {OUTSIDE}'),
        ({"items": {"$ref": STANDARD}}, f'#/items: $ref "{STANDARD}" {OUTSIDE}'),
        ({"$ref": 5}, f"#: $ref 5 {OUTSIDE}"),
        ({"allOf": [{"$ref": "#/$defs/no"}]}, '#/allOf/0: $ref "#/$defs/no" leads to no schema'),
        ({"items": {"$ref": "#name"}}, '#/items: $ref "#name" leads to no schema'),
        ({"a": [5], "items": {"$ref": "#/a/0"}}, '#/items: $ref "#/a/0" leads to no schema'),
        ({"a": [5], "items": {"$ref": "#/a/1"}}, '#/items: $ref "#/a/1" leads to no schema'),
        ({"$defs": {"a/b": {"$id": "x"}}}, "#/$defs/a~1b: $id is not supported here"),
        ({"$schema": DRAFT_4, "not": {"id": "x"}}, "#/not: id is not supported here"),
        ({"$anchor": "x"}, "#: $anchor is not supported here"),
        ({"items": {"$dynamicRef": "#x"}}, "#/items: $dynamicRef is not supported here"),
        ({"items": {"$schema": DRAFT_7}}, "#/items: $schema is not supported here"),
        ({"properties": {"a": {"required": "b"}}}, '#/properties/a/required: expected an array, got "b"'),
        ({"minLength": -1}, "#/minLength: expected minimum 0, got -1"),
        ({"$ref": "#/x/y", "x": {"y": {"minLength": -1}}}, "#/x/y/minLength: expected minimum 0, got -1"),
        ({"pattern": "("}, '#: "(" is not a regular expression that Python understands'),
        ({"patternProperties": {"[": {}}}, '#: "[" is not a regular expression that Python understands'),
        ({"$ref": "#"}, "#: $ref leads back to itself without end"),
        ({"$defs": CIRCLE}, "#/$defs/a: $ref leads back to itself without end"),
        ({"dependentSchemas": {"a": {"$ref": "#"}}}, "#: $ref leads back to itself without end"),
    ],
)
def test_a_schema_that_could_not_be_checked_by_is_refused_with_its_place(schema, why) -> None:
    assert fault(schema) == UNUSABLE + why


@every_row(
    "schema",
    [
        {"$id": "https://example.com/x", "$ref": "https://example.com/x#/$defs/a", "$defs": {"a": {}}},
        {
            "$schema": DRAFT_4,
            "id": "http://example.com/x#",
            "not": {"$ref": "#/definitions/a"},
            "definitions": {"a": {}},
        },
        {"properties": {"$id": {}, "$anchor": {}, "$ref": {"type": "string"}, "$schema": {}}},
        {"const": {"$ref": "http://example.com", "$id": "x"}},
        {"properties": {"next": {"$ref": "#"}}},
        {"anyOf": [{"type": "null"}, {"items": {"$ref": "#"}}]},
        {"$ref": "#/$defs/a", "$defs": {"a": True}},
        {"id": "not an identifier after draft 4", "items": {"id": 5}},
    ],
)
def test_a_schema_that_stands_on_its_own_is_taken(schema) -> None:
    assert read_schema(json.dumps(schema), "/") == schema
    assert isinstance(problems(schema, {}), list)


def test_nothing_is_ever_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        address = f"http://127.0.0.1:{server.getsockname()[1]}/schema.json"
        for schema in ({"$ref": address}, {"items": {"$ref": f"{address}#/a"}}, {"$schema": address}):
            fault(schema)
        # As an old record might hold it: never read by read_schema.
        unread = report_tool({"$ref": address})
        assert validator_of(unread.input_schema)({"status": "success", "summary": "s", "payload": 1})
        with pytest.raises(BlockingIOError):
            server.accept()


# -- Checking. ---------------------------------------------------------------------------------------------------

ITEMS = {
    "type": "object",
    "properties": {
        "items": {
            "type": "array",
            "minItems": 1,
            "uniqueItems": True,
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 5},
                    "n": {"type": "integer", "minimum": 1},
                },
                "required": ["name"],
                "additionalProperties": False,
            },
        },
        "mode": {"enum": ["fast", "slow"]},
        "when": {"type": "string", "format": "date"},
        "tag": {"pattern": "^v[0-9]+$"},
        "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "shape": {
            "oneOf": [
                {
                    "properties": {"kind": {"const": "dot"}, "at": {"type": "integer"}},
                    "required": ["kind", "at"],
                },
                {
                    "properties": {"kind": {"const": "line"}, "to": {"type": "string"}},
                    "required": ["kind", "to"],
                },
            ]
        },
        "odd key": {"type": "boolean"},
        "never": False,
        "both": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    },
    "required": ["items"],
}


A = {"name": "a"}
FITS = {"items": [A]}
LONG = {"name": "x" * 1_000_000}


@every_row(
    ("payload", "line"),
    [
        (None, "payload: expected an object, got null"),
        ({"items": None}, "payload.items: expected an array, got null"),
        ({"items": []}, "payload.items: expected minItems 1, got 0"),
        ({"items": [A] * 2}, "payload.items: expected uniqueItems true, got an array"),
        ({"items": [A, {"name": 5}]}, "payload.items[1].name: expected a string, got 5"),
        ({"items": [{"n": 1}]}, "payload.items[0].name: required (a string)"),
        ({"items": [{"name": "abcdef"}]}, 'payload.items[0].name: expected maxLength 5, got "abcdef"'),
        (
            {"items": [LONG]},
            f'payload.items[0].name: expected maxLength 5, got "{"x" * 60}"... (1000000 characters)',
        ),
        ({"items": [{**A, "n": 0}]}, "payload.items[0].n: expected minimum 1, got 0"),
        ({"items": [{**A, "n": True}]}, "payload.items[0].n: expected an integer, got true"),
        (
            {"items": [{**A, "x": 1, "y": 2}]},
            'payload.items[0]: expected additionalProperties false, got "x", "y"',
        ),
        (FITS | {"mode": "f"}, 'payload.mode: expected one of "fast", "slow", got "f"'),
        (FITS | {"when": "today"}, 'payload.when: expected format "date", got "today"'),
        (FITS | {"tag": "1"}, 'payload.tag: expected pattern "^v[0-9]+$", got "1"'),
        (FITS | {"either": 5}, "payload.either: expected a string or null, got 5"),
        (FITS | {"odd key": 1}, 'payload["odd key"]: expected a boolean, got 1'),
        (FITS | {"never": 1}, "payload: expected nothing where the schema says false, got 1"),
        (FITS | {"both": 1}, "payload.both: expected oneOf an array, got 1"),
    ],
)
def test_a_fault_is_one_line_with_path_and_expectation(payload, line) -> None:
    assert problems(ITEMS, payload) == [line]


def test_null_for_the_payload_of_a_failure_is_none() -> None:
    check = validator_of(report_tool(ITEMS).input_schema)
    assert check({"status": "failure", "summary": "s", "payload": None}) == []


def test_a_flood_of_faults_is_cut_outermost_first_and_short() -> None:
    found = problems(ITEMS, {"items": [{"name": 5}] * 100, "mode": 1})
    assert found[0].startswith("payload.items: expected uniqueItems true")
    assert found[1].startswith("payload.mode")
    assert found[MOST_PROBLEMS:] == ["and more"]
    many = problems({"items": {"type": "null"}}, [5] * 100_000)
    assert many == [
        *(f"payload[{index}]: expected null, got 5" for index in range(MOST_PROBLEMS)),
        "and more",
    ]
    names = {"x" * 100_000 + str(number): 1 for number in range(9)}
    found = problems({"additionalProperties": {"type": "string"}}, names)
    assert all(len(line) < 700 for line in found)


@every_row(
    ("items", "are_unique"),
    [
        ([1, 1.0], False),
        ([1, True], True),
        ([{"a": 1}, {"a": 1.0}], False),
        ([[], {}], True),
        ([[0], [False]], True),
    ],
)
def test_items_are_equal_as_json_has_it(items, are_unique) -> None:
    assert (problems({"uniqueItems": True}, items) == []) is are_unique


def nested(levels: int) -> Any:
    value: Any = None
    for _ in range(levels):
        value = {"next": value}
    return value


@every_row(
    ("step", "value", "is_multiple"),
    [
        *((0.01, value, True) for value in (0.07, 19.99, 4.35, 1.1, 1e20, 0, -0.07, 3, 10**400)),
        *((0.01, value, False) for value in (0.075, 1e-3, 0.0700001)),
        *((0.1, value, True) for value in (0.3, 1e16, "0.35", True, None)),
        (0.1, 0.35, False),
        (1e-05, 0.00003, True),
        (2, 4.0, True),
        (2, 5, False),
        (0.5, 10**400 + 1, True),
        (10**400, 3 * 10**400, True),
    ],
)
def test_a_multiple_is_one_of_the_decimal_numbers_as_they_are_written(step, value, is_multiple) -> None:
    found = problems({"multipleOf": step}, value)
    assert found == (
        [] if is_multiple else [f"payload: expected multipleOf {json.dumps(step)}, got {json.dumps(value)}"]
    )


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)
# Names that a reference may use, so that many of them lead somewhere, in circles too.
references = st.sampled_from(["#", "#/$defs/a", "#/$defs/b"]).map(lambda ref: {"$ref": ref})
schemas = st.recursive(
    st.one_of(
        st.sampled_from(["string", "integer", "array", "object", "null", "boolean"]).map(
            lambda kind: {"type": kind}
        ),
        json_values.map(lambda value: {"const": value}),
        st.integers(-3, 3).map(lambda bound: {"minimum": bound}),
        st.just({"uniqueItems": True}),
        references,
    ),
    lambda inner: st.one_of(
        inner.map(lambda one: {"items": one}),
        st.lists(inner, min_size=1, max_size=3).map(lambda some: {"anyOf": some}),
        st.lists(inner, min_size=1, max_size=3).map(lambda some: {"oneOf": some}),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(
            lambda some: {"properties": some, "required": ["a"]}
        ),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(
            lambda some: {"properties": some, "additionalProperties": False}
        ),
    ),
    max_leaves=6,
)


@given(schemas, schemas, schemas, st.lists(json_values, max_size=5))
def test_any_schema_is_refused_or_gives_the_verdict_that_jsonschema_gives(root, a, b, payloads) -> None:
    schema = {**root, "$defs": {"a": a, "b": b}}
    try:
        read_schema(json.dumps(schema), "/")
    except ValueError as error:
        assert "without end" in str(error)  # noqa: PT017 - the rest of the property is for what is read
        return
    alone = jsonschema.Draft202012Validator(schema)
    for payload in payloads:
        found = problems(schema, payload)
        assert (found == []) is alone.is_valid(payload)
        assert len(found) <= MOST_PROBLEMS + 1
        assert all("\n" not in line and "could not be checked" not in line for line in found)
