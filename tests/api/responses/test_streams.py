"""Streams of the Responses API. The official client is the oracle for whole ones."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.api.responses.stream import ResponseStream
from ralph.api.stream import StreamAssembler
from ralph.values.answer import MalformedCall, ToolCall
from ralph.values.errors import StreamParse, StreamTransient
from ralph.values.events import StreamReceived
from ralph.values.servers.endpoint import OPENAI_RESPONSES
from ralph.values.usage import TokenUsage, tokens_of
from tests.api.answers.pieces import Pieces, split
from tests.api.answers.streams import objects, texts
from tests.api.harness import Rig
from tests.api.responses.server import (
    Event,
    call,
    check_events,
    events_of,
    item_events,
    message,
    read_by_the_official_client,
    reasoning,
    refusal_part,
    response,
    stream,
    text_part,
)
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ralph.values.answer import Answer

LS, PWD = '{"command":"ls"}', '{"command":"pwd"}'
WHOLE = response(
    reasoning("Hm."),
    message(text_part("Grüße, 世界 🙂"), item_id="msg_1"),
    call(LS),
    call(PWD, call_id="call_2"),
)


def translated(events: Iterable[Event]) -> Iterator[Event]:
    translator = ResponseStream()
    for event in events:
        yield from translator.events("message", event)


def answer_of(events: Iterable[Event]) -> Answer:
    assembler = StreamAssembler()
    for event in translated(events):
        assembler.feed(event)
    return assembler.answer()


def short(answer: Answer) -> list[Any]:
    """The blocks of an answer in short: the text, the thinking in a list, or the name and the input of a call."""
    shown: list[Any] = []
    for block in answer.content:
        match block["type"]:
            case "text":
                shown.append(block["text"])
            case "thinking":
                shown.append([block["thinking"]])
            case _:
                shown.append((block["id"], block["input"]))
    return shown


# --- What OpenAI sends


@st.composite
def responses(draw: st.DrawFn) -> Event:
    items: list[Event] = []
    for number in range(draw(st.integers(0, 4))):
        match draw(st.sampled_from(["message", "reasoning", "call"])):
            case "message":
                part = st.builds(text_part, texts) | st.builds(refusal_part, texts)
                items.append(message(*draw(st.lists(part, max_size=3)), item_id=f"msg_{number}"))
            case "reasoning":
                summary = draw(st.lists(texts, max_size=3))
                secret = draw(st.none() | st.just("gAAAAAB"))
                items.append(reasoning(*summary, item_id=f"rs_{number}", secret=secret))
            case _:
                arguments = json.dumps(draw(objects), ensure_ascii=draw(st.booleans()))
                items.append(call(arguments, call_id=f"call_{number}"))
    return response(*items)


@given(responses(), st.data())
def test_an_answer_is_what_the_official_client_reads_however_its_bytes_are_split(
    whole: Event, data: st.DataObject
) -> None:
    events = events_of(whole)
    check_events(events)
    body = stream(events)
    read = read_by_the_official_client(body)
    pieces = split(body, data.draw(st.lists(st.integers(0, len(body)), max_size=20)))
    answer = received(pieces)
    parts = [part for item in read.output if item.type == "message" for part in item.content]
    spoken = [part.text if part.type == "output_text" else part.refusal for part in parts]
    assert [block["text"] for block in answer.content if block["type"] == "text"] == [
        one for one in spoken if one
    ]
    calls = [(one.call_id, json.loads(one.arguments)) for one in read.output if one.type == "function_call"]
    assert [(one["id"], one["input"]) for one in answer.content if one["type"] == "tool_use"] == calls
    thoughts = [item for item in read.output if item.type == "reasoning"]
    kept = [json.loads(block["signature"]) for block in answer.content if block.get("signature")]
    assert kept == [
        {
            "type": "reasoning",
            "id": item.id,
            "summary": [part.to_dict() for part in item.summary],
            "encrypted_content": item.encrypted_content,
        }
        for item in thoughts
        if item.encrypted_content
    ]
    assert answer.message["id"] == read.id
    is_refusal = any(part.type == "refusal" for part in parts)
    assert answer.stop_reason == ("refusal" if is_refusal else "tool_use" if calls else "end_turn")
    assert answer.warnings == ()
    assert tokens_of(answer.message["usage"]) == TokenUsage(input=40, output=30, cache_read=50)


@given(responses())
def test_a_whole_response_is_the_same_message_as_its_stream(whole: Event) -> None:
    from_whole, from_stream = whole_answer(whole), answer_of(events_of(whole))
    assert [one for one in from_whole.content if one.get("thinking") != ""] == [
        one for one in from_stream.content if one.get("thinking") != ""
    ]
    assert (from_whole.calls, from_whole.stop_reason) == (from_stream.calls, from_stream.stop_reason)
    assert from_whole.message["usage"] == from_stream.message["usage"]


def whole_answer(whole: Event) -> Answer:
    """The answer that ralph's client makes of a response in one JSON object."""
    rig = _rig([json.dumps(whole).encode()], "application/json")
    try:
        return rig.send()
    finally:
        rig.close()


def received(pieces: list[bytes]) -> Answer:
    """The answer that ralph's client makes of a stream in these pieces."""
    rig = _rig(pieces)
    try:
        return rig.send()
    finally:
        rig.close()


def _rig(pieces: list[bytes], content_type: str = "text/event-stream") -> Rig:
    transport = httpx.MockTransport(
        lambda _request: httpx.Response(200, headers={"content-type": content_type}, stream=Pieces(pieces))
    )
    return Rig("http://api.test/v1", speaks=OPENAI_RESPONSES, transport=transport)


def test_the_events_that_ralph_shows_are_those_of_the_messages_api() -> None:
    rig = _rig([stream(events_of(WHOLE))])
    rig.send()
    rig.close()
    shown = [one.event["type"] for one in rig.events.of(StreamReceived)]
    assert shown[0] == "message_start"
    assert shown[-2:] == ["message_delta", "message_stop"]
    assert set(shown[1:-2]) == {"content_block_start", "content_block_delta", "content_block_stop"}


# --- What other servers send


def created(**more: Any) -> Event:
    return {"type": "response.created", "response": response(status="in_progress", **more)}


def completed(*output: Event, **more: Any) -> Event:
    whole = response(*output, **more)
    return {"type": f"response.{whole['status']}", "response": whole}


def added(place: int, item: Event) -> Event:
    return {"type": "response.output_item.added", "output_index": place, "item": item}


def done(place: int, item: Event) -> Event:
    return {"type": "response.output_item.done", "output_index": place, "item": item}


def delta(base: str, text: Any, place: int = 0, **more: Any) -> Event:
    return {"type": f"response.{base}.delta", "output_index": place, "delta": text, **more}


HELLO = message(text_part("Hello."))
LS_CALL = ("call_1", {"command": "ls"})
PWD_CALL = ("call_2", {"command": "pwd"})
ANSWERS: dict[str, tuple[list[Event], list[Any], str]] = {
    "items that come whole at their end": (
        [created(), done(0, reasoning("Hm.")), done(1, HELLO), done(2, call(LS)), completed()],
        [["Hm."], "Hello.", LS_CALL],
        "tool_use",
    ),
    "items that come only at the end of the stream": (
        [created(), completed(reasoning("Hm."), HELLO, reasoning("So.", item_id="rs_2"), call(LS))],
        [["Hm."], "Hello.", ["So."], LS_CALL],
        "tool_use",
    ),
    "nothing but the end": ([completed(HELLO)], ["Hello."], "end_turn"),
    "text in pieces, a call only at the end": (
        [created(), delta("output_text", "Hel"), delta("output_text", "lo."), completed(HELLO, call(LS))],
        ["Hello.", LS_CALL],
        "tool_use",
    ),
    "text whose end is missing among the pieces": (
        [created(), delta("output_text", "Hel"), completed(HELLO)],
        ["Hello."],
        "end_turn",
    ),
    "a whole response without items, after items": (
        [created(), *item_events(0, HELLO), *item_events(1, call(LS)), completed()],
        ["Hello.", LS_CALL],
        "tool_use",
    ),
    "a whole response whose items have other places and ids": (
        [
            created(),
            *item_events(0, reasoning("Hm.")),
            *item_events(1, HELLO),
            *item_events(2, call(LS)),
            completed({**HELLO, "id": "msg_other"}, call(LS, id="fc_other")),
        ],
        [["Hm."], "Hello.", LS_CALL],
        "tool_use",
    ),
    "ids that change with each event": (
        [
            created(),
            added(0, {**call(""), "id": "a"}),
            delta("function_call_arguments", LS, item_id="b"),
            done(0, {**call(LS), "id": "c"}),
            completed({**call(LS), "id": "d"}),
        ],
        [LS_CALL],
        "tool_use",
    ),
    "an item that ends twice": (
        [created(), *item_events(0, call(LS)), done(0, call(LS)), completed(call(LS))],
        [LS_CALL],
        "tool_use",
    ),
    "calls at the same time": (
        [
            created(),
            added(0, call("")),
            added(1, call("", call_id="call_2")),
            delta("function_call_arguments", PWD[:5], 1),
            delta("function_call_arguments", LS[:7], 0),
            delta("function_call_arguments", PWD[5:], 1),
            delta("function_call_arguments", LS[7:], 0),
            done(1, call(PWD, call_id="call_2")),
            done(0, call(LS)),
            completed(call(LS), call(PWD, call_id="call_2")),
        ],
        [LS_CALL, PWD_CALL],
        "tool_use",
    ),
    "calls that all have the place 0": (
        [
            created(),
            *item_events(0, call(LS)),
            *item_events(0, call(PWD, call_id="call_2")),
            completed(call(LS), call(PWD, call_id="call_2")),
        ],
        [LS_CALL, PWD_CALL],
        "tool_use",
    ),
    "arguments before the name": (
        [created(), delta("function_call_arguments", LS[:9]), done(0, call(LS)), completed()],
        [LS_CALL],
        "tool_use",
    ),
    "arguments as an object": (
        [created(), done(0, {**call(LS), "arguments": {"command": "ls"}}), completed()],
        [LS_CALL],
        "tool_use",
    ),
    "arguments that are written in another way at the end": (
        [
            created(),
            added(0, call("")),
            delta("function_call_arguments", LS),
            done(0, call('{ "command": "ls" }')),
            completed(),
        ],
        [LS_CALL],
        "tool_use",
    ),
    "no arguments": ([created(), done(0, call("")), completed()], [("call_1", {})], "tool_use"),
    "a call whose end is missing": (
        [created(), added(0, call("")), delta("function_call_arguments", LS), completed()],
        [LS_CALL],
        "tool_use",
    ),
    "a call without an id of its own": (
        [created(), done(0, {**call(LS), "call_id": None, "id": "fc_7"}), completed()],
        [("fc_7", {"command": "ls"})],
        "tool_use",
    ),
    "reasoning as text": (
        [
            created(),
            delta("reasoning_text", "Hm"),
            delta("reasoning_text", "."),
            done(0, reasoning(secret=None, content=["Hm."])),
            done(1, HELLO),
            completed(),
        ],
        [["Hm."], "Hello."],
        "end_turn",
    ),
    "parts of reasoning": (
        [
            created(),
            delta("reasoning_summary_text", "One.", summary_index=0),
            delta("reasoning_summary_text", "Two.", summary_index=1),
            done(0, reasoning("One.", "Two.")),
            completed(),
        ],
        [["One.\n\nTwo."]],
        "end_turn",
    ),
    "no events before the text": ([delta("output_text", "Hello."), completed(HELLO)], ["Hello."], "end_turn"),
    "unknown events, items and fields": (
        [
            created(new=1),
            {"type": "response.new_thing.delta", "delta": "x"},
            {"type": "new"},
            added(0, {"type": "web_search_call", "id": "ws"}),
            done(0, {"type": "web_search_call", "id": "ws"}),
            delta("output_text", None, 1),
            delta("output_text", "Hello.", 1, obfuscation="xyz"),
            done(1, {**HELLO, "new": 1}),
            completed({"type": "web_search_call", "id": "ws"}, HELLO),
        ],
        ["Hello."],
        "end_turn",
    ),
    "a refusal": (
        [created(), delta("refusal", "No."), completed(message(refusal_part("No.")))],
        ["No."],
        "refusal",
    ),
    "a refusal that comes whole": (
        [created(), done(0, message(refusal_part("No."))), completed()],
        ["No."],
        "refusal",
    ),
    "a cut at the limit": (
        [
            created(),
            *item_events(0, HELLO),
            completed(HELLO, status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
        ],
        ["Hello."],
        "max_tokens",
    ),
    "an unknown reason for a cut": (
        [
            created(),
            *item_events(0, HELLO),
            completed(status="incomplete", incomplete_details={"reason": "new"}),
        ],
        ["Hello."],
        "max_tokens",
    ),
    "a filtered answer": (
        [
            created(),
            *item_events(0, HELLO),
            completed(status="incomplete", incomplete_details={"reason": "content_filter"}),
        ],
        ["Hello."],
        "refusal",
    ),
    "an incomplete response that is called completed": (
        [
            created(),
            {
                "type": "response.completed",
                "response": response(
                    HELLO, status="incomplete", incomplete_details={"reason": "max_output_tokens"}
                ),
            },
        ],
        ["Hello."],
        "max_tokens",
    ),
    "a message without a word": ([created(), done(0, message()), completed(message())], [], "end_turn"),
}


@every_row(("events", "content", "stop"), ANSWERS.values())
def test_an_answer_is_read_whichever_server_sent_it(events: Any, content: Any, stop: Any) -> None:
    answer = answer_of(events)
    assert (short(answer), answer.stop_reason) == (content, stop)


def test_reasoning_that_cannot_go_back_has_no_signature() -> None:
    events = [created(), done(0, reasoning("Hm.", secret=None)), done(1, HELLO), completed()]
    assert answer_of(events).content[0] == {"type": "thinking", "thinking": "Hm.", "signature": ""}
    cut = [created(), done(0, {**reasoning("Hm."), "status": "incomplete"}), completed()]
    assert answer_of(cut).content[0] == {"type": "thinking", "thinking": "Hm.", "signature": ""}


def test_reasoning_as_text_goes_back_as_text() -> None:
    block = answer_of([created(), done(0, reasoning(secret=None, content=["Hm."])), completed()]).content[0]
    assert json.loads(block["signature"])["content"] == [{"type": "reasoning_text", "text": "Hm."}]


def test_a_call_that_the_limit_has_cut_does_not_run_even_if_it_is_valid() -> None:
    cut = {**call(LS), "status": "incomplete"}
    ends = completed(cut, status="incomplete", incomplete_details={"reason": "max_output_tokens"})
    for events in (
        [created(), added(0, call("")), delta("function_call_arguments", LS), ends],
        [created(), done(0, cut), ends],
        [created(), done(0, {**cut, "arguments": LS[:6]}), ends],
        [ends],
    ):
        assert [type(one) for one in answer_of(events).calls] == [MalformedCall]


def test_a_call_that_was_not_ended_and_may_be_cut_is_refused() -> None:
    for pieces in ([LS[:6]], []):
        events = [delta("function_call_arguments", piece) for piece in pieces]
        with pytest.raises(StreamParse):
            answer_of([created(), added(0, call("")), *events, completed()])


def test_arguments_in_two_versions_are_asked_for_again() -> None:
    events = [
        created(),
        added(0, call("")),
        delta("function_call_arguments", LS),
        done(0, call(PWD)),
        completed(),
    ]
    with pytest.raises(StreamTransient, match="two versions"):
        answer_of(events)


def test_a_call_without_a_name_is_asked_for_again() -> None:
    nameless = {**call(LS), "name": ""}
    for events in (
        [delta("function_call_arguments", LS)],
        [done(0, nameless)],
        [added(0, nameless), delta("function_call_arguments", LS)],
    ):
        with pytest.raises(StreamTransient, match="without a name"):
            answer_of([created(), *events, completed()])


def test_a_keepalive_is_no_progress() -> None:
    assert [*translated([{"type": "keepalive", "sequence_number": 3}])] == [{"type": "ping"}]


@given(st.data())
def test_no_order_of_events_makes_another_call_or_raises_anything_but_the_errors_of_an_answer(
    data: st.DataObject,
) -> None:
    *some, end = events_of(WHOLE)
    left = data.draw(st.lists(st.sampled_from(some), max_size=len(some)) | st.permutations(some))
    with contextlib.suppress(StreamTransient, StreamParse):
        calls = answer_of([*left, end]).calls
        assert {(one.id, one.arguments["command"]) for one in calls if isinstance(one, ToolCall)} <= {
            ("call_1", "ls"),
            ("call_2", "pwd"),
        }
