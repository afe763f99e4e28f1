"""OpenAI's official SDK must understand the server in both of OpenAI's dialects, and its types must know all that the
server sends.
"""

from __future__ import annotations

import json
import ssl
from typing import TYPE_CHECKING, Any, get_args

import pytest

from ralph.mock_api import ErrorEvent, Fault, MockApi, Model, Scenario, Step, Text, Thinking, ToolUse, Turn
from tests.mock_api.harness import Serve, sent
from tests.patience import within_s
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    ClientOf = Callable[..., Any]

WORDS = "Größe 🙂: let me look."
INPUT = {"command": "ls", "note": "\u2028 and 'quotes'"}
TURN = Turn(
    content=(
        Thinking("Two looks are better than one.", "c2lnbmF0dXJl"),
        Text(WORDS),
        ToolUse("Bash", INPUT),
        ToolUse("Read"),
    ),
    usage={
        "input_tokens": 11,
        "output_tokens": 22,
        "cache_read_input_tokens": 33,
        "cache_creation_input_tokens": 0,
    },
    ping_every=4,
)
PARAMETERS = {"type": "object", "properties": {}}
USER = {"role": "user", "content": "hi"}
CHAT: dict[str, Any] = {
    "model": "gpt-test",
    "max_completion_tokens": 100,
    "tools": [
        {"type": "function", "function": {"name": name, "parameters": PARAMETERS}}
        for name in ("Bash", "Read")
    ],
    "messages": [{"role": "developer", "content": "be brief"}, USER],
}
RESPONSES: dict[str, Any] = {
    "model": "gpt-test",
    "max_output_tokens": 100,
    "instructions": "be brief",
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "tools": [
        {"type": "function", "name": name, "parameters": PARAMETERS, "strict": False}
        for name in ("Bash", "Read")
    ],
    "input": [USER],
}
STREAMED = [
    *((None, base) for base in ("/v1", "/v1beta/openai", "/openai/v1")),
    (Fault(interleaved=True), "/v1"),
    (Fault(framing="close", line_ending="\r\n"), "/v1"),
]


@pytest.fixture(scope="session")
def openai() -> Any:
    """The official SDK. It is a fixture because importing it takes seconds."""
    import openai

    return openai


@pytest.fixture
def client_of(openai: Any) -> Iterator[ClientOf]:
    clients: list[Any] = []
    no_certificates = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    def make(server: MockApi, base: str = "/v1") -> Any:
        http_client = openai.DefaultHttpxClient(verify=no_certificates)
        clients.append(
            openai.OpenAI(
                base_url=server.base_url + base, api_key="k", max_retries=0, http_client=http_client
            )
        )
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def unknown_fields(value: Any) -> set[str]:
    """The fields of a value that the types of the SDK do not know."""
    if isinstance(value, list):
        return set().union(*map(unknown_fields, value))
    if not hasattr(value, "model_extra"):
        return set()
    fields = [getattr(value, name) for name in type(value).model_fields]
    return set(value.model_extra or ()).union(*map(unknown_fields, fields))


def calls_of(message: Any) -> list[tuple[str, Any]]:
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls]


@every_row(("fault", "base"), STREAMED)
def test_the_sdk_streams_a_completion(
    serve: Serve, client_of: ClientOf, fault: Fault | None, base: str
) -> None:
    client = client_of(serve(Step(TURN, fault)), base)
    with client.chat.completions.stream(**CHAT, stream_options={"include_usage": True}) as stream:
        whole = stream.get_final_completion()
    [choice] = whole.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", WORDS)
    assert calls_of(choice.message) == [("Bash", INPUT), ("Read", {})]
    assert choice.message.reasoning_content == "Two looks are better than one."
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (44, 22)
    assert whole.usage.prompt_tokens_details.cached_tokens == 33
    assert whole.usage.completion_tokens_details.reasoning_tokens == 8


def test_a_whole_completion_says_what_its_stream_says(serve: Serve, client_of: ClientOf) -> None:
    client = client_of(serve(Step(TURN, repeat=2)))
    whole = client.chat.completions.create(**CHAT)
    with client.chat.completions.stream(**CHAT, stream_options={"include_usage": True}) as stream:
        streamed = stream.get_final_completion()

    def essence(completion: Any) -> Any:
        message = completion.choices[0].message
        return completion.choices[0].finish_reason, message.content, calls_of(message), completion.usage

    assert (essence(whole), unknown_fields(whole)) == (essence(streamed), {"reasoning_content"})


def test_every_chunk_has_the_type_of_the_sdk(serve: Serve, openai: Any) -> None:
    from openai.types.chat import ChatCompletionChunk

    server = serve(TURN)
    request = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
    body = sent("POST", f"{server.base_url}/v1/chat/completions", json=request).text
    lines = [line for line in body.split("\n") if line]
    assert (lines.count(": ping"), lines[-1]) == (3, "data: [DONE]")
    pieces = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")]
    assert len(pieces) + lines.count(": ping") + 1 == len(lines)
    chunks = [ChatCompletionChunk.model_validate_json(piece, strict=True) for piece in pieces]
    assert set().union(*map(unknown_fields, chunks)) == {"reasoning_content"}
    assert [chunk.usage is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    assert chunks[-1].choices == []


@every_row(("fault", "base"), STREAMED)
def test_the_sdk_streams_a_response(
    serve: Serve, client_of: ClientOf, fault: Fault | None, base: str
) -> None:
    client = client_of(serve(Step(TURN, fault)), base)
    with client.responses.stream(**RESPONSES) as stream:
        whole = stream.get_final_response()
    assert whole.status == "completed"
    assert [item.type for item in whole.output] == ["reasoning", "message", "function_call", "function_call"]
    reasoning, message, bash, read = whole.output
    assert reasoning.summary[0].text == "Two looks are better than one."
    assert reasoning.encrypted_content
    assert message.content[0].text == WORDS
    assert (bash.name, json.loads(bash.arguments), read.name, read.arguments) == ("Bash", INPUT, "Read", "{}")
    assert (whole.usage.input_tokens, whole.usage.output_tokens) == (44, 22)
    assert whole.usage.input_tokens_details.cached_tokens == 33
    assert whole.usage.output_tokens_details.reasoning_tokens == 8


def test_a_whole_response_says_what_its_stream_says(serve: Serve, client_of: ClientOf) -> None:
    named = [*TURN.blocks()[:2], ToolUse("Bash", INPUT, id="call_1"), ToolUse("Read", id="call_2")]
    client = client_of(serve(Step(Turn(named, id="resp_1"), repeat=2)))
    whole = client.responses.create(**RESPONSES)
    *_, last = client.responses.create(**RESPONSES, stream=True)
    assert (last.response, unknown_fields(whole)) == (whole, set())


def test_the_encrypted_content_of_an_item_is_whole_at_its_end_only(serve: Serve, client_of: ClientOf) -> None:
    events = ask(client_of(serve(TURN)), "responses", stream=True)
    added, done = (
        next(event.item.encrypted_content for event in events if event.type == f"response.output_item.{end}")
        for end in ("added", "done")
    )
    assert done.startswith(added)
    assert len(added) < len(done)


@every_row(
    "step",
    [
        Step(TURN),
        Step(TURN, Fault(interleaved=True)),
        Step(Turn("I will not.", stop_reason="refusal")),
        Step(Turn("It goes on and", stop_reason="max_tokens")),
        Step(Turn("x", stop_reason="content_filter")),
        Step(Turn([Thinking("", "")])),
        Step(Turn("x"), Fault(error_event=ErrorEvent(after_events=2))),
        Step(Turn("x"), Fault(error_event=ErrorEvent(type="server_error", after_events=2))),
        Step(Turn("x", ping_every=1), Fault(error_event=ErrorEvent(after_events=4))),
    ],
)
def test_every_event_of_a_response_has_the_type_of_the_sdk(serve: Serve, openai: Any, step: Step) -> None:
    from openai.types.responses import ResponseStreamEvent

    types = {
        get_args(cls.model_fields["type"].annotation)[0]: cls
        for cls in get_args(get_args(ResponseStreamEvent)[0])
    }
    server = serve(step)
    body = sent("POST", f"{server.base_url}/v1/responses", json={**RESPONSES, "stream": True}).text
    blocks = [block.split("\n") for block in body.split("\n\n") if block and block != ": ping"]
    for number, (name, data) in enumerate(blocks):
        event = json.loads(data.removeprefix("data: "))
        parsed = types[event["type"]].model_validate_json(data.removeprefix("data: "), strict=True)
        assert (name, unknown_fields(parsed)) == (f"event: {event['type']}", set())
        assert parsed.sequence_number == number


def conversation_of(completion: Any) -> list[Any]:
    message = completion.choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "ok"} for call in message.tool_calls]
    return [message.to_dict(), *results]


def test_the_sdk_sends_the_results_of_a_completion_back(serve: Serve, client_of: ClientOf) -> None:
    server = serve(TURN, Turn("Done."))
    client = client_of(server)
    asked = client.chat.completions.create(**CHAT)
    message = asked.choices[0].message
    said = {"role": "assistant", "content": message.content, "tool_calls": message.to_dict()["tool_calls"]}
    messages = [*CHAT["messages"], said, *conversation_of(asked)[1:]]
    answer = client.chat.completions.create(**{**CHAT, "messages": messages})
    assert answer.choices[0].message.content == "Done."
    assert [request.api for request in server.requests] == ["openai-chat"] * 2
    assert server.requests[1].messages() == [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": WORDS},
                {"type": "tool_use", "id": "call_mock_000000_2", "name": "Bash", "input": INPUT},
                {"type": "tool_use", "id": "call_mock_000000_3", "name": "Read", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": f"call_mock_000000_{number}",
                    "content": [{"type": "text", "text": "ok"}],
                }
                for number in (2, 3)
            ],
        },
    ]


def test_the_sdk_sends_the_items_of_a_response_back(serve: Serve, client_of: ClientOf) -> None:
    server = serve(TURN, Turn("Done."))
    client = client_of(server)
    asked = client.responses.create(**RESPONSES)
    results = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "ok"}
        for item in asked.output
        if item.type == "function_call"
    ]
    answer = client.responses.create(**{**RESPONSES, "input": [USER, *asked.output, *results]})
    assert answer.output_text == "Done."
    assert [request.api for request in server.requests] == ["openai-responses"] * 2
    asked_with, said, done = server.requests[1].messages()
    assert asked_with == {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    assert [block["type"] for block in said["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    assert [block["content"] for block in done["content"]] == [[{"type": "text", "text": "ok"}]] * 2


@every_row(
    ("turn", "finish_reason", "status", "reason"),
    [
        (Turn("x"), "stop", "completed", None),
        (Turn("x", stop_reason="stop_sequence"), "stop", "completed", None),
        (Turn("x", stop_reason="max_tokens"), "length", "incomplete", "max_output_tokens"),
        (Turn("x", stop_reason="content_filter"), "content_filter", "incomplete", "content_filter"),
        (Turn([ToolUse("Bash")]), "tool_calls", "completed", None),
        (Turn([ToolUse("Bash")], stop_reason="end_turn"), "stop", "completed", None),
    ],
)
def test_a_stop_reason_has_its_counterparts(
    serve: Serve, client_of: ClientOf, turn: Turn, finish_reason: str, status: str, reason: str | None
) -> None:
    client = client_of(serve(Step(turn, repeat=2)))
    completion = client.chat.completions.create(**CHAT)
    response = client.responses.create(**RESPONSES)
    assert completion.choices[0].finish_reason == finish_reason
    assert response.status == response.output[-1].status == status
    assert (response.incomplete_details and response.incomplete_details.reason) == reason


def test_a_refusal_is_no_text(serve: Serve, client_of: ClientOf) -> None:
    client = client_of(serve(Step(Turn("I will not.", stop_reason="refusal"), repeat=4)))
    completion = client.chat.completions.create(**CHAT).choices[0].message
    with client.chat.completions.stream(**CHAT) as stream:
        streamed = stream.get_final_completion().choices[0].message
    response = client.responses.create(**RESPONSES)
    with client.responses.stream(**RESPONSES) as events:
        refusals = [event.delta for event in events if event.type == "response.refusal.delta"]
    assert (completion.content, completion.refusal) == (None, "I will not.")
    assert (streamed.content or "", streamed.refusal) == ("", "I will not.")
    assert (response.output_text, response.output[0].content[0].refusal) == ("", "I will not.")
    assert "".join(refusals) == "I will not."


@every_row(
    ("status", "name", "code"),
    [
        (400, "BadRequestError", None),
        (401, "AuthenticationError", "invalid_api_key"),
        (403, "PermissionDeniedError", "missing_scope"),
        (404, "NotFoundError", "model_not_found"),
        (409, "ConflictError", "conflict"),
        (422, "UnprocessableEntityError", None),
        (429, "RateLimitError", "rate_limit_exceeded"),
        (500, "InternalServerError", "server_error"),
        (503, "InternalServerError", "server_error"),
        (529, "InternalServerError", "server_is_overloaded"),
    ],
)
@every_row("api", ["chat", "responses"])
def test_the_sdk_raises_its_error_for_the_status(
    serve: Serve, client_of: ClientOf, openai: Any, status: int, name: str, code: str | None, api: str
) -> None:
    client = client_of(serve(Fault(status=status, headers={"retry-after-ms": 5})))
    with pytest.raises(openai.APIStatusError) as caught:
        ask(client, api)
    assert (type(caught.value).__name__, caught.value.code) == (name, code)
    assert caught.value.request_id == "req_mock_000000"
    assert caught.value.response.headers["retry-after-ms"] == "5"


def ask(client: Any, api: str, **changes: Any) -> Any:
    """Sends a request of this dialect. A stream is read to its end."""
    create = client.chat.completions.create if api == "chat" else client.responses.create
    answer = create(**{**(CHAT if api == "chat" else RESPONSES), **changes})
    return list(answer) if changes.get("stream") else answer


@every_row("api", ["chat", "responses"])
def test_a_prompt_that_is_too_long_has_openais_code(
    serve: Serve, client_of: ClientOf, openai: Any, api: str
) -> None:
    fault = Fault(status=400, message="prompt is too long: 9 tokens > 5 maximum")
    with pytest.raises(openai.BadRequestError, match="maximum context length is 5 tokens") as caught:
        ask(client_of(serve(fault)), api)
    assert caught.value.code == "context_length_exceeded"


@every_row("api", ["chat", "responses"])
@every_row(
    ("fault", "name"),
    [
        (Fault(cut_after_events=3), "APIConnectionError"),
        (Fault(malformed_json_at_event=3), "JSONDecodeError"),
    ],
)
def test_the_sdk_raises_for_a_broken_stream(
    serve: Serve, client_of: ClientOf, api: str, fault: Fault, name: str
) -> None:
    step = Step(None if fault.replaces_answer() else TURN, fault)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the row names the type
        ask(client_of(serve(step)), api, stream=True)
    assert type(caught.value).__name__ == name


def test_the_sdk_raises_for_an_error_in_a_stream_of_chunks(
    serve: Serve, client_of: ClientOf, openai: Any
) -> None:
    server = serve(Step(TURN, Fault(error_event=ErrorEvent(after_events=3))))
    with pytest.raises(openai.APIError, match="Overloaded") as caught:
        ask(client_of(server), "chat", stream=True)
    assert (caught.value.type, caught.value.code) == ("service_unavailable_error", "server_is_overloaded")


@every_row(
    ("error_type", "event_type", "code"),
    [
        ("overloaded_error", "error", "server_is_overloaded"),
        ("server_error", "response.failed", "server_error"),
        ("rate_limit_error", "error", "rate_limit_exceeded"),
        ("rate_limit_exceeded", "response.failed", "rate_limit_exceeded"),
    ],
)
def test_an_error_in_a_stream_of_a_response_is_its_last_event(
    serve: Serve, client_of: ClientOf, error_type: str, event_type: str, code: str
) -> None:
    error = ErrorEvent(type=error_type, message="Sorry", after_events=3)
    server = serve(Step(TURN, Fault(error_event=error)))
    *_, last = ask(client_of(server), "responses", stream=True)
    told = last if event_type == "error" else last.response.error
    assert (last.type, told.code, told.message) == (event_type, code, "Sorry")


@every_row("api", ["chat", "responses"])
def test_pings_alone_keep_a_stream_alive(serve: Serve, client_of: ClientOf, api: str) -> None:
    fault = Fault(stall_after_events=2, stall_s=0.3, ping_interval_s=0.02)
    server = serve(Step(TURN, fault), Step(TURN))
    client = client_of(server).with_options(timeout=within_s(5))
    assert len(ask(client, api, stream=True)) == len(ask(client, api, stream=True))


def test_an_end_without_its_last_word(serve: Serve, client_of: ClientOf) -> None:
    server = serve(
        Step(TURN, Fault(omit_message_stop=True), repeat=2),
        Step(TURN, Fault(omit_message_delta=True), repeat=2),
    )
    client = client_of(server)
    no_done, no_completed = ask(client, "chat", stream=True), ask(client, "responses", stream=True)
    no_reason = ask(client, "chat", stream=True)
    assert no_done[-1].choices[0].finish_reason == "tool_calls"
    assert no_completed[-1].type == "response.output_item.done"
    assert {chunk.choices[0].finish_reason for chunk in no_reason} == {None}
    with pytest.raises(Exception, match="omit_message_delta: has no counterpart in openai-responses"):
        ask(client, "responses", stream=True)


def test_calls_can_begin_without_arguments(serve: Serve, client_of: ClientOf) -> None:
    fault = Fault(omit_tool_input=True)
    client = client_of(serve(Step(TURN, repeat=2), Step(TURN, fault, repeat=2)))

    def beginnings() -> list[Any]:
        chunks = ask(client, "chat", stream=True)
        calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or () if call.id]
        events = ask(client, "responses", stream=True)
        items = [event.item for event in events if event.type == "response.output_item.added"]
        return [
            *(call.function.arguments for call in calls),
            *(getattr(item, "arguments", None) for item in items if item.type == "function_call"),
        ]

    assert (beginnings(), beginnings()) == ([""] * 4, [None] * 4)


def test_a_raw_block_is_an_item_and_no_chunk(serve: Serve, client_of: ClientOf) -> None:
    client = client_of(serve(Step(Turn([{"type": "web_search_call", "status": "completed"}]), repeat=2)))
    assert ask(client, "responses").output[0].type == "web_search_call"
    with pytest.raises(Exception, match="a raw block has no counterpart"):
        ask(client, "chat")


def test_the_sdk_reads_what_is_said_of_models(client_of: ClientOf, openai: Any) -> None:
    models = [Model("gpt-x", 200_000, 64_000), Model("team/gpt-y")]
    with MockApi(Scenario(models=models)) as server:
        client = client_of(server)
        listed = list(client.models.list())
        described = client.models.retrieve("gpt-x")
        with pytest.raises(openai.NotFoundError, match="gpt-z") as caught:
            client.models.retrieve("gpt-z")
        assert [lookup.api for lookup in server.lookups] == ["openai-chat"] * 3
    assert [model.id for model in listed] == ["gpt-x", "team/gpt-y"]
    assert (described.object, described.owned_by, described.max_model_len) == ("model", "mock", 200_000)
    assert caught.value.code == "model_not_found"


def test_a_key_is_a_bearer(serve: Serve) -> None:
    server = serve(Step(Turn("Hello"), repeat=5), require_key=True)

    def status(path: str, request: dict[str, Any], **headers: str) -> int:
        return sent("POST", server.base_url + path, json=request, headers=headers).status_code

    for path, request in (("/v1/chat/completions", CHAT), ("/v1/responses", RESPONSES)):
        assert (status(path, request), status(path, request, **{"x-api-key": "k"})) == (401, 401)
        assert status(path, request, authorization="Bearer k") == 200
        assert status(path, request, **{"api-key": "k"}) == 200
