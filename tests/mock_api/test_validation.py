"""Requests that the API refuses, with the API's own messages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ralph.mock_api.validation import InvalidBodyError, find_violation, parse_body
from tests.rows import every_row

NEW, OLD = {"anthropic-version": "2026-10-21"}, {"anthropic-version": "2023-06-01"}
USER = {"role": "user", "content": "hi"}
CACHED = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
TOOL = {"name": "Bash", "input_schema": {"type": "object"}}


def use(*ids: Any, **changes: Any) -> dict[str, Any]:
    blocks = [{"type": "tool_use", "id": i, "name": "Bash", "input": {}, **changes} for i in ids]
    return {"role": "assistant", "content": blocks}


def results(*ids: str, **changes: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": i, **changes} for i in ids]}


def text(value: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": value}]}


def violation(
    *messages: Any, version: dict[str, str] = NEW, continues_turn: bool = False, **changes: Any
) -> str | None:
    payload = {"model": "m", "max_tokens": 10, "messages": list(messages) or [USER], **changes}
    payload = {key: value for key, value in payload.items() if value is not ...}
    return find_violation(payload, version, continues_turn=continues_turn)


@every_row(
    "conversation",
    [
        [USER],
        [USER, USER],
        [text("hi")],
        [USER, use("a", "b"), results("b", "a")],
        [USER, use("a"), {"role": "user", "content": [*results("a")["content"], *text("and")["content"]]}],
        [USER, use("a"), results("a", content="")],
        [USER, use("a"), results("a", content=[{"type": "text", "text": "ok"}], is_error=True)],
        [USER, text("ok", "assistant"), USER],
        [USER, {"role": "system", "content": "mind the gap"}],
        [USER, {"role": "system", "content": "mind the gap"}, text("ok", "assistant"), USER],
        [
            USER,
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "", "signature": ""}]},
            USER,
        ],
        [USER, {"role": "assistant", "content": [{"type": "something_new", "x": 1}]}, USER],
    ],
)
def test_a_good_conversation_passes(conversation: list[dict[str, Any]]) -> None:
    assert violation(*conversation) is None


@every_row(
    "changes",
    [
        {"system": "s", "tools": [TOOL], "stream": True, "metadata": {}, "thinking": {"type": "adaptive"}},
        {"system": [CACHED], "tools": [TOOL, {"type": "web_search_20260318", "name": "web_search"}]},
        {"max_tokens": 0},
        {"temperature": 1, "top_p": 1, "top_k": 5, "version": OLD},
        {"messages": [{"role": "user", "content": [CACHED] * 4}]},
    ],
)
def test_a_good_request_passes(changes: dict[str, Any]) -> None:
    assert violation(**changes) is None


@every_row(
    ("changes", "message"),
    [
        ({"model": ...}, "model: Field required"),
        ({"max_tokens": ...}, "max_tokens: Field required"),
        ({"messages": ...}, "messages: Field required"),
        ({"model": 5}, "model: Input should be a valid string"),
        ({"max_tokens": 0, "stream": True}, "max_tokens: Input should be greater than or equal to 1"),
        ({"max_tokens": -1}, "max_tokens: Input should be greater than or equal to 0"),
        ({"max_tokens": "5"}, "max_tokens: Input should be a valid integer"),
        ({"max_tokens": True}, "max_tokens: Input should be a valid integer"),
        ({"nonsense": 1}, "nonsense: Extra inputs are not permitted"),
        ({"temperature": 1}, "temperature: Extra inputs are not permitted"),
        ({"version": {}}, "anthropic-version: header is required"),
        ({"version": {"anthropic-version": "1"}}, 'anthropic-version: "1" is not a valid version'),
        ({"messages": {}}, "messages: Input should be a valid list"),
        ({"messages": []}, "messages: at least one message is required"),
        ({"messages": [5]}, "messages.0: Input should be an object"),
        ({"system": 5}, "system: Input should be a valid list"),
        ({"system": [{"type": "text", "text": ""}]}, "system: text content blocks must be non-empty"),
        ({"system": [{"type": "image"}]}, "system.0: Input should be a text block"),
        ({"tools": [TOOL, TOOL]}, "tools: Tool names must be unique."),
        ({"tools": 5}, "tools: Input should be a valid list"),
        (
            {"tools": [{**TOOL, "name": "a b"}]},
            "tools.0.custom.name: String should match pattern '^[a-zA-Z0-9_-]{1,64}$'",
        ),
        ({"tools": [{"name": "a"}]}, "tools.0.custom.input_schema: Field required"),
        (
            {"tools": [{"name": "a", "input_schema": {}}]},
            "tools.0.custom.input_schema.type: Input should be 'object'",
        ),
        (
            {"tools": [{"name": "a", "input_schema": {"type": "object", "properties": {"$filter": {}}}}]},
            "tools.0.custom.input_schema.properties: Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'",
        ),
        (
            {"tools": [{"name": "a", "input_schema": {"type": "object", "anyOf": [{}]}}]},
            "tools.0.custom.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level",
        ),
        (
            {"messages": [{"role": "user", "content": [CACHED] * 4}], "system": [CACHED]},
            "A maximum of 4 blocks with cache_control may be provided. Found 5.",
        ),
        (
            {
                "messages": [USER, use("a"), results("a", content=[CACHED] * 4)],
                "cache_control": {"type": "ephemeral"},
            },
            "A maximum of 4 blocks with cache_control may be provided. Found 5.",
        ),
    ],
)
def test_a_wrong_request_is_refused(changes: dict[str, Any], message: str) -> None:
    assert violation(**changes) == message


UNANSWERED = (
    "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: {}. Each `tool_use` block "
    "must have a corresponding `tool_result` block in the next message."
)
UNASKED = (
    "messages.{}.content.0: unexpected `tool_use_id` found in `tool_result` blocks: {}. Each `tool_result` block must "
    "have a corresponding `tool_use` block in the previous message."
)
PREFILL = (
    "This model does not support assistant message prefill. The conversation must end with a user message."
)
TWO_RESULTS = "messages.2.content.1: each tool_use must have a single result. Found multiple `tool_result` blocks with id: a"
MISFIT = "messages.{}.content.0.{}: String should match pattern '^[a-zA-Z0-9_-]{}$'"
EMPTY = (
    "messages.{}: all messages must have non-empty content except for the optional final assistant message"
)


@every_row(
    ("conversation", "message"),
    [
        ([text("hi", "assistant"), USER], 'messages: first message must use the "user" role'),
        ([{"role": "tool", "content": "x"}], "messages.0.role: Input should be 'user' or 'assistant'"),
        ([{"role": "user"}], "messages.0.content: Input should be a valid string or list"),
        ([{"role": "user", "content": [5]}], "messages.0.content.0.type: Field required"),
        ([{"role": "user", "content": ""}], EMPTY.format(0)),
        ([USER, {"role": "assistant", "content": []}, USER], EMPTY.format(1)),
        ([text("")], "messages: text content blocks must be non-empty"),
        ([text(" \n")], "messages: text content blocks must contain non-whitespace text"),
        (
            [{"role": "user", "content": "  "}],
            "messages: text content blocks must contain non-whitespace text",
        ),
        ([USER, text("ok", "assistant")], PREFILL),
        ([USER, use("a:0"), results("a:0")], MISFIT.format(1, "tool_use.id", "+")),
        ([USER, use(""), results("")], MISFIT.format(1, "tool_use.id", "+")),
        ([USER, use("a", name="x.y"), results("a")], MISFIT.format(1, "tool_use.name", "{1,128}")),
        ([USER, use("a", name="x" * 129), results("a")], MISFIT.format(1, "tool_use.name", "{1,128}")),
        ([USER, use("a"), results("a\n")], MISFIT.format(2, "tool_result.tool_use_id", "+")),
        ([USER, use("a")], UNANSWERED.format("a")),
        ([USER, use("a", "b"), USER], UNANSWERED.format("a, b")),
        ([USER, use("a", "b"), results("b")], UNANSWERED.format("a")),
        ([USER, use("a"), USER, results("a")], UNANSWERED.format("a")),
        (
            [
                USER,
                use("a"),
                {"role": "user", "content": [*text("first")["content"], *results("a")["content"]]},
            ],
            UNANSWERED.format("a"),
        ),
        ([results("a")], UNASKED.format(0, "a")),
        ([USER, text("ok", "assistant"), results("a")], UNASKED.format(2, "a")),
        ([USER, use("a"), results("a"), results("a")], UNASKED.format(3, "a")),
        ([USER, use("a"), results("a", "a")], TWO_RESULTS),
        ([USER, use("a"), results("a"), use("a"), results("a")], "messages.3: `tool_use` ids must be unique"),
        (
            [USER, use("a", input="x"), results("a")],
            "messages.1.content.0.tool_use.input: Input should be a valid dictionary",
        ),
        ([USER, use(5), results("a")], "messages.1.content.0.tool_use.id: Field required"),
        (
            [USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "x"}]}, USER],
            "messages.1.content.0.thinking.signature: Field required",
        ),
        (
            [{"role": "user", "content": use("a")["content"]}],
            "messages.0.content.0: `tool_use` blocks can only be in `assistant` messages",
        ),
        (
            [USER, use("a"), results("a", content=[{"type": "text", "text": ""}])],
            "messages: text content blocks must be non-empty",
        ),
        (
            [USER, use("a"), {"role": "system", "content": "x"}, results("a")],
            "messages.2: a system message must follow a user message",
        ),
        (
            [USER, {"role": "system", "content": "x"}, USER],
            "messages.1: a system message must be last or come before an assistant message",
        ),
        ([{"role": "system", "content": "x"}, USER], 'messages: first message must use the "user" role'),
    ],
)
def test_a_wrong_conversation_is_refused(conversation: list[dict[str, Any]], message: str) -> None:
    assert violation(*conversation) == message


def test_only_a_paused_turn_may_end_with_the_assistant() -> None:
    assert violation(USER, text("ok", "assistant"), continues_turn=True) is None


def test_a_body_must_be_a_json_object_in_utf8() -> None:
    assert parse_body(b'{"a": "\\ud83d\\ude42"}') == {"a": "🙂"}
    for body in (b"", b"{", b"\xff", json.dumps([1]).encode(), b'{"a": "\\ud83d"}', b"[" * 100_000):
        with pytest.raises(InvalidBodyError):
            parse_body(body)
