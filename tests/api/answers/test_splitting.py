"""The answer must not depend on how a stream is split into packets."""

from __future__ import annotations

import contextlib
import copy
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ralph.api.reception import StreamText
from ralph.mock_api import Text, Thinking, ToolUse, Turn, as_events, encode_events
from ralph.values.errors import AgentError
from tests.api.answers.pieces import split
from tests.api.answers.streams import objects, texts
from tests.api.harness import sse
from tests.rows import every_row

blocks = st.one_of(
    st.builds(Text, texts), st.builds(Thinking, texts), st.builds(ToolUse, st.just("Read"), objects)
)
turns = st.builds(
    Turn,
    st.lists(blocks, max_size=4),
    chunk_chars=st.integers(0, 5),
    pings_before_start=st.integers(0, 1),
    ping_every=st.integers(0, 2),
)


@given(
    turns,
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.booleans(),
    st.lists(st.integers(0, 1 << 20), max_size=30),
)
def test_a_stream_split_anywhere_gives_the_same_answer(client, turn, line_end, has_mark, cuts) -> None:
    data = encode_events(as_events(turn), line_end)
    if has_mark:  # a byte order mark must not lose the first event, whose first line is its data
        data = b"\xef\xbb\xbf" + sse(*as_events(turn), line_end=line_end)
    answer = client.receive([data])
    assert client.receive(split(data, cuts)) == client.receive(split(data, [*cuts, 1, 2])) == answer


STRANGE = [None, True, 0, 1, -1, 1.5, "", "text", "tool_use", [], [1], {}, {"type": "text"}]


@settings(max_examples=20)
@given(st.data())
def test_a21_no_damage_to_an_event_raises_anything_but_an_agent_error(client, data) -> None:
    turn = Turn([Thinking("hm"), Text("ab"), ToolUse("Read", {"a": 1}, id="t1")], chunk_chars=0)
    events = json.loads(json.dumps(as_events(turn)))
    for _ in range(data.draw(st.integers(1, 3))):
        place: Any = data.draw(st.sampled_from(events))
        while data.draw(st.booleans()):
            inner = [value for value in place.values() if isinstance(value, dict) and value]
            if not inner:
                break
            place = data.draw(st.sampled_from(inner))
        if place:
            name = data.draw(st.sampled_from(sorted(place)))
            place[name] = copy.deepcopy(data.draw(st.sampled_from(STRANGE)))
    with contextlib.suppress(AgentError):
        client.receive([sse(*events)])
    events[0]["message"] = {"type": "message", "content": [event.get("content_block") for event in events]}
    with contextlib.suppress(AgentError):
        client.receive([json.dumps(events[0]["message"]).encode()], "application/json")


# --- The text of the bytes


MARK = b"\xef\xbb\xbf"


def decoded(*chunks: bytes) -> list[str]:
    stream = StreamText()
    return [stream.decoded(chunk) for chunk in chunks]


@every_row(
    ("chunks", "texts"),
    [
        ([b"a\nb"], ["a\nb"]),
        ([b"a\r\nb\rc\r"], ["a\nb\nc\n"]),
        ([b"a\r", b"\nb"], ["a\n", "b"]),
        ([b"a\r", b"\n", b"\nb"], ["a\n", "", "\nb"]),
        ([b"a\r", b"\r", b"b"], ["a\n", "\n", "b"]),
        ([MARK + b"a"], ["a"]),
        ([MARK[:1], MARK[1:2], MARK[2:] + b"a"], ["", "", "a"]),
        ([MARK[:2], b"a"], ["", "\ufffda"]),
        ([b"a", MARK], ["a", "\ufeff"]),
        ([MARK, MARK], ["", "\ufeff"]),
        ([b"", b"a"], ["", "a"]),
        ([b"\xc3", b"\xa9\xc3", b"x", b"\xff"], ["", "\u00e9", "\ufffdx", "\ufffd"]),
    ],
)
def test_line_ends_become_lf_at_once_and_the_mark_goes(chunks, texts) -> None:
    assert decoded(*chunks) == texts


@given(st.lists(st.sampled_from([b"\r", b"\n", b"a", MARK, MARK[:1], "ä".encode()]), max_size=12), st.data())
def test_cuts_change_nothing(parts, data) -> None:
    whole = b"".join(parts)
    at = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    chunks = [whole[start:end] for start, end in zip([0, *at], [*at, len(whole)], strict=True)]
    one, many = StreamText(), StreamText()
    assert one.decoded(whole) == "".join(map(many.decoded, chunks))
    assert one.has_invalid_utf8 == many.has_invalid_utf8


@every_row(
    ("chunks", "is_invalid"),
    [([b"caf\xe9 x"], True), ([b"\xc3", b"\xa9"], False), ([b"\xc3", b"x", b"ok"], True), ([b"\xff"], True)],
)
def test_bytes_that_are_no_utf8_are_noticed(chunks, is_invalid) -> None:
    stream = StreamText()
    for chunk in chunks:
        stream.decoded(chunk)
    assert stream.has_invalid_utf8 is is_invalid
