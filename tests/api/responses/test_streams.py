"""Streams of the Responses API. The official client is the oracle for whole ones."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.api.responses import ResponseStream
from ralph.api.stream import StreamAssembler
from ralph.values.answer import MalformedCall, ToolCall
from ralph.values.errors import StreamParse, StreamTransient
from ralph.values.events import StreamReceived
from ralph.values.servers import OPENAI_RESPONSES
from ralph.values.usage import TokenUsage, tokens_of
from tests.api.answers.pieces import PieceClient, split
from tests.api.answers.streams import objects, texts
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

SPEAKS = OPENAI_RESPONSES
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
    client: PieceClient, whole: Event, data: st.DataObject
) -> None:
    events = events_of(whole)
    check_events(events)
    body = stream(events)
    read = read_by_the_official_client(body)
    pieces = split(body, data.draw(st.lists(st.integers(0, len(body)), max_size=20)))
    answer = client.receive(pieces)
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
def test_a_whole_response_is_the_same_message_as_its_stream(client: PieceClient, whole: Event) -> None:
    from_whole = client.receive([json.dumps(whole).encode()], "application/json")
    from_stream = answer_of(events_of(whole))
    assert [one for one in from_whole.content if one.get("thinking") != ""] == [
        one for one in from_stream.content if one.get("thinking") != ""
    ]
    assert (from_whole.calls, from_whole.stop_reason) == (from_stream.calls, from_stream.stop_reason)
    assert from_whole.message["usage"] == from_stream.message["usage"]


def test_the_events_that_ralph_shows_are_those_of_the_messages_api(client: PieceClient) -> None:
    before = len(client.rig.events.of(StreamReceived))
    client.receive([stream(events_of(WHOLE))])
    shown = [one.event["type"] for one in client.rig.events.of(StreamReceived)[before:]]
    assert (shown[0], shown[-2:]) == ("message_start", ["message_delta", "message_stop"])
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
PWD_ITEM = call(PWD, call_id="call_2")
AT_LIMIT: dict[str, Any] = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
TEXT, ARGUMENTS = "output_text", "function_call_arguments"
ITEM = {"type": "web_search_call", "id": "ws"}
"""An item of another kind."""


def sent(*events: Event, end: Event | None = None) -> list[Event]:
    """A stream with these events between its beginning and its end, which has no items unless it is given."""
    return [created(), *events, end or completed()]


def cut(reason: str) -> Event:
    return completed(status="incomplete", incomplete_details={"reason": reason})


# name: events, blocks of the answer, stop reason
ANSWERS: dict[str, tuple[list[Event], list[Any], str]] = {
    "items that come whole at their end": (
        sent(done(0, reasoning("Hm.")), done(1, HELLO), done(2, call(LS))),
        [["Hm."], "Hello.", LS_CALL],
        "tool_use",
    ),
    "nothing but the end": ([completed(HELLO)], ["Hello."], "end_turn"),
    "text in pieces, a call only at the end": (
        sent(delta(TEXT, "Hel"), delta(TEXT, "lo."), end=completed(HELLO, call(LS))),
        ["Hello.", LS_CALL],
        "tool_use",
    ),
    "text whose end is missing among the pieces": (
        sent(delta(TEXT, "Hel"), end=completed(HELLO)),
        ["Hello."],
        "end_turn",
    ),
    "a whole response without items, after items": (
        sent(*item_events(0, HELLO), *item_events(1, call(LS))),
        ["Hello.", LS_CALL],
        "tool_use",
    ),
    "a whole response whose items have other places and ids": (
        sent(
            *(*item_events(0, reasoning("Hm.")), *item_events(1, HELLO), *item_events(2, call(LS))),
            end=completed({**HELLO, "id": "msg_other"}, call(LS, id="fc_other")),
        ),
        [["Hm."], "Hello.", LS_CALL],
        "tool_use",
    ),
    "ids that change with each event": (
        sent(
            added(0, {**call(""), "id": "a"}),
            delta(ARGUMENTS, LS, item_id="b"),
            done(0, {**call(LS), "id": "c"}),
            end=completed({**call(LS), "id": "d"}),
        ),
        [LS_CALL],
        "tool_use",
    ),
    "calls at the same time": (
        sent(
            *(added(0, call("")), added(1, call("", call_id="call_2"))),
            *(delta(ARGUMENTS, PWD[:5], 1), delta(ARGUMENTS, LS[:7], 0)),
            *(delta(ARGUMENTS, PWD[5:], 1), delta(ARGUMENTS, LS[7:], 0)),
            *(done(1, PWD_ITEM), done(0, call(LS))),
            end=completed(call(LS), PWD_ITEM),
        ),
        [LS_CALL, PWD_CALL],
        "tool_use",
    ),
    "calls that all have the place 0": (
        sent(*item_events(0, call(LS)), *item_events(0, PWD_ITEM), end=completed(call(LS), PWD_ITEM)),
        [LS_CALL, PWD_CALL],
        "tool_use",
    ),
    "arguments before the name": (sent(delta(ARGUMENTS, LS[:9]), done(0, call(LS))), [LS_CALL], "tool_use"),
    "arguments as an object": (
        sent(done(0, {**call(LS), "arguments": {"command": "ls"}})),
        [LS_CALL],
        "tool_use",
    ),
    "arguments that are written in another way at the end": (
        sent(added(0, call("")), delta(ARGUMENTS, LS), done(0, call('{ "command": "ls" }'))),
        [LS_CALL],
        "tool_use",
    ),
    "no arguments": (sent(done(0, call(""))), [("call_1", {})], "tool_use"),
    "a call whose end is missing": (sent(added(0, call("")), delta(ARGUMENTS, LS)), [LS_CALL], "tool_use"),
    "a call without an id of its own": (
        sent(done(0, {**call(LS), "call_id": None, "id": "fc_7"})),
        [("fc_7", {"command": "ls"})],
        "tool_use",
    ),
    "reasoning as text": (
        sent(
            *(delta("reasoning_text", "Hm"), delta("reasoning_text", ".")),
            *(done(0, reasoning(secret=None, content=["Hm."])), done(1, HELLO)),
        ),
        [["Hm."], "Hello."],
        "end_turn",
    ),
    "parts of reasoning": (
        sent(
            delta("reasoning_summary_text", "One.", summary_index=0),
            delta("reasoning_summary_text", "Two.", summary_index=1),
            done(0, reasoning("One.", "Two.")),
        ),
        [["One.\n\nTwo."]],
        "end_turn",
    ),
    "no events before the text": ([delta(TEXT, "Hello."), completed(HELLO)], ["Hello."], "end_turn"),
    "unknown events, items and fields": (
        [
            *(created(new=1), {"type": "response.new_thing.delta", "delta": "x"}, {"type": "new"}),
            *(added(0, ITEM), done(0, ITEM)),
            *(delta(TEXT, None, 1), delta(TEXT, "Hello.", 1, obfuscation="xyz")),
            *(done(1, {**HELLO, "new": 1}), completed(ITEM, HELLO)),
        ],
        ["Hello."],
        "end_turn",
    ),
    "a refusal": (
        sent(delta("refusal", "No."), end=completed(message(refusal_part("No.")))),
        ["No."],
        "refusal",
    ),
    "a cut at the limit": (
        sent(*item_events(0, HELLO), end=completed(HELLO, **AT_LIMIT)),
        ["Hello."],
        "max_tokens",
    ),
    "an unknown reason for a cut": (sent(*item_events(0, HELLO), end=cut("new")), ["Hello."], "max_tokens"),
    "a filtered answer": (sent(*item_events(0, HELLO), end=cut("content_filter")), ["Hello."], "refusal"),
    "an incomplete response that is called completed": (
        sent(end={"type": "response.completed", "response": response(HELLO, **AT_LIMIT)}),
        ["Hello."],
        "max_tokens",
    ),
    "a message without a word": (sent(done(0, message()), end=completed(message())), [], "end_turn"),
}


@every_row(("events", "content", "stop"), ANSWERS.values())
def test_an_answer_is_read_whichever_server_sent_it(events: Any, content: Any, stop: Any) -> None:
    answer = answer_of(events)
    assert (short(answer), answer.stop_reason) == (content, stop)


def test_reasoning_that_cannot_go_back_has_no_signature() -> None:
    for item in (reasoning("Hm.", secret=None), {**reasoning("Hm."), "status": "incomplete"}):
        block = answer_of(sent(done(0, item))).content[0]
        assert block == {"type": "thinking", "thinking": "Hm.", "signature": ""}


def test_reasoning_as_text_goes_back_as_text() -> None:
    block = answer_of(sent(done(0, reasoning(secret=None, content=["Hm."])))).content[0]
    assert json.loads(block["signature"])["content"] == [{"type": "reasoning_text", "text": "Hm."}]


def test_a_call_that_the_limit_has_cut_does_not_run_even_if_it_is_valid() -> None:
    incomplete = {**call(LS), "status": "incomplete"}
    end = completed(incomplete, **AT_LIMIT)
    for events in (
        sent(added(0, call("")), delta(ARGUMENTS, LS), end=end),
        sent(done(0, incomplete), end=end),
        sent(done(0, {**incomplete, "arguments": LS[:6]}), end=end),
        [end],
    ):
        assert [type(one) for one in answer_of(events).calls] == [MalformedCall]


def test_a_call_that_was_not_ended_and_may_be_cut_is_refused() -> None:
    for events in ([delta(ARGUMENTS, LS[:6])], []):
        with pytest.raises(StreamParse):
            answer_of(sent(added(0, call("")), *events))


def test_arguments_in_two_versions_are_asked_for_again() -> None:
    with pytest.raises(StreamTransient, match="two versions"):
        answer_of(sent(added(0, call("")), delta(ARGUMENTS, LS), done(0, call(PWD))))


def test_a_call_without_a_name_is_asked_for_again() -> None:
    nameless = {**call(LS), "name": ""}
    for events in ([delta(ARGUMENTS, LS)], [done(0, nameless)], [added(0, nameless), delta(ARGUMENTS, LS)]):
        with pytest.raises(StreamTransient, match="without a name"):
            answer_of(sent(*events))


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
