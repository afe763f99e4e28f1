"""The parts that requests of OpenAI's two APIs have in common."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ralph.api.openai_requests import ConvertedMessages, function_of, is_openai, strict_schema
from ralph.conversation.messages import Conversation, RequestShape, make_message, text_blocks
from ralph.run.report_check import report_tool
from ralph.run.report_problems import validator_of
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ralph.conversation.messages import Role

TEXT = {"type": "string"}
CLOSED = {"type": "object", "properties": {"a": TEXT}, "required": ["a"], "additionalProperties": False}
OPEN = {"type": "object", "properties": {"a": TEXT}, "required": ["a"]}


def holding(schema: Any) -> dict[str, Any]:
    return {**CLOSED, "properties": {"a": schema}}


SCHEMAS: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "closed": (CLOSED, CLOSED),
    "open by default": (OPEN, CLOSED),
    "open by its own words": ({**OPEN, "additionalProperties": True}, None),
    "no arguments": (
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
    ),
    "any object": ({"type": "object"}, None),
    "an argument that may be left out": ({**CLOSED, "required": []}, None),
    "a text with a length": (holding({"type": "string", "minLength": 1, "default": "x"}), CLOSED),
    "an object inside": (holding(OPEN), holding(CLOSED)),
    "an object inside that may be null": (
        holding({**OPEN, "type": ["object", "null"]}),
        holding({**CLOSED, "type": ["object", "null"]}),
    ),
    "any object inside": (holding({"type": "object"}), None),
    "a list": (holding({"type": "array", "items": OPEN}), holding({"type": "array", "items": CLOSED})),
    "a list of anything": (holding({"type": "array", "items": {}}), None),
    "a choice": (holding({"anyOf": [OPEN, TEXT]}), holding({"anyOf": [CLOSED, TEXT]})),
    "a choice with anything": (holding({"anyOf": [TEXT, {}]}), None),
    "a choice of values": (holding({"enum": ["x"]}), holding({"enum": ["x"]})),
    "a keyword that strict mode lacks": (holding({"type": "string", "not": {"const": "x"}}), None),
    "no object": (TEXT, None),
    "no schema": (holding(True), None),
    "properties that are none": ({**CLOSED, "properties": None}, None),
}


@every_row(("schema", "strict"), SCHEMAS.values())
def test_a_schema_is_strict_if_strict_mode_can_express_it(schema: Any, strict: Any) -> None:
    before = json.dumps(schema)
    assert (strict_schema(schema), json.dumps(schema)) == (strict, before)


def offered(payload: dict[str, Any] | None) -> dict[str, Any]:
    tool = report_tool(payload)
    return function_of({"name": tool.name, "description": "", "input_schema": tool.input_schema})


def test_the_report_is_strict_and_its_payload_may_be_null_but_not_left_out() -> None:
    assert offered(None)["strict"]
    report = offered(OPEN)
    assert report["strict"]
    assert report["parameters"]["properties"]["payload"] == {"anyOf": [CLOSED, {"type": "null"}]}
    assert report["parameters"]["required"] == ["status", "summary", "payload"]
    may_be_left_out = {**CLOSED, "required": []}
    for payload in (may_be_left_out, {"$ref": "#/$defs/x", "$defs": {"x": TEXT}}):
        report = offered(payload)
        assert not report["strict"]
        assert report["parameters"] == report_tool(payload).input_schema


def test_a_null_for_the_payload_is_a_valid_report_of_failure_alone() -> None:
    problems = validator_of(report_tool(OPEN).input_schema)
    assert problems({"status": "failure", "summary": "no", "payload": None}) == []
    assert problems({"status": "success", "summary": "yes", "payload": None})


@every_row(
    ("base_url", "expected"),
    [
        ("https://api.openai.com/v1", True),
        ("https://api.openai.com", True),
        ("https://eu.api.openai.com/v1", True),
        ("https://x.openai.azure.com/openai/v1", True),
        ("https://x.services.ai.azure.com/openai/v1", True),
        ("https://api.openai.com.example.org/v1", False),
        ("https://notapi.openai.com.example.org", False),
        ("https://xapi.openai.com/v1", False),
        ("https://openrouter.ai/api/v1", False),
        ("http://127.0.0.1:8000/v1", False),
    ],
)
def test_only_hosts_of_openai_and_azure_are_openais(base_url: str, expected: bool) -> None:
    assert is_openai(base_url) is expected


def test_each_message_is_converted_once_loose_and_once_packed_however_long_the_conversation() -> None:
    converted: list[str] = []

    def convert(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
        converted.append(message["content"][0]["text"][:4])
        yield message

    kept, conversation = ConvertedMessages(convert), Conversation.start(RequestShape("m", "", ()))
    large: tuple[bytes, ...] = ()
    for number in range(200):
        role: Role = "assistant" if number % 2 else "user"
        conversation = conversation.plus(make_message(role, text_blocks(f"{number:04}" + "x" * 5000)))
        pieces = kept.pieces(conversation.request_body())
        assert all(one is other for one, other in zip(pieces, large, strict=False))
        large = pieces[:-1]
        assert len(json.loads(b"[" + b"".join(pieces) + b"]")) == number + 1
    assert len(large) > 3
    assert max(converted.count(one) for one in converted) == 2
