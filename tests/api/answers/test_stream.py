"""Tests what makes a message complete, and what must never be taken for a complete message."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.api.stream import StreamAssembler, answer_from_message
from ralph.values.answer import Answer, MalformedCall, ToolCall, with_sendable_calls
from ralph.values.errors import AgentError, StreamParse, StreamTransient
from tests.rows import every_row

Event = dict[str, Any]


def start(**message: Any) -> Event:
    usage = {"input_tokens": 10, "output_tokens": 1, "cache_read_input_tokens": 5}
    return {
        "type": "message_start",
        "message": {"id": "msg_1", "model": "m", "content": [], "usage": usage, **message},
    }


def block(index: Any, **fields: Any) -> Event:
    return {"type": "content_block_start", "index": index, "content_block": fields}


def delta(index: int, kind: str, **fields: Any) -> Event:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def stop(index: int) -> Event:
    return {"type": "content_block_stop", "index": index}


def end(reason: str | None = "end_turn", **usage: Any) -> list[Event]:
    return [
        {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage},
        {"type": "message_stop"},
    ]


def text_block(index: int, *parts: str) -> list[Event]:
    return [
        block(index, type="text", text=""),
        *(delta(index, "text_delta", text=p) for p in parts),
        stop(index),
    ]


def tool_block(index: int, *parts: str, call_id: str = "tu_1", name: str = "Read") -> list[Event]:
    return [
        block(index, type="tool_use", id=call_id, name=name, input={}),
        *(delta(index, "input_json_delta", partial_json=part) for part in parts),
        stop(index),
    ]


def assemble(*events: Event) -> Answer:
    assembler = StreamAssembler()
    for event in events:
        assembler.feed(event)
    return assembler.answer()


def answered(*events: Event, reason: str | None = "end_turn") -> Answer:
    """The answer of a stream with these events between its beginning and its end."""
    return assemble(start(), *events, *end(reason))


def test_fragments_join_and_counts_are_overwritten_not_added() -> None:
    answer = assemble(start(), *text_block(0, "Hel", "lo"), *end(output_tokens=7))
    assert answer.text == "Hello"
    assert answer.message["usage"] == {"input_tokens": 10, "output_tokens": 7, "cache_read_input_tokens": 5}


@every_row("later", [{}, {"input_tokens": None}, {"input_tokens": 0}, {"cache_read_input_tokens": 0.0}])
def test_a_count_that_is_absent_null_or_0_keeps_what_message_start_said(later: dict[str, Any]) -> None:
    usage = assemble(start(), *text_block(0, "x"), *end(**later, output_tokens=3)).message["usage"]
    assert usage == {"input_tokens": 10, "output_tokens": 3, "cache_read_input_tokens": 5}


def test_thinking_is_joined_and_its_signature_assigned() -> None:
    answer = answered(
        block(0, type="thinking", thinking="", signature=""),
        delta(0, "thinking_delta", thinking="a"),
        delta(0, "thinking_delta", thinking="b"),
        delta(0, "signature_delta", signature="first"),
        delta(0, "signature_delta", signature="second"),
        stop(0),
    )
    assert answer.content == [{"type": "thinking", "thinking": "ab", "signature": "second"}]


def test_an_empty_argument_buffer_is_an_empty_object_also_without_a_placeholder() -> None:
    assert answered(*tool_block(0), reason="tool_use").calls == (ToolCall("tu_1", "Read", {}),)
    bare = [block(0, type="tool_use", id="tu_1", name="Read"), stop(0)]
    assert answered(*bare, reason="tool_use").calls == (ToolCall("tu_1", "Read", {}),)


ARGUMENTS = '{"file_path": "/a/ü.txt", "limit": 3}'


@every_row("cut", range(1, len(ARGUMENTS)))
def test_cut_arguments_never_look_like_a_valid_call(cut: int) -> None:
    answer = answered(*tool_block(0, ARGUMENTS[:cut]), reason="max_tokens")
    (call,) = answer.calls
    assert isinstance(call, MalformedCall)
    assert answer.content[0]["input"] == {"INVALID_JSON": ARGUMENTS[:cut]}


def test_a_call_that_max_tokens_ended_is_not_trusted_even_when_it_parses() -> None:
    (call,) = answered(*tool_block(0, '{"file_path": "/etc"}'), reason="max_tokens").calls
    assert isinstance(call, MalformedCall)


@every_row(
    "raw", ["[]", '"text"', "null", "NaN", '{"a": Infinity}', '{"a": 1e999}', '{"a": "\\ud83d"}', "{" * 5000]
)
def test_arguments_that_are_no_proper_object_are_malformed(raw: str) -> None:
    (call,) = answered(*tool_block(0, raw), reason="tool_use").calls
    assert isinstance(call, MalformedCall)


@every_row(
    "raw",
    [
        '{"cmd": "git commit -m "fix" && git push", "timeout": 5}',
        '{"a": 1}{"b": 2}',
        '{"a": 1,}',
        '{"a": 1 "b": 2}',
        "{'a': 1}",
        '{"a": "x\x1by"}',
        '{"a": "x\ny"',
        '{"a": "x\ny", "a": "z"}',
        '{"a": "x\ny", "b": 1e999}',
        '{"a": "\\x41"}',
        '"{\\"a\\": 1"',
        '"[1]"',
        json.dumps(json.dumps(json.dumps({"a": 1}))),
        '{"a": 1} // done',
        '```json\n{"a": 1}\n```',
    ],
)
@every_row("reason", ["tool_use", "end_turn"])
def test_finished_arguments_that_are_no_json_are_an_error_and_never_guessed(raw: str, reason: str) -> None:
    """Nothing was cut off. A tolerant parser would make another, often shorter, call of them."""
    answer = answered(*tool_block(0, raw), reason=reason)
    (call,) = answer.calls
    assert isinstance(call, MalformedCall)
    assert call.raw == raw
    assert "JSON" in call.reason
    assert answer.content[0]["input"] == {"INVALID_JSON": raw}


CLEAR_INPUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "line breaks and tabs": ('{"a": "x\ny\r\n\tz"}', {"a": "x\ny\r\n\tz"}),
    "one string": (json.dumps('{"a": {"b": [1]}}'), {"a": {"b": [1]}}),
    "one string with line breaks": ('"{\\"a\\": \\"x\ny\\"}"', {"a": "x\ny"}),
}


@every_row("name", CLEAR_INPUTS)
def test_an_input_whose_meaning_is_clear_runs_for_ralphs_own_tools_with_a_warning(name: str) -> None:
    raw, meant = CLEAR_INPUTS[name]
    answer = answered(*tool_block(0, raw), reason="tool_use")
    assert answer.calls == (ToolCall("tu_1", "Read", meant),)
    assert answer.content[0]["input"] == meant, "what goes back to the server is an object"
    [warning] = answer.warnings
    assert warning.startswith("a call of Read was taken for what it means: its input")
    [other] = answered(*tool_block(0, raw, name="mcp__a__b"), reason="tool_use").calls
    assert isinstance(other, MalformedCall)
    assert other.raw == raw
    [cut] = answered(*tool_block(0, raw), reason="max_tokens").calls
    assert isinstance(cut, MalformedCall)


def test_an_input_that_came_with_the_start_of_its_block_may_be_a_string_too() -> None:
    begin = block(0, type="tool_use", id="tu_1", name="Read", input='{"a": 1}')
    assert answered(begin, stop(0), reason="tool_use").calls == (ToolCall("tu_1", "Read", {"a": 1}),)


def test_nothing_of_a_refusal_may_run() -> None:
    assert answered(*tool_block(0, "{}"), reason="refusal").calls == ()


def test_tool_calls_count_even_when_the_server_says_end_turn() -> None:
    assert len(answered(*tool_block(0, "{}"), reason="end_turn").calls) == 1


def test_blocks_closed_late_and_interleaved_are_keyed_by_index() -> None:
    answer = answered(
        block(0, type="text", text=""),
        delta(0, "text_delta", text="a"),
        block(1, type="tool_use", id="tu_1", name="Read"),
        delta(1, "input_json_delta", partial_json="{}"),
        delta(0, "text_delta", text="b"),
        stop(0),
        stop(1),
        reason="tool_use",
    )
    assert (answer.text, answer.calls) == ("ab", (ToolCall("tu_1", "Read", {}),))


WORDS = (
    "type index message content_block delta usage text input id name content stop_reason partial_json citations"
).split()
WHOLE = [start(), *text_block(0, "hi"), *tool_block(1, '{"a"', ": 1}"), *end("tool_use", output_tokens=4)]


def call(index: int = 0, **fields: Any) -> Event:
    return block(index, **{"type": "tool_use", "id": "tu_1", "name": "Read", "input": {}, **fields})


def input_delta(index: int, text: str | None) -> Event:
    return delta(index, "input_json_delta", partial_json=text)


BROKEN = {
    "index is a boolean": [start(), block(False, type="text", text="")],
    "index is no whole number": [start(), block(0.5, type="text", text="")],
    "input without block": [start(), input_delta(0, "{}")],
    "input in a text": [start(), block(0, type="text", text=""), input_delta(0, "{")],
    "input after stop": [start(), *tool_block(0, "{}"), input_delta(0, "{}")],
    "open block and no stop reason": [start(), block(0, type="text"), {"type": "message_stop"}],
    "a call without input is not ended": [start(), call(), *end("tool_use")],
    "a call with half an input is not ended": [start(), call(), input_delta(0, '{"a'), *end("tool_use")],
    "a call that is not ended, and the next": [start(), call(), input_delta(0, '{"a'), call(id="tu_2")],
    "text in a call": [start(), call(), delta(0, "text_delta", text="x")],
    "thinking in a call": [start(), call(), delta(0, "thinking_delta", thinking="x")],
    "text after a call": [start(), *tool_block(0, "{}"), delta(0, "text_delta", text="x")],
    "text is a number": [start(), block(0, type="text", text=""), delta(0, "text_delta", text=1)],
    "call without name": [start(), call(name=None)],
    "one call twice": [start(), *tool_block(0), *tool_block(1), *end()],
    "one call twice, without id": [start(), *tool_block(0, call_id=""), *tool_block(1, call_id=""), *end()],
    "a call begins again": [start(), *tool_block(0, '{"a": 1}'), *tool_block(0), *end()],
    "a text begins after its first delta": [start(), delta(0, "text_delta", text="x"), block(0, type="text")],
    "block is not an object": [start(), {"type": "content_block_start", "index": 0, "content_block": []}],
    "message is not an object": [{"type": "message_start", "message": []}],
}


@every_row("events", BROKEN.values())
def test_a_broken_protocol_is_a_permanent_parse_error(events: list[Event]) -> None:
    with pytest.raises(StreamParse):
        assemble(*events)


PATHS = {
    r"content_block_start: .* `\$.index`": {"type": "content_block_start", "index": "x", "content_block": {}},
    r"content_block_delta: .* `\$.delta`": {"type": "content_block_delta", "index": 0, "delta": None},
    r"text_delta: .* `\$.text`": delta(0, "text_delta", text=1),
    "text_delta: .* `text`": delta(0, "text_delta"),
    r"message_delta: .* `\$.delta`": {"type": "message_delta", "delta": [], "usage": {}},
    "tool_use: .* `name`": block(1, type="tool_use", id="a"),
    r"tool_use: .* `\$.id`": block(1, type="tool_use", id=1, name="Read"),
    r"text: .* `\$.text`": block(1, type="text", text=1),
}


@every_row(("words", "event"), PATHS.items())
def test_a_field_that_is_missing_or_of_another_type_is_named(words: str, event: Event) -> None:
    with pytest.raises(StreamParse, match=words):
        assemble(start(), block(0, type="text", text=""), event)


TEXT = {"type": "text", "text": "Hello"}
BARE = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Hello"}}
CLEAR: dict[str, tuple[list[Event], list[Any]]] = {
    "message_start again": ([start(), start(), *text_block(0, "Hello"), start()], [TEXT]),
    "no message in message_start": ([{"type": "message_start"}, *text_block(0, "Hello")], [TEXT]),
    "an empty part of a call in a text": (
        [start(), block(0, type="text"), input_delta(0, ""), delta(0, "text_delta", text="Hello"), stop(0)],
        [TEXT],
    ),
    "white space in a call": ([start(), call(), delta(0, "text_delta", text=" \n"), stop(0)], [{}]),
    "white space after a call": ([start(), *tool_block(0), input_delta(0, " ")], [{}]),
    "null in a text": (
        [start(), block(0, type="text", text=None), delta(0, "text_delta", text=None), BARE, stop(0)],
        [TEXT],
    ),
    "null in a call": ([start(), call(), input_delta(0, None), input_delta(0, "{}"), stop(0)], [{}]),
    "null in a text without a block": ([start(), delta(0, "text_delta", text=None)], []),
    "thinking in a text": (
        [
            *(start(), block(0, type="text"), delta(0, "thinking_delta", thinking="Hm")),
            *(delta(0, "signature_delta", signature="s"), delta(0, "text_delta", text="Hello"), stop(0)),
        ],
        [TEXT, {"type": "thinking", "thinking": "Hm", "signature": "s"}],
    ),
    "indexes with a gap": ([start(), *text_block(0, "Hello"), *tool_block(2)], [TEXT, {}]),
    "indexes from -1": ([start(), *text_block(-1, "Hello"), *tool_block(0)], [TEXT, {}]),
    "indexes in another order": ([start(), *tool_block(1), *text_block(0, "Hello")], [TEXT, {}]),
    "one index for all": ([start(), *text_block(0, "Hello"), *tool_block(0)], [TEXT, {}]),
    "one index and no stops": (
        [start(), *text_block(0, "Hello")[:-1], *tool_block(0, "{}")[:-1], *tool_block(0, call_id="x")],
        [TEXT, {}, {}],
    ),
    "indexes as decimal fractions": (
        [start(), *({**event, "index": 0.0} for event in text_block(0, "Hello"))],
        [TEXT],
    ),
    "indexes as text": ([start(), *({**event, "index": "0"} for event in text_block(0, "Hello"))], [TEXT]),
    "index 0 left out": ([start(), block(0, type="text"), BARE], [TEXT]),
    "a text without its stop": ([start(), *text_block(0, "Hello")[:-1]], [TEXT]),
    "a whole call without its stop": ([start(), call(), input_delta(0, "{}")], [{}]),
    "a text that never began": ([start(), *text_block(0, "Hel", "lo")[1:]], [TEXT]),
    "a text that has ended": ([start(), *text_block(0, "Hel"), delta(0, "text_delta", text="lo")], [TEXT]),
    "a stop too many": ([start(), *text_block(0, "Hello"), stop(0), stop(7)], [TEXT]),
    "a delta of the future nowhere": ([start(), *text_block(0, "Hello"), delta(5, "new_delta")], [TEXT]),
}


@every_row(("events", "content"), CLEAR.values())
def test_an_unusual_stream_whose_calls_are_clear_is_accepted_with_a_warning(
    events: list[Event], content: list[Any]
) -> None:
    answer = assemble(*json.loads(json.dumps(events)), *end())
    assert [one.get("input", one) for one in answer.content] == content
    assert answer.warnings


def test_the_second_message_of_a_stream_is_an_outage() -> None:
    with pytest.raises(StreamTransient, match="another message"):
        assemble(start(), *text_block(0, "x"), start(id="msg_2"))


@every_row("ids", [("tu_1", "tu_1"), ("tu_1", None), ("", "tu_1"), (None, None)])
def test_calls_of_one_answer_have_ids_of_their_own(ids: tuple[str | None, str | None]) -> None:
    calls = [
        event
        for index, (own, text) in enumerate(zip(ids, ('{"a": 1}', '{"b": 2}'), strict=True))
        for event in (call(index, id=own), input_delta(index, text), stop(index))
    ]
    answer = answered(*calls, reason="tool_use")
    assert [one.arguments for one in answer.calls if isinstance(one, ToolCall)] == [{"a": 1}, {"b": 2}]
    assert len({one.id for one in answer.calls}) == 2
    assert [one["id"] for one in answer.content] == [one.id for one in answer.calls]
    assert any("one id" in warning for warning in answer.warnings)


@every_row("index", [0, 2])
def test_the_call_that_max_tokens_cut_began_last_wherever_it_stands(index: int) -> None:
    events = [start(), *text_block(1, "x"), *tool_block(index, "{}")]
    assert isinstance(assemble(*events, *end("max_tokens")).calls[0], MalformedCall)


def test_a_call_that_max_tokens_cut_before_its_stop_does_not_run() -> None:
    answer = answered(*text_block(0, "x"), call(1), input_delta(1, '{"a'), reason="max_tokens")
    assert isinstance(answer.calls[0], MalformedCall)


HALF = "\ud83d"


def test_an_unknown_key_with_half_a_character_changes_nothing() -> None:
    answer = assemble(
        start(),
        block(0, type="text", text="", **{HALF: 1}),
        {**delta(0, "text_delta", text="x"), HALF: 1},
        delta(0, "text_delta", text="y", **{HALF: 1}),
        stop(0),
        block(1, type="x_block", **{HALF: 1}),
        stop(1),
        *({**event, HALF: 1} for event in end()),
    )
    assert (answer.text, answer.stop_reason) == ("xy", "end_turn")


def test_a_delta_of_a_kind_with_half_a_character_is_of_an_unknown_kind() -> None:
    answer = answered(block(0, type="text"), delta(0, HALF), delta(0, "text_delta", text="a"), stop(0))
    assert answer.text == "a"


def test_a_signature_that_is_null_is_none_and_no_broken_protocol() -> None:
    answer = answered(block(0, type="thinking"), delta(0, "signature_delta", signature=None), stop(0))
    assert answer.content == [{"type": "thinking", "thinking": "", "signature": None}]


@every_row("event", [delta(0, "text_delta", text="x"), stop(0), *end()])
def test_an_answer_without_its_beginning_may_be_asked_again(event: Event) -> None:
    with pytest.raises(StreamTransient):
        assemble(event)


def test_unknown_events_blocks_deltas_and_fields_survive_or_are_ignored() -> None:
    future = {"type": "future_thing", "payload": {"deep": [1, 2]}}
    answer = assemble(
        {"type": "future_event"},
        {"type": "ping"},
        start(container={"id": "c"}),
        block(0, **future),
        delta(0, "future_delta", x=1),
        stop(0),
        block(1, type="text", text="", citations=None, extra=7),
        delta(1, "text_delta", text="x", future=True),
        stop(1),
        *end("a_new_reason"),
    )
    assert (answer.content[0], answer.content[1]["extra"]) == (future, 7)
    assert (answer.stop_reason, answer.message["container"]) == ("a_new_reason", {"id": "c"})


@every_row("reason", [None, ""])
def test_a_missing_stop_reason_is_inferred_and_said(reason: str | None) -> None:
    answer = answered(*tool_block(0, "{}"), reason=reason)
    assert answer.stop_reason == "tool_use"
    assert "no stop reason" in answer.warnings[0]


@every_row(
    ("reason", "meant"),
    [
        *((reason, "max_tokens") for reason in ("length", "MAX_TOKENS", "max_output_tokens", "model_length")),
        *((reason, "refusal") for reason in ("content_filter", "SAFETY", "sensitive")),
        ("stop", "end_turn"),
        ("tool_calls", "tool_use"),
        ("a_new_reason", "a_new_reason"),
    ],
)
def test_a_stop_reason_in_the_words_of_another_api_is_translated(reason: str, meant: str) -> None:
    answer = answered(*text_block(0, "x"), reason=reason)
    assert answer.stop_reason == meant
    assert any(f"taken as {meant}" in warning for warning in answer.warnings) == (meant != reason)


def test_no_message_delta_is_tolerated_and_said() -> None:
    answer = assemble(start(), *text_block(0, "x"), {"type": "message_stop"})
    assert answer.stop_reason == "end_turn"
    assert any("message_delta" in warning for warning in answer.warnings)


def test_invalid_utf8_in_a_tools_input_asks_again_and_in_text_is_said() -> None:
    assembler = StreamAssembler()
    for event in (start(), block(0, type="tool_use", id="a", name="Bash", input={})):
        assembler.feed(event)
    with pytest.raises(StreamTransient, match="UTF-8"):
        assembler.feed(
            delta(0, "input_json_delta", partial_json='{"command": "rm \ufffd'), has_invalid_utf8=True
        )
    lenient = StreamAssembler()
    for event in (start(), *text_block(0, "a\ufffdb"), *end()):
        lenient.feed(event, has_invalid_utf8="delta" in event)
    assert any("UTF-8" in warning for warning in lenient.answer().warnings)


def test_a_replacement_character_that_the_model_meant_is_no_damage() -> None:
    answer = answered(*tool_block(0, '{"text": "\ufffd"}'), reason="tool_use")
    assert answer.calls == (ToolCall("tu_1", "Read", {"text": "\ufffd"}),)


def test_invalid_utf8_in_an_input_that_came_whole_asks_again_too() -> None:
    assembler = StreamAssembler()
    assembler.feed(start())
    with pytest.raises(StreamTransient, match="UTF-8"):
        assembler.feed(
            block(0, type="tool_use", id="a", name="Bash", input={"command": "\ufffd"}), has_invalid_utf8=True
        )


JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-1, 3), st.text(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(WORDS), inner, max_size=4)
    ),
    max_leaves=6,
)


@given(
    st.lists(
        st.tuples(st.sampled_from(WHOLE), st.sampled_from(WORDS), st.sampled_from(WORDS), JUNK), max_size=6
    )
)
def test_whatever_a_server_puts_where_it_does_not_belong_is_one_of_our_errors(changes: list[Any]) -> None:
    """Fields of a good stream are replaced by junk, at the top level and one level below."""
    events = [json.loads(json.dumps(event)) for event in WHOLE]
    for original, outer, inner, junk in changes:
        event = events[WHOLE.index(original)]
        if isinstance(event.get(outer), dict):
            event[outer][inner] = junk
        elif outer != "type":
            event[outer] = junk
    try:
        answer = assemble(*events)
    except AgentError:
        return
    assert isinstance(answer.text + answer.stop_reason, str)


def test_surrogate_halves_of_two_deltas_join() -> None:
    assert answered(*text_block(0, "\ud83d", "\ude00!")).text == "😀!"
    assert answered(*text_block(0, "x\ud83d")).text == "x\ufffd"


def test_what_comes_after_message_stop_is_ignored() -> None:
    answer = assemble(*WHOLE, start(), {"type": "error", "error": {"type": "overloaded_error"}})
    assert len(answer.calls) == 1


def test_a_whole_json_message_is_an_answer_too() -> None:
    message = {
        "type": "message",
        "id": "msg_9",
        "model": "m",
        "content": [
            {"type": "text", "text": "hi"},
            {"type": "tool_use", "id": "a", "name": "Read", "input": {"x": 1}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 1, "output_tokens": 2},
    }
    answer = answer_from_message(message)
    assert answer.calls == (ToolCall("a", "Read", {"x": 1}),)
    assert (answer.message["usage"], answer.warnings) == ({"input_tokens": 1, "output_tokens": 2}, ())


def test_an_id_that_an_earlier_answer_used_is_replaced_in_block_and_call() -> None:
    answer = answered(*tool_block(0, call_id="call_0"), *tool_block(1, call_id="call_1"), reason="tool_use")
    renamed = with_sendable_calls(answer, {"call_0", "call_0_2"})
    assert [call.id for call in renamed.calls] == ["call_0_3", "call_1"]
    assert [block["id"] for block in renamed.content] == ["call_0_3", "call_1"]
    assert with_sendable_calls(answer, {"other"}) is answer


@every_row(
    ("ids", "taken", "sent"),
    [
        (["functions.Bash:0"], set(), ["functions_Bash_0"]),
        (["functions.Bash:0"], {"functions_Bash_0"}, ["functions_Bash_0_2"]),
        (["a.b", "a:b"], set(), ["a_b", "a_b_2"]),
        (["a.b", "a_b"], set(), ["a_b_2", "a_b"]),
        (["\u00e9", " "], set(), ["_", "__2"]),
        (["a", "a_2"], {"a"}, ["a_3", "a_2"]),
        (["call-0_A", "9"], set(), ["call-0_A", "9"]),
    ],
)
def test_an_id_that_the_api_refuses_is_replaced_by_one_that_nobody_has(ids, taken, sent) -> None:
    blocks = [event for index, name in enumerate(ids) for event in tool_block(index, call_id=name)]
    renamed = with_sendable_calls(answered(*blocks, reason="tool_use"), taken)
    assert ([call.id for call in renamed.calls], [block["id"] for block in renamed.content]) == (sent, sent)


@every_row(
    ("name", "sent"),
    [
        ("functions.Bash", "functions_Bash"),
        ("Ba sh\n", "Ba_sh_"),
        ("x" * 128, "x" * 128),
        ("x" * 129, "x" * 128),
        ("Read-it_2", "Read-it_2"),
    ],
)
def test_a_name_that_the_api_refuses_is_replaced_in_block_and_call(name: str, sent: str) -> None:
    block = {"type": "tool_use", "id": "a", "name": name, "input": {}}
    message = {"type": "message", "content": [block], "stop_reason": "tool_use", "usage": {}}
    renamed = with_sendable_calls(answer_from_message(message), set())
    assert ([call.name for call in renamed.calls], renamed.content[0]["name"]) == ([sent], sent)


def test_a_call_that_must_not_run_is_renamed_too_as_it_goes_back_all_the_same() -> None:
    block = {"type": "tool_use", "id": "a.b", "name": "Read", "input": {}}
    message = {"type": "message", "content": [block], "stop_reason": "refusal", "usage": {}}
    renamed = with_sendable_calls(answer_from_message(message), {"a_b"})
    assert (renamed.calls, renamed.content[0]["id"], renamed.call_ids) == ((), "a_b_2", ["a_b_2"])


def test_an_unknown_block_with_the_id_of_a_call_keeps_it() -> None:
    strange = [{"type": "future", "id": {"a": 1}}, {"type": "future", "id": "call_0"}]
    starts = [
        event
        for index, block in enumerate(strange, start=1)
        for event in (
            {"type": "content_block_start", "index": index, "content_block": block},
            {"type": "content_block_stop", "index": index},
        )
    ]
    answer = answered(*tool_block(0, call_id="call_0"), *starts, reason="tool_use")
    renamed = with_sendable_calls(answer, {"call_0"})
    assert [block["id"] for block in renamed.content] == ["call_0_2", {"a": 1}, "call_0"]


@every_row("error", [{"message": "boom"}, "boom", {"error": "boom"}])
def test_an_error_without_a_type_ends_the_stream_with_its_words(error: Any) -> None:
    with pytest.raises(StreamTransient, match="boom"):
        assemble(start(), *text_block(0, "half"), {"error": error})


@every_row("error", [None, {}, ""])
def test_an_empty_error_field_is_no_error(error: Any) -> None:
    assert assemble({"error": error}, *WHOLE).stop_reason == "tool_use"
