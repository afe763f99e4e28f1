"""Answers of Chat Completions: those of OpenAI agree with the official client, and those of other servers mean what they say."""

from __future__ import annotations

import contextlib
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.api.chat import ChatTranslator
from ralph.api.chat_requests import given_back
from ralph.values.answer import ToolCall
from ralph.values.errors import AgentError, StreamParse, StreamTransient
from ralph.values.events import Notice
from ralph.values.servers import OPENAI_CHAT
from tests.api.answers.pieces import PieceClient, split
from tests.api.answers.streams import texts
from tests.api.chat.chunks import COUNTED, call, chunk, ended, officially_read, stream
from tests.api.harness import http_answer, limits, read_request, reset
from tests.patience import within_s
from tests.rows import every_row

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from hypothesis.strategies import DrawFn

    from ralph.values.answer import Answer
    from tests.api.chat.chunks import Chunk

SPEAKS = OPENAI_CHAT
JSON = "application/json"


def answer_to(client: PieceClient, *chunks: Chunk, is_done: bool = True) -> Answer:
    return client.receive([stream(*chunks, is_done=is_done)])


def calls_of(answer: Answer) -> list[tuple[str, dict[str, Any]]]:
    assert all(isinstance(one, ToolCall) for one in answer.calls)
    return [(one.name, one.arguments) for one in answer.calls if isinstance(one, ToolCall)]


# --- OpenAI's own streams


@st.composite
def chunks(draw: DrawFn) -> list[Chunk]:
    """An answer with text and calls whose pieces interleave. The calls begin in the order of their indexes, as the official client
    demands.
    """
    arguments = draw(st.lists(st.dictionaries(texts, texts | st.integers(), max_size=2), max_size=3))
    pieces: list[list[Chunk]] = [[{"content": text} for text in draw(st.lists(texts, max_size=3))]]
    for index, one in enumerate(arguments):
        whole = json.dumps(one, ensure_ascii=draw(st.booleans()))
        at = draw(st.integers(0, len(whole)))
        begun = call("", index=index, call_id=f"call_{index}", name=f"Tool{index}")
        pieces.append([begun, call(whole[:at], index=index), call(whole[at:], index=index)])
    made = [chunk({"role": "assistant", "content": None})]
    while any(pieces):
        begun_calls = 1 + sum(len(one) < 3 for one in pieces[1:])
        made.append(chunk(draw(st.sampled_from([one for one in pieces[: begun_calls + 1] if one])).pop(0)))
    return [*made, *ended("tool_calls" if arguments else draw(st.sampled_from(["stop", "length"])))]


@given(chunks(), st.sampled_from(["\n", "\r\n", "\r"]), st.lists(st.integers(0, 1 << 20), max_size=30))
def test_the_answer_agrees_with_the_official_client_wherever_it_is_split(
    client, made, line_end, cuts
) -> None:
    answer = client.receive(split(stream(*made, line_end=line_end), cuts))
    official = officially_read(stream(*made)).choices[0]
    said = "".join(block["text"] for block in answer.content if block["type"] == "text")
    assert said == (official.message.content or "")
    theirs = [
        (one.id, one.function.name, json.loads(one.function.arguments))
        for one in official.message.tool_calls or ()
    ]
    assert sorted((one.id, one.name, one.arguments) for one in answer.calls) == sorted(theirs)
    meant = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
    assert answer.message["stop_reason"] == meant[official.finish_reason]
    assert (answer.message["usage"], answer.warnings) == (COUNTED, ())


def test_an_answer_without_done_is_complete_after_its_finish_reason(client) -> None:
    answer = answer_to(client, chunk({"content": "Hi"}), chunk({}, "stop"), is_done=False)
    assert (answer.text, answer.message["stop_reason"]) == ("Hi", "end_turn")


@every_row("has_ended", [True, False])
@every_row("is_reset", [True, False])
def test_a_connection_that_breaks_or_stays_open_behind_a_finish_reason_loses_nothing(
    raw_server, rig, has_ended, is_reset
) -> None:
    data = stream(chunk({"content": "Hi"}), chunk({}, "stop" if has_ended else None), is_done=False)
    is_over = threading.Event()

    def serve(sock: socket.socket) -> None:
        read_request(sock)
        sock.sendall(
            http_answer(b"%x\r\n" % (len(data) + 9) + data, headers="transfer-encoding: chunked\r\n")
        )
        if is_reset:
            reset(sock)
        else:
            is_over.wait(within_s())

    client = rig(raw_server(serve), speaks=OPENAI_CHAT, limits=limits(bytes_idle_s=0.3))
    try:
        if has_ended:
            assert client.send().text == "Hi"
        else:
            with pytest.raises(StreamTransient):
                client.send()
    finally:
        is_over.set()


def test_done_before_a_finish_reason_is_no_end(client) -> None:
    with pytest.raises(StreamTransient, match="before message_stop"):
        answer_to(client, chunk({"content": "Hi"}))


# --- Calls of other servers

A, B = '{"a": 1}', '{"b": 2}'
TWO = [("X", {"a": 1}), ("Y", {"b": 2})]
SAME = [("X", {"a": 1}), ("X", {"b": 2})]


BOTH = [*call(A, call_id="c1", name="X")["tool_calls"], *call(B, name="Y")["tool_calls"]]
BEGUN = call("", call_id="c1", name="X")
OLD = [{"function_call": {"name": "X", "arguments": '{"a"'}}, {"function_call": {"arguments": ": 1}"}}]


@every_row(
    ("deltas", "calls"),
    [
        ([call(A, index=0, call_id="c1", name="X"), call(B, index=0, call_id="c2", name="Y")], TWO),
        ([call(A, index=0, call_id="c1", name="X"), call(B, index=0, call_id="c2", name="X")], SAME),
        ([call(A, index=None, call_id="c1", name="X"), call(B, index=None, call_id="c2", name="Y")], TWO),
        ([BEGUN, call(B, call_id="c2", name="X")], [("X", {}), ("X", {"b": 2})]),
        ([call(A, index=None, name="X"), call(B, index=None, name="X")], SAME),
        ([call(A, index=0, name="X"), call(B, index=0, name="X")], SAME),
        ([call(A, index=0, name="X"), call(B, index=1, name="Y")], TWO),
        # One chunk with both calls.
        ([{"tool_calls": BOTH}], TWO),
        # The pieces of a call have other ids, or repeat its id and name.
        ([BEGUN, call('{"a"', call_id="r2"), call(": 1}", call_id="r3")], TWO[:1]),
        ([BEGUN, call('{"a"', call_id="c1", name="X"), call(": 1}", name="X")], TWO[:1]),
        # Pieces of two calls without ids interleave by their indexes.
        (
            [
                *(call("", index=0, name="X"), call("", index=1, name="Y")),
                *(call(B[:3], index=1), call(A[:4], index=0), call(B[3:], index=1), call(A[4:], index=0)),
            ],
            TWO,
        ),
        # The id comes first, then the arguments, and the name at last.
        ([call(None, call_id="c1"), call('{"a"'), call(": 1}", name="X")], TWO[:1]),
        # Arguments that are an object, and a call without arguments.
        ([call({"a": 1}, call_id="c1", name="X")], TWO[:1]),
        ([call(None, call_id="c1", name="X")], [("X", {})]),
        ([call("", index=0, name="X"), call("", index=0, name="Y")], [("X", {}), ("Y", {})]),
        # The last chunk repeats the calls.
        ([call(A, call_id="c1", name="X"), call(A, call_id="c1", name="X")], TWO[:1]),
        # The older form, and fields that say nothing.
        (OLD, TWO[:1]),
        (
            [{"tool_calls": None, "content": None}, call(A, call_id="c1", name="X"), {"tool_calls": []}],
            TWO[:1],
        ),
    ],
)
@every_row("reason", ["tool_calls", "stop"])
def test_the_pieces_of_calls_are_joined_as_they_are_meant(client, deltas, calls, reason) -> None:
    answer = answer_to(client, *map(chunk, deltas), *ended(reason))
    assert (calls_of(answer), len(set(answer.call_ids))) == (calls, len(calls))
    assert answer.message["stop_reason"] == "tool_use"


@every_row(
    "deltas",
    [[call('{"a"', index=0, name="X"), call(": 1}", index=0, name="Y")], [call(A, call_id="c1")], [call(A)]],
)
def test_a_piece_whose_call_is_in_doubt_makes_no_answer(client, deltas) -> None:
    with pytest.raises(StreamParse):
        answer_to(client, *map(chunk, deltas), *ended("tool_calls"))


# --- What else servers send


@every_row(
    ("reason", "meant"),
    [
        ("stop", "end_turn"),
        ("STOP", "end_turn"),
        ("length", "max_tokens"),
        ("MAX_TOKENS", "max_tokens"),
        ("content_filter", "refusal"),
        ("sensitive", "refusal"),
        ("model_context_window_exceeded", "model_context_window_exceeded"),
    ],
)
def test_the_finish_reason_is_translated(client, reason, meant) -> None:
    assert answer_to(client, chunk({"content": "x"}), *ended(reason)).message["stop_reason"] == meant


def test_only_the_first_choice_counts_and_null_or_empty_fields_say_nothing(client) -> None:
    other = {"index": 1, "delta": {"content": "no"}, "finish_reason": "length"}
    first = {
        "index": 0,
        "delta": {"content": "yes", "tool_calls": None, "refusal": None},
        "finish_reason": None,
    }
    answer = answer_to(
        client,
        chunk(prompt_filter_results=[]),
        chunk({}) | {"choices": [other, first]},
        chunk({}) | {"choices": [{"index": 0, "delta": None, "finish_reason": None}]},
        chunk({"content": ""}, "stop"),
        chunk({"content": ""}, "stop"),
    )
    assert ((answer.text, answer.message["stop_reason"]), answer.warnings) == (("yes", "end_turn"), ())


@every_row(
    ("last", "counted"),
    [
        (chunk(usage={"prompt_tokens": 90, "completion_tokens": 30}), (90, 30, 0)),
        (chunk(usage={"prompt_tokens": 90, "completion_tokens": 10, "total_tokens": 120}), (90, 30, 0)),
        (
            chunk(usage={"prompt_tokens": 90, "completion_tokens": 30, "prompt_cache_hit_tokens": 50}),
            (40, 30, 50),
        ),
        (chunk(usage={"prompt_tokens": 90, "completion_tokens": 30, "cached_tokens": 50}), (40, 30, 50)),
        (chunk(x_groq={"usage": {"prompt_tokens": 9, "completion_tokens": 3}}), (9, 3, 0)),
        (
            chunk({}) | {"choices": [{"index": 0, "usage": {"prompt_tokens": 9, "completion_tokens": 3}}]},
            (9, 3, 0),
        ),
        (
            chunk(usage={"prompt_tokens": "9", "completion_tokens": None, "prompt_tokens_details": []}),
            (0, 0, 0),
        ),
        (chunk(usage=None), (1, 1, 0)),
    ],
)
def test_the_last_token_counts_count(client, last, counted) -> None:
    early = {"prompt_tokens": 1, "completion_tokens": 1}
    answer = answer_to(client, chunk({"content": "x"}, usage=early), chunk({}, "stop"), last)
    usage = answer.message["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["cache_read_input_tokens"]) == counted


def test_tokens_that_were_written_to_the_cache_count_once(client) -> None:
    usage = {"prompt_tokens": 90, "prompt_tokens_details": {"cached_tokens": 50, "cache_write_tokens": 30}}
    counted = answer_to(client, chunk({"content": "x"}, "stop"), chunk(usage=usage)).message["usage"]
    assert (counted["input_tokens"], counted["cache_creation_input_tokens"]) == (10, 30)


# --- Reasoning


@every_row("field", ["reasoning_content", "reasoning"])
def test_reasoning_becomes_thinking_and_goes_back_in_the_field_that_it_came_in(client, field) -> None:
    deltas = [
        {field: "Let "},
        {field: "me."},
        {"content": "Hi"},
        call(A, call_id="c1", name="X"),
        {field: "More."},
    ]
    answer = answer_to(client, *map(chunk, deltas), *ended("tool_calls"))
    assert [block["type"] for block in answer.content] == ["thinking", "text", "tool_use", "thinking"]
    assert given_back([block for block in answer.content if block["type"] == "thinking"]) == (
        {field: "Let me.More."},
        [],
    )


def test_details_of_reasoning_are_joined_and_go_back_whole(client) -> None:
    parts = [
        [
            {
                "type": "reasoning.text",
                "index": 0,
                "text": "Let ",
                "signature": None,
                "format": "anthropic-claude-v1",
            }
        ],
        [{"type": "reasoning.text", "index": 0, "text": "me.", "signature": "c2ln"}],
        [{"type": "reasoning.encrypted", "index": 1, "data": "AAA", "id": "rs_1"}],
    ]
    deltas = [{"reasoning": "Let me.", "reasoning_details": one} for one in parts]
    answer = answer_to(client, *map(chunk, deltas), *ended())
    kept, _ = given_back([block for block in answer.content if block["type"] == "thinking"])
    assert kept == {
        "reasoning_details": [{**parts[0][0], "text": "Let me.", "signature": "c2ln"}, parts[2][0]]
    }


def test_what_gemini_adds_to_a_call_is_kept_by_the_calls_place(client) -> None:
    signature = {"google": {"thought_signature": "c2ln"}}
    deltas = [
        call(A, index=None, call_id="c1", name="X"),
        call(B, index=None, call_id="c2", name="Y", extra_content=signature),
    ]
    answer = answer_to(client, *map(chunk, deltas), *ended())
    assert calls_of(answer) == TWO
    assert given_back([block for block in answer.content if block["type"] == "thinking"]) == (
        {},
        [None, signature],
    )


def test_the_parts_of_mistrals_reasoning_are_thinking_and_text(client) -> None:
    content = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
        {"type": "text", "text": "Hi"},
    ]
    answer = answer_to(client, chunk({"content": content}), *ended())
    assert [block.get("thinking") or block["text"] for block in answer.content] == ["Hm.", "Hi"]


# --- Whole answers


@every_row("arguments", [A, '{"a":\n"x\ny"}'])
def test_a_whole_answer_means_what_its_stream_would(client, arguments) -> None:
    tool_call = {"id": "c1", "type": "function", "function": {"name": "X", "arguments": arguments}}
    said = {"role": "assistant", "content": "Hi", "reasoning_content": "Hm.", "tool_calls": [tool_call]}
    whole = chunk() | {"object": "chat.completion", "usage": ended()[1]["usage"]}
    whole["choices"] = [{"index": 0, "message": said, "finish_reason": "tool_calls"}]
    answer = client.receive([json.dumps(whole).encode()], JSON)
    streamed = answer_to(
        client,
        *map(
            chunk, ({"reasoning_content": "Hm."}, {"content": "Hi"}, call(arguments, call_id="c1", name="X"))
        ),
        *ended("tool_calls"),
    )
    assert (answer.message, answer.calls) == (streamed.message, streamed.calls)
    assert any("ignored `stream`" in one.text for one in client.rig.events.of(Notice))


# --- Hostile streams

ORDINARY = [
    chunk(
        {
            "role": "assistant",
            "reasoning_content": "Hm.",
            "reasoning_details": [{"type": "reasoning.text", "text": "x"}],
        }
    ),
    chunk({"content": "Hi"}),
    chunk(call("", call_id="c1", name="X")),
    chunk(call(A)),
    *ended("tool_calls"),
]
values: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(-1e9, 1e9)
    | texts
    | st.just([])
    | st.just({})
)
anything = values | st.lists(values, max_size=2) | st.dictionaries(texts, values, max_size=2)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place inside a JSON value, as its holder and its key."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, key
        if isinstance(inner, dict | list):
            yield from places(inner)


@given(st.data(), st.sampled_from(range(len(ORDINARY))), anything)
def test_a_chunk_with_any_value_at_any_place_makes_an_answer_or_one_of_the_five_errors(
    client, data, number, value
) -> None:
    made = json.loads(json.dumps(ORDINARY))
    holder, key = data.draw(st.sampled_from(list(places(made[number]))))
    holder[key] = value
    with contextlib.suppress(AgentError):
        answer_to(client, *made)


def test_a_call_in_many_pieces_costs_what_its_length_does() -> None:
    """The pieces so far are joined only where somebody looks at all of them."""
    translator = ChatTranslator()
    list(translator.events("", chunk(call("", call_id="c1", name="X"))))
    for _ in range(1_000):
        list(translator.events("", chunk(call("x" * 10))))
    [held] = translator._calls
    assert len(held._pieces) == 1_000
