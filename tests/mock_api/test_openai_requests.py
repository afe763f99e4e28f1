"""Requests that OpenAI's two APIs refuse. The types of the official SDK say which fields there are."""

from __future__ import annotations

import typing
from typing import Any

import pytest

from ralph.mock_api import (
    Fault,
    MockApi,
    Playable,
    Scenario,
    ScenarioError,
    Thinking,
    ToolUse,
    Turn,
    chat,
    example_names,
    load_example,
    responses,
)
from ralph.mock_api.plan import BY_API, CHAT, RESPONSES, ServedApi
from ralph.mock_api.scenario import as_step
from tests.mock_api.harness import HELLO, Serve, sent
from tests.rows import every_row

USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
STRICT = {**SCHEMA, "required": ["a"], "additionalProperties": False}
MISSING = "missing_required_parameter"
UNKNOWN = "unknown_parameter"
VALUE = "invalid_value"
TYPE = "invalid_type"
EMPTY = "empty_array"
LONG = "string_above_max_length"
PARAMETERS = "invalid_function_parameters"
SMALL = "integer_below_min_value"
OF_TOOL = "tools[0].function.parameters"
FUNCTION = "Invalid schema for function 'Bash': "
CHAT_REQUEST: dict[str, Any] = {"model": "m", "messages": [USER]}
REQUEST: dict[str, Any] = {"model": "m", "input": [USER]}


def refused(dialect: ServedApi, payload: dict[str, Any], **changes: Any) -> tuple[Any, Any, str] | None:
    """The parameter, the code and the message of the refusal. None if there is no refusal."""
    request = {name: value for name, value in {**payload, **changes}.items() if value is not ...}
    fault = dialect.find_refusal(request, {}, False)
    if fault is None:
        return None
    assert isinstance(fault.body, dict)
    error = fault.body["error"]
    assert (fault.status, error["type"]) == (400, "invalid_request_error")
    return error["param"], error["code"], error["message"]


def call(*ids: str, arguments: str = "{}", **fields: Any) -> dict[str, Any]:
    calls = [
        {"id": call_id, "type": "function", "function": {"name": "Bash", "arguments": arguments}}
        for call_id in ids
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls, **fields}


def result(call_id: str, content: Any = "ok", **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content, **fields}


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "Bash", "parameters": SCHEMA, **function}}


def only(*messages: Any) -> dict[str, Any]:
    return {"messages": [*messages]}


def said(*messages: Any) -> dict[str, Any]:
    """A conversation that begins with a prompt."""
    return only(USER, *messages)


def items(*more: Any) -> dict[str, Any]:
    """Input that begins with a prompt."""
    return {"input": [USER, *more]}


def answered(content: Any = "x", **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


TEXT = {"type": "text", "text": "x"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


@every_row(
    "changes",
    [
        only({"role": "system", "content": "s"}, USER),
        only({"role": "developer", "content": [TEXT]}, {"role": "user", "content": [TEXT, IMAGE]}),
        said(call("a", "b"), result("b"), result("a", [TEXT]), USER),
        said(call("a", reasoning_content="hm"), result("a", "")),
        said(answered()),
        said(answered([{"type": "refusal", "refusal": "no"}]), USER),
        {"max_tokens": 5},
        {"model": "gpt-5.5", "max_completion_tokens": 5, "reasoning_effort": "high", "verbosity": "low"},
        {"stream": True, "stream_options": {"include_usage": True}, "store": False, "prompt_cache_key": "k"},
        {"tools": [tool(), tool(name="report", parameters=STRICT, strict=True)], "tool_choice": "required"},
        {
            "tools": [tool()],
            "tool_choice": {"type": "function", "function": {"name": "Bash"}},
            "parallel_tool_calls": True,
        },
    ],
)
def test_a_good_chat_request_passes(changes: dict[str, Any]) -> None:
    assert refused(CHAT, CHAT_REQUEST, **changes) is None


UNANSWERED = (
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. The "
    "following tool_call_ids did not have response messages: "
)
UNASKED = "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."


@every_row(
    ("changes", "param", "code", "message"),
    [
        ({"model": ...}, "model", MISSING, "Missing required parameter: 'model'."),
        ({"messages": ...}, "messages", MISSING, "Missing required parameter: 'messages'."),
        ({"messages": []}, "messages", EMPTY, "Invalid 'messages'"),
        ({"messages": "hi"}, "messages", TYPE, "Invalid type for 'messages': expected array, but"),
        ({"nonsense": 1}, "nonsense", UNKNOWN, "Unknown parameter: 'nonsense'."),
        ({"system": "x"}, "system", UNKNOWN, "Unknown parameter: 'system'."),
        ({"stream": "yes"}, "stream", TYPE, "Invalid type for 'stream'"),
        ({"reasoning_effort": "huge"}, "reasoning_effort", VALUE, "Invalid value"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", SMALL, "Invalid"),
        (
            {"model": "gpt-5.5", "max_tokens": 5},
            "max_tokens",
            "unsupported_parameter",
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'",
        ),
        (
            {"max_tokens": 5, "max_completion_tokens": 5},
            None,
            "invalid_parameter_combination",
            "Setting 'max_tokens' and 'max_completion_tokens' at the same time",
        ),
        ({"stream_options": {"include_usage": True}}, "stream_options", None, "The 'stream_options'"),
        ({"tools": []}, "tools", EMPTY, "Invalid 'tools'"),
        ({"tools": None}, "tools", TYPE, "Invalid type for 'tools'"),
        ({"tool_choice": "auto"}, "tool_choice", None, "'tool_choice' is only allowed when 'tools' are"),
        ({"parallel_tool_calls": True}, "parallel_tool_calls", None, "'parallel_tool_calls' is only allowed"),
        (
            {"tools": [{"name": "Bash", "type": "function"}]},
            "tools[0].name",
            UNKNOWN,
            "Unknown parameter: 'tools[0].name'.",
        ),
        ({"tools": [tool(name="a.b")]}, "tools[0].function.name", VALUE, "Invalid value"),
        (
            {"tools": [tool(name="a" * 65)]},
            "tools[0].function.name",
            LONG,
            "Invalid 'tools[0].function.name'",
        ),
        (
            {"tools": [tool(parameters={})]},
            OF_TOOL,
            PARAMETERS,
            FUNCTION + "schema must be a JSON Schema of 'type: ",
        ),
        (
            {"tools": [tool(strict=True)]},
            OF_TOOL,
            PARAMETERS,
            FUNCTION + "In context=(), 'additionalProperties' is required",
        ),
        (
            {"tools": [tool(strict=True, parameters={**STRICT, "properties": {"a": SCHEMA}})]},
            OF_TOOL,
            PARAMETERS,
            FUNCTION + "In context=('properties', 'a'), 'additionalProperties'",
        ),
        (
            {"tools": [tool(strict=True, parameters={**STRICT, "required": []})]},
            OF_TOOL,
            PARAMETERS,
            FUNCTION + "In context=(), 'required' is required to be supplied",
        ),
        (only({"role": "human", "content": "x"}), "messages[0].role", VALUE, "Invalid"),
        (only({"content": "x"}), "messages[0].role", MISSING, "Missing"),
        (only({**USER, "cache_control": {}}), "messages[0].cache_control", UNKNOWN, ""),
        (only({"role": "user", "content": None}), "messages[0].content", TYPE, ""),
        (only({"role": "user", "content": []}), "messages[0].content", EMPTY, ""),
        (
            only({"role": "user", "content": [{"type": "input_text", "text": "x"}]}),
            "messages[0].content[0].type",
            VALUE,
            "Invalid value",
        ),
        (said({"role": "assistant"}), "messages[1].content", None, "Invalid value for"),
        (said(call("a"), result("a", [IMAGE])), "messages[2].content[0].type", VALUE, ""),
        (said(call("a")), "messages.[2].role", None, UNANSWERED + "a"),
        (said(call("a", "b"), result("b"), USER), "messages.[3].role", None, UNANSWERED + "a"),
        (said(call("a"), USER, result("a")), "messages.[2].role", None, UNANSWERED + "a"),
        (said(result("a")), "messages.[1].role", None, UNASKED),
        (said(call("a"), result("a"), result("a")), "messages.[3].role", None, UNASKED),
        (said(call("a"), result("b")), "messages.[2].role", None, UNASKED),
        (said(call("a", "a"), result("a")), "messages[1].tool_calls", None, "Duplicate ids"),
        (
            said(call("a" * 41), result("a" * 41)),
            "messages[1].tool_calls[0].id",
            LONG,
            "Invalid 'messages[1].tool_calls[0].id'",
        ),
        (
            said(call("a", arguments="{"), result("a")),
            "messages[1].tool_calls[0].function.arguments",
            VALUE,
            "Invalid",
        ),
        (said(answered(tool_calls=[])), "messages[1].tool_calls", EMPTY, "Invalid"),
    ],
)
def test_a_wrong_chat_request_is_refused(
    changes: dict[str, Any], param: str | None, code: str | None, message: str
) -> None:
    refusal = refused(CHAT, CHAT_REQUEST, **changes)
    assert refusal is not None
    assert refusal[:2] == (param, code)
    assert refusal[2].startswith(message)


def item(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, **fields}


CALL = item("function_call", call_id="a", name="Bash", arguments="{}", id="fc_1", status="completed")
OUTPUT = item("function_call_output", call_id="a", output="ok")
ANSWER = item("message", role="assistant", content=[item("output_text", text="x", annotations=[])])
UNCALLED = "No tool call found for function call output with call_id a"
TOOL = item("function", name="Bash", parameters=SCHEMA, strict=False)


@every_row(
    "changes",
    [
        {"input": "hi"},
        items(ANSWER, USER),
        items(answered()),
        items(CALL, OUTPUT),
        items(CALL, {**CALL, "call_id": "b", "id": "fc_2"}, {**OUTPUT, "call_id": "b"}, OUTPUT),
        {
            "input": [
                USER,
                CALL,
                {**OUTPUT, "output": [item("input_image", image_url="data:,", detail="auto")]},
            ]
        },
        {"max_output_tokens": 16, "reasoning": {"effort": "high", "summary": "auto"}, "truncation": "auto"},
        {"store": False, "include": ["reasoning.encrypted_content"], "stream": True, "instructions": "x"},
        {"tools": [TOOL, {**TOOL, "name": "report", "parameters": STRICT, "strict": True}]},
        # As codex 0.171.0.
        {
            "tools": [
                TOOL,
                item("namespace", name="n", tools=[TOOL]),
                item("web_search", external_web_access=False),
            ],
            "client_metadata": {},
        },
    ],
)
def test_a_good_response_request_passes(changes: dict[str, Any]) -> None:
    assert refused(RESPONSES, REQUEST, **changes) is None


@every_row(
    ("changes", "param", "code", "message"),
    [
        ({"model": ...}, "model", MISSING, "Missing"),
        ({"input": ...}, "input", MISSING, "Missing"),
        ({"input": []}, "input", EMPTY, "Invalid 'input'"),
        ({"messages": []}, "messages", UNKNOWN, "Unknown parameter: 'messages'."),
        ({"max_tokens": 5}, "max_tokens", UNKNOWN, "Unknown parameter"),
        ({"max_output_tokens": 15}, "max_output_tokens", SMALL, "Invalid"),
        ({"reasoning_effort": "low"}, "reasoning_effort", UNKNOWN, "Unknown"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", VALUE, "Invalid value"),
        ({"include": ["everything"]}, "include[0]", VALUE, "Invalid value"),
        ({"stream_options": {"include_usage": True}}, "stream_options.include_usage", UNKNOWN, ""),
        ({"stream_options": {}}, "stream_options", None, "The 'stream_options' parameter is only allowed"),
        (
            {"previous_response_id": "resp_1"},
            "previous_response_id",
            "previous_response_not_found",
            "Previous response with id 'resp_1' not found.",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "Bash"}}]},
            "tools[0].function",
            UNKNOWN,
            "Unknown parameter: 'tools[0].function'.",
        ),
        ({"tools": [{**TOOL, "strict": True}]}, "tools[0].parameters", PARAMETERS, ""),
        ({"tools": [item("web_search"), item("telepathy")]}, "tools[1].type", VALUE, "Invalid value"),
        ({"input": [5]}, "input[0]", TYPE, ""),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", VALUE, ""),
        ({"input": [item("tool_result")]}, "input[0].type", VALUE, ""),
        ({"input": [{**USER, "name": "x"}]}, "input[0].name", UNKNOWN, ""),
        (
            {"input": [{"role": "user", "content": [item("output_text", text="x")]}]},
            "input[0].content[0]",
            VALUE,
            "Invalid value: 'output_text'. Supported values are: input_text, input_image.",
        ),
        (
            {"input": [{"role": "assistant", "content": [item("input_text", text="x")]}]},
            "input[0].content[0]",
            VALUE,
            "Invalid value: 'input_text'. Supported values are: output_text, refusal.",
        ),
        (items({**CALL, "id": "call_1"}, OUTPUT), "input[1].id", VALUE, ""),
        (items({**CALL, "arguments": "{"}, OUTPUT), "input[1].arguments", VALUE, ""),
        (items({**CALL, "call_id": "a" * 65}), "input[1].call_id", LONG, ""),
        (items(CALL), "input", None, "No tool output found for function call a."),
        (items(OUTPUT), "input", None, UNCALLED),
        ({"input": [OUTPUT, CALL]}, "input", None, UNCALLED),
        (items(CALL, OUTPUT, OUTPUT), "input", None, UNCALLED),
        (items(CALL, CALL, OUTPUT), "input", None, "Duplicate function call with call_id a"),
        (items(item("item_reference", id="msg_1")), "input", None, "Item with id 'msg_1' not found."),
        (
            items(item("reasoning", id="rs_1", summary=[]), ANSWER),
            "input",
            None,
            "Item with id 'rs_1' not found. Items are not persisted when `store` is set to false.",
        ),
        (
            items(item("reasoning", id="rs_1", summary=[], encrypted_content="made up"), ANSWER),
            None,
            "invalid_encrypted_content",
            "The encrypted content made up... could not be verified.",
        ),
    ],
)
def test_a_wrong_response_request_is_refused(
    changes: dict[str, Any], param: str | None, code: str | None, message: str
) -> None:
    refusal = refused(RESPONSES, REQUEST, **changes)
    assert refusal is not None
    assert refusal[:2] == (param, code)
    assert refusal[2].startswith(message)


@every_row(
    ("changes", "model", "code"),
    [
        ({}, "m", None),
        ({}, "another", "invalid_encrypted_content"),
        ({"id": "rs_other"}, "m", "invalid_encrypted_content"),
        ({"summary": []}, "m", "invalid_encrypted_content"),
        ({"encrypted_content": "gAAAAAAA"}, "m", "invalid_encrypted_content"),
    ],
)
def test_reasoning_comes_back_unchanged_and_to_its_model_only(
    serve: Serve, changes: dict[str, Any], model: str, code: str | None
) -> None:
    server = serve(Turn([Thinking("hm"), ToolUse("Bash", id="a")]))
    asked = {**REQUEST, "include": ["reasoning.encrypted_content"]}
    reasoning, called = sent("POST", f"{server.base_url}/v1/responses", json=asked).json()["output"]
    refusal = refused(RESPONSES, REQUEST, model=model, input=[USER, {**reasoning, **changes}, called, OUTPUT])
    assert (refusal and refusal[1]) == code
    alone = refused(RESPONSES, REQUEST, input=[USER, reasoning])
    assert alone is not None
    assert "of type 'reasoning' was provided without its required following item" in alone[2]


def test_reasoning_is_encrypted_only_for_those_who_ask(serve: Serve) -> None:
    server = serve(Turn([Thinking("hm")]))
    [reasoning] = sent("POST", f"{server.base_url}/v1/responses", json=REQUEST).json()["output"]
    assert "encrypted_content" not in reasoning


NOT_PLAYED = {
    "function_call": "deprecated",
    "functions": "deprecated",
    "conversation": "the server stores nothing",
    "background_options": "the server stores nothing",
    "moderation": "no answer of a scenario has it",
    "prompt": "the server stores nothing",
}


UNDOCUMENTED = {"client_metadata"}
"""Fields that codex sends and no page describes."""


@pytest.mark.parametrize("dialect", ["chat", "responses"])
def test_the_fields_of_a_request_are_those_of_the_sdk(dialect: str) -> None:
    from openai.types.chat import completion_create_params as of_chat
    from openai.types.responses import response_create_params as of_responses

    params, shape = {
        "chat": (of_chat.CompletionCreateParamsStreaming, chat._REQUEST),
        "responses": (of_responses.ResponseCreateParamsStreaming, responses._REQUEST),
    }[dialect]
    known = shape.__struct_fields__
    documented = set(typing.get_type_hints(params)) - NOT_PLAYED.keys()
    example = {"chat": CHAT_REQUEST, "responses": REQUEST}[dialect]
    spoken = {"chat": CHAT, "responses": RESPONSES}[dialect]
    assert set(known) - UNDOCUMENTED <= documented
    unchecked = [name for name in documented if name not in known]
    assert refused(spoken, example, **dict.fromkeys(unchecked, object())) is None


def test_a_refused_request_uses_up_no_step(serve: Serve) -> None:
    server = serve(Turn("Hello"))
    url = f"{server.base_url}/v1/chat/completions"
    refusal = sent("POST", url, json={**CHAT_REQUEST, "messages": []})
    broken = sent("POST", url, content=b"{")
    assert (refusal.status_code, refusal.json()["error"]["code"]) == (400, "empty_array")
    assert broken.json()["error"]["message"].startswith("The request body is not valid JSON")
    assert sent("POST", url, json=CHAT_REQUEST).status_code == 200
    exhausted = sent("POST", url, json=CHAT_REQUEST).json()["error"]
    assert exhausted["message"] == "scenario exhausted after 1 requests"
    assert exhausted["type"] == "invalid_request_error"


def test_one_scenario_answers_every_dialect_in_turn() -> None:
    steps: list[Playable] = [Turn("one"), Fault(status=503), Turn("two"), Turn("three")]
    anthropic = {"model": "m", "max_tokens": 5, "messages": [USER]}
    with MockApi(Scenario(steps)) as server:
        answers = [
            sent("POST", server.base_url + path, json=request, headers={"anthropic-version": "2023-06-01"})
            for path, request in (
                ("/v1/chat/completions", CHAT_REQUEST),
                ("/v1/messages", anthropic),
                ("/v1/responses", REQUEST),
                ("/v1/messages", anthropic),
            )
        ]
        wrong_method = sent("GET", f"{server.base_url}/v1/responses")
    assert answers[0].json()["choices"][0]["message"]["content"] == "one"
    assert answers[1].json()["error"]["type"] == "api_error"
    assert answers[2].json()["output"][0]["content"][0]["text"] == "two"
    assert answers[3].json()["content"][0]["text"] == "three"
    assert [request.api for request in server.requests] == [
        *("openai-chat", "anthropic", "openai-responses", "anthropic", "openai-responses")
    ]
    assert (wrong_method.status_code, wrong_method.json()["error"]["code"]) == (405, None)


def test_every_example_plays_in_every_dialect() -> None:
    refused_parts = set()
    for name in example_names():
        for step in map(as_step, load_example(name).steps):
            for dialect in BY_API.values():
                answer = dialect.answer(step, index=0, model="m", payload={})
                assert dialect.whole(answer)
                try:
                    assert dialect.stream(answer, step.fault or Fault())
                except ScenarioError as error:
                    refused_parts.add((name, str(error)))
    assert refused_parts == {
        ("quirk-no-message-delta", "omit_message_delta: has no counterpart in openai-responses")
    }


def test_without_parsing_every_dialect_gets_its_own_stream(serve: Serve) -> None:
    server = serve(HELLO, parse_requests=False)
    bodies = [
        sent("POST", server.base_url + path, content=b"no json").text
        for path in ("/v1/messages", "/v1/chat/completions", "/v1/responses", "/v1/messages")
    ]
    ends = ["message_stop", "[DONE]", "response.completed", "message_stop"]
    assert [end in body for end, body in zip(ends, bodies, strict=True)] == [True] * 4
