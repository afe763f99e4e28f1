"""Requests of the Responses API. The types of the official package are the oracle."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming

from ralph.api.responses import Responses, input_items, request_fields
from ralph.api.stream import StreamAssembler
from ralph.conversation.messages import Conversation, RequestHead, RequestShape, make_message, to_json
from ralph.run.report_check import report_tool
from ralph.values.answer import ToolDefinition
from tests.api.answers.streams import texts
from tests.api.responses.server import call, message, reasoning, response, text_part
from tests.conversation.request_types import type_problems
from tests.rows import every_row

OPENAI, OTHER = "https://api.openai.com/v1", "http://127.0.0.1:8000/v1"
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
BASH = ToolDefinition(
    "Bash", "Runs a command.", {"type": "object", "properties": {"command": {"type": "string"}}}
)
SHAPE = RequestShape(
    "gpt-6-astra", "Be brief.", (BASH, report_tool(None)), effort="high", thinking="adaptive"
)


def signed(item: dict[str, Any], text: str = "") -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": to_json(item).decode()}


REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "Hm."}],
    "encrypted_content": "gAAAAAB",
}
USE = {"type": "tool_use", "id": "call_1", "name": "Bash", "input": {"command": "ls ä"}}
CALLED = {"type": "function_call", "call_id": "call_1", "name": "Bash", "arguments": '{"command":"ls ä"}'}


def sent(conversation: Conversation, base_url: str = OPENAI) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(b"".join(Responses(base_url).body(conversation.request_body())))
    return body


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def spoken(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": text, **more}


def heard(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [*parts]}


def result(content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "call_1", "content": content, **more}


def returned(output: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": "call_1", "output": output}


def input_text(text: str) -> dict[str, Any]:
    return {"type": "input_text", "text": text}


IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "auto"}
LONG_ID = "c" * 70
SHORT_ID = f"{'c' * 55}_56491b18"

MESSAGES: dict[str, tuple[Any, list[dict[str, Any]], list[dict[str, Any]]]] = {
    "text": ("user", [said("hi")], [heard(input_text("hi"))]),
    "text and an image": ("user", [said("see"), PNG], [heard(input_text("see"), IMAGE)]),
    "a cache marker": (
        "user",
        [{**said("hi"), "cache_control": {"type": "ephemeral"}}],
        [heard(input_text("hi"))],
    ),
    "a result before words": (
        "user",
        [result("done"), said("go on")],
        [returned("done"), heard(input_text("go on"))],
    ),
    "a failure": ("user", [result("No such file.", is_error=True)], [returned("Error: No such file.")]),
    "a failure that says so": ("user", [result("Error: gone", is_error=True)], [returned("Error: gone")]),
    "an empty result": ("user", [result("")], [returned("")]),
    "a result with an image": (
        "user",
        [result([said("a picture"), PNG])],
        [returned([input_text("a picture"), IMAGE])],
    ),
    "a block of another API": (
        "user",
        [{"type": "new", "x": 1}],
        [heard(input_text('{"type": "new", "x": 1}'))],
    ),
    "an answer": ("assistant", [said("ok")], [spoken("ok")]),
    "a call": ("assistant", [said("ok"), USE], [spoken("ok"), CALLED]),
    "reasoning before a call": ("assistant", [signed(REASONING, "Hm."), USE], [REASONING, CALLED]),
    "reasoning that nothing follows": ("assistant", [said("ok"), signed(REASONING)], [spoken("ok")]),
    "reasoning alone": ("assistant", [signed(REASONING)], []),
    "thinking of another API": (
        "assistant",
        [{"type": "thinking", "thinking": "Hm.", "signature": "EqQB"}, said("ok")],
        [spoken("ok")],
    ),
    "thinking without a signature": ("assistant", [{"type": "thinking", "thinking": "Hm."}, USE], [CALLED]),
    "thinking with JSON that is none": (
        "assistant",
        [{"type": "thinking", "thinking": "", "signature": "{no"}, USE],
        [CALLED],
    ),
    "thinking with JSON that nests too deep": (
        "assistant",
        [{"type": "thinking", "thinking": "", "signature": '{"a":' + "[" * 100_000}, USE],
        [CALLED],
    ),
    "thinking with JSON of another form": ("assistant", [signed({"type": ["reasoning"]}), USE], [CALLED]),
    "thinking that was hidden": ("assistant", [{"type": "redacted_thinking", "data": "x"}, USE], [CALLED]),
    "a call of a tool of Anthropic's server": (
        "assistant",
        [{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}, said("ok")],
        [spoken("ok")],
    ),
    "phases": (
        "assistant",
        [
            signed({"type": "message", "phase": "commentary"}),
            said("I look."),
            USE,
            signed({"type": "message", "phase": "final_answer"}),
            said("Done."),
        ],
        [spoken("I look.", phase="commentary"), CALLED, spoken("Done.", phase="final_answer")],
    ),
    "an id that is too long": ("assistant", [{**USE, "id": LONG_ID}], [{**CALLED, "call_id": SHORT_ID}]),
    "its result": (
        "user",
        [{**result("x"), "tool_use_id": LONG_ID}],
        [{**returned("x"), "call_id": SHORT_ID}],
    ),
}


@every_row(("role", "content", "items"), MESSAGES.values())
def test_each_block_becomes_an_item_or_is_left_out(role: Any, content: Any, items: Any) -> None:
    assert list(input_items({"role": role, "content": content})) == items
    body = {"model": "m", "stream": True, "input": items or "-"}
    assert type_problems(body, ResponseCreateParamsStreaming) == []


def test_a_content_that_is_a_text_is_one_text() -> None:
    assert list(input_items({"role": "user", "content": "hi"})) == [heard(input_text("hi"))]


HEADS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing asked": ({}, {}),
    "effort": ({"output_config": {"effort": "low"}}, {"reasoning": {"effort": "low"}}),
    "thinking": ({"thinking": {"type": "adaptive"}}, {"reasoning": {"summary": "auto"}}),
    "no thinking": (
        {"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}},
        {"reasoning": {"effort": "none"}},
    ),
    "both": (
        {"thinking": {"type": "enabled"}, "output_config": {"effort": "max"}},
        {"reasoning": {"effort": "max", "summary": "auto"}},
    ),
    "few tokens": ({"max_tokens": 1}, {"max_output_tokens": 16}),
    "a whole answer": ({"stream": False}, {"stream": False}),
    "a system prompt in blocks": ({"system": [said("a"), said("b")]}, {"instructions": "a\n\nb"}),
    "a system prompt as text": ({"system": "a"}, {"instructions": "a"}),
    "a model that does not reason": (
        {"model": "gpt-4.1", "thinking": {"type": "disabled"}},
        {"model": "gpt-4.1", "include": ...},
    ),
    "a chat model": (
        {"model": "openai/gpt-5-chat-latest"},
        {"model": "openai/gpt-5-chat-latest", "include": ...},
    ),
    "any tool": ({"tool_choice": {"type": "any"}}, {"tool_choice": "required"}),
    "no tool": ({"tool_choice": {"type": "none"}}, {"tool_choice": "none"}),
    "one tool, one call": (
        {"tool_choice": {"type": "tool", "name": "Bash", "disable_parallel_tool_use": True}},
        {"tool_choice": {"type": "function", "name": "Bash"}, "parallel_tool_calls": False},
    ),
}


@every_row(("asked", "changes"), HEADS.values())
def test_each_field_of_the_head_has_its_counterpart(asked: Any, changes: Any) -> None:
    fields = request_fields(RequestHead.of_fields({"model": "o9", "max_tokens": 99, "stream": True, **asked}))
    usual = {"model": "o9", "max_output_tokens": 99, "stream": True, "store": False}
    wanted = {**usual, "include": ["reasoning.encrypted_content"], **changes}
    assert fields == {name: value for name, value in wanted.items() if value is not ...}


def test_a_request_of_a_run_fits_the_official_types_and_only_the_report_is_strict() -> None:
    conversation = Conversation.start(SHAPE)
    for role, content, _ in MESSAGES.values():
        conversation = conversation.plus(make_message(role, content))
    body = sent(conversation)
    assert (type_problems(body, ResponseCreateParamsStreaming), body["instructions"]) == ([], "Be brief.")
    assert [(tool["name"], tool["strict"]) for tool in body["tools"]] == [
        ("Bash", False),
        ("final_report", True),
    ]
    assert body["tools"][0]["parameters"] == BASH.input_schema


def test_only_servers_that_are_known_to_take_it_get_a_cache_key_that_stays() -> None:
    short = Conversation.start(SHAPE).plus(make_message("user", [said("task")]))
    long = short
    for number in range(300):
        long = long.plus(make_message("assistant", [said(f"{number} " + "x" * 1000)]))
        long = long.plus(make_message("user", [said("go on")]))
    assert long.request_body().packed
    other = Conversation.start(SHAPE).plus(make_message("user", [said("another task")]))
    keys = [sent(one)["prompt_cache_key"] for one in (short, long, other)]
    assert keys[0] == keys[1] != keys[2]
    assert "prompt_cache_key" in sent(short, "https://x.openai.azure.com/openai/v1")
    assert "prompt_cache_key" not in sent(short, OTHER)
    assert "prompt_cache_key" not in sent(short, "https://api.openai.com.example.org/v1")


@given(st.data())
def test_later_requests_begin_with_the_bytes_of_earlier_ones_and_reuse_the_large_pieces(
    data: st.DataObject,
) -> None:
    contents = st.lists(st.sampled_from([value[1] for value in MESSAGES.values()]), min_size=1, max_size=30)
    dialect, conversation = Responses(OPENAI), Conversation.start(SHAPE)
    before = b""
    large: tuple[bytes, ...] = ()
    for content in data.draw(contents):
        role: Any = next(row[0] for row in MESSAGES.values() if row[1] is content)
        filler = said(data.draw(texts) + "y" * 20_000)
        conversation = conversation.plus(make_message(role, [*content, filler]))
        pieces = dialect.body(conversation.request_body())
        body = b"".join(pieces)
        assert json.loads(body)["input"]
        assert body.startswith(before.removesuffix(b"]}"))
        assert all(one is other for one, other in zip(pieces[1:-1], large, strict=False))
        assert body == b"".join(Responses(OPENAI).body(conversation.request_body()))
        before, large = body, pieces[1:-1]


def test_reasoning_goes_back_as_it_came_without_what_only_an_answer_has() -> None:
    whole = response(
        reasoning("Hm."), message(text_part("I look."), phase="commentary"), call('{"command":"ls"}')
    )
    assembler = StreamAssembler()
    for event in Responses(OPENAI).whole(whole) or ():
        assembler.feed(event)
    items = list(input_items({"role": "assistant", "content": assembler.answer().content}))
    assert items == [
        REASONING,
        spoken("I look.", phase="commentary"),
        {**CALLED, "arguments": '{"command":"ls"}'},
    ]
