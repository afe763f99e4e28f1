"""However a stream is cut into packets, the answer is the same, and the one the official accumulator builds."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ralph.core.errors import AgentError
from ralph.mock_api import Text, Thinking, ToolUse, Turn, as_events, encode_events
from tests.effects.messages_api.harness import Rig, sse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ralph.core.answer import Answer

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e9, 1e9) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
blocks = st.one_of(
    st.builds(Text, texts),
    st.builds(Thinking, texts),
    st.builds(ToolUse, st.just("Read"), st.dictionaries(texts, json_values, max_size=3)),
)
turns = st.builds(
    Turn,
    st.lists(blocks, max_size=4),
    chunk_chars=st.integers(0, 5),
    pings_before_start=st.integers(0, 1),
    ping_every=st.integers(0, 2),
)


class Pieces(httpx.SyncByteStream):
    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces


class PieceClient:
    """A client whose transport answers in exactly these pieces, through the same thread and parser as ever."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._content_type = ""
        http = httpx.Client(transport=httpx.MockTransport(self._respond))
        self.rig = Rig("http://api.test", http=http)

    def receive(self, pieces: list[bytes], content_type: str = "text/event-stream") -> Answer:
        self._pieces, self._content_type = pieces, content_type
        return self.rig.send()

    def _respond(self, _request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": self._content_type}, stream=Pieces(self._pieces))


@pytest.fixture(scope="module")
def client() -> Iterator[PieceClient]:
    made = PieceClient()
    yield made
    made.rig.close()


@pytest.fixture(scope="session")
def accumulate() -> Any:
    """The official SDK's accumulator; its import takes seconds."""
    from anthropic.lib.streaming._messages import accumulate_event

    return accumulate_event


def split(data: bytes, at: list[int]) -> list[bytes]:
    bounds = [0, *sorted(position % (len(data) + 1) for position in at), len(data)]
    pieces = [data[start:end] for start, end in itertools.pairwise(bounds)]
    return [piece for piece in pieces if piece]


@settings(max_examples=150, deadline=None)
@given(
    turns,
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.booleans(),
    st.lists(st.integers(0, 1 << 20), max_size=30),
)
def test_a_stream_split_anywhere_gives_the_same_answer(client, turn, line_end, has_mark, cuts) -> None:
    data = encode_events(as_events(turn), line_end)
    if has_mark:  # it must not cost the first event, which begins with its data here
        data = b"\xef\xbb\xbf" + sse(*as_events(turn), line_end=line_end)
    answer = client.receive([data])
    assert client.receive(split(data, cuts)) == client.receive(split(data, [*cuts, 1, 2])) == answer


@settings(max_examples=10, deadline=None)
@given(turns, st.sampled_from(["\n", "\r\n", "\r"]))
def test_a_stream_in_single_bytes_gives_the_same_answer(client, turn, line_end) -> None:
    data = encode_events(as_events(turn), line_end)
    assert client.receive([bytes([byte]) for byte in data]) == client.receive([data])


@settings(max_examples=150, deadline=None)
@given(turns)
def test_the_answer_agrees_with_the_official_accumulator(client, accumulate, turn) -> None:
    events = as_events(turn)
    ours = client.receive([encode_events(events)])
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for event in events:
        if event["type"] not in {"ping", "message_stop"}:
            snapshot = accumulate(event=event, current_snapshot=snapshot, json_bufs=buffers)
    theirs = snapshot.to_dict()
    assert len(ours.content) == len(theirs["content"])
    for own, official in zip(ours.content, theirs["content"], strict=True):
        assert own == {name: official[name] for name in own}
    assert ours.stop_reason == theirs["stop_reason"]
    assert ours.message["usage"]["output_tokens"] == theirs["usage"]["output_tokens"]


STRANGE = [None, True, 0, 1, -1, 1.5, "", "text", "tool_use", [], [1], {}, {"type": "text"}]


@settings(max_examples=300, deadline=None)
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
