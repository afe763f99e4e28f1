"""From every valid and complete stream, ralph must make the same message as the official SDK."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ralph.mock_api import Turn, as_events, encode_events, example_names, load_example
from ralph.mock_api.scenario import as_step
from ralph.values.answer import MalformedCall
from tests.api.answers.pieces import split
from tests.api.answers.streams import streams
from tests.api.harness import WHOLE_TURN, end, sse, tool_block
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ralph.values.answer import Answer
    from tests.api.answers.streams import Event

# The SDK gives its accumulators no other events. It handles pings elsewhere, and would misread unknown events.
ACCUMULATED = {"message_start", "message_delta"} | {
    f"content_block_{part}" for part in ("start", "delta", "stop")
}


@pytest.fixture(scope="module", autouse=True)
def official() -> None:
    """Imports the SDK before the tests, because that takes a second."""
    import anthropic.lib.streaming._beta_messages
    import anthropic.lib.streaming._messages  # noqa: F401


def accumulated(events: Iterable[Event], *, with_betas: bool = False) -> dict[str, Any]:
    """The message that the official SDK makes of these events."""
    from anthropic.lib.streaming import _beta_messages, _messages

    accumulate: Any = _beta_messages.accumulate_event if with_betas else _messages.accumulate_event
    more = {"request_headers": None} if with_betas else {}
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for event in events:
        if event["type"] in ACCUMULATED:
            snapshot = accumulate(event=event, current_snapshot=snapshot, json_bufs=buffers, **more)
    message: dict[str, Any] = snapshot.to_dict(mode="json", warnings=False)
    return message


def without_nulls(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that are not null. The SDK writes null for fields that the server did not send."""
    return {name: value for name, value in fields.items() if value is not None}


def assert_agreement(ours: Answer, theirs: dict[str, Any]) -> None:
    """Compares two messages field by field. Neither may have a field that the other lacks."""
    assert len(ours.content) == len(theirs["content"])
    for own, official in zip(ours.content, theirs["content"], strict=True):
        assert without_nulls(own) == without_nulls(official)
    assert without_nulls(ours.message["usage"]) == without_nulls(theirs["usage"])
    rest = ours.message.keys() - {"content", "usage"}
    assert without_nulls({name: ours.message[name] for name in rest}) == without_nulls(
        {name: value for name, value in theirs.items() if name not in {"content", "usage"}}
    )
    assert ours.warnings == ()


packets = st.lists(st.integers(0, 1 << 20), max_size=30)
line_ends = st.sampled_from(["\n", "\r\n", "\r"])


@given(streams(), line_ends, st.sampled_from([b"", b"\xef\xbb\xbf"]), packets)
def test_the_answer_agrees_with_the_official_accumulator(client, events, line_end, mark, cuts) -> None:
    data = mark + encode_events(events, line_end)
    assert_agreement(client.receive(split(data, cuts)), accumulated(events))


@settings(max_examples=10)
@given(streams(with_betas=True), packets)
def test_the_answer_agrees_with_the_official_accumulator_of_betas(client, events, cuts) -> None:
    data = encode_events(events)
    assert_agreement(client.receive(split(data, cuts)), accumulated(events, with_betas=True))


def played_turns() -> list[Turn]:
    """The turns of the scenarios that come with the scripted server."""
    steps = [as_step(step) for name in example_names() for step in load_example(name).steps]
    return [WHOLE_TURN, *(step.turn for step in steps if step.turn is not None)]


@every_row("turn", played_turns())
def test_the_scripted_servers_own_streams_agree_too(client, turn) -> None:
    events = as_events(turn)
    assert_agreement(client.receive([encode_events(events)]), accumulated(events))


def begun(index: int, **block: Any) -> Event:
    return {"type": "content_block_start", "index": index, "content_block": block}


def more(index: int, kind: str, **delta: Any) -> Event:
    return {"type": "content_block_delta", "index": index, "delta": {"type": f"{kind}_delta", **delta}}


def ended(index: int) -> Event:
    return {"type": "content_block_stop", "index": index}


# The official accumulator needs what the API always sends.
BEGIN: Event = {
    "type": "message_start",
    "message": {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 3, "output_tokens": 1},
    },
}
INTERLEAVED: list[Event] = [
    BEGIN,
    begun(0, type="thinking", thinking="", signature=""),
    begun(1, type="redacted_thinking", data="b3BhcXVl"),
    more(0, "thinking", thinking="a"),
    begun(2, type="text", text="", citations=None),
    more(2, "text", text="x"),
    more(0, "thinking", thinking="b"),
    more(2, "citations", citation={"type": "page_location", "cited_text": "c", "document_index": 0}),
    ended(1),
    begun(3, type="tool_use", id="t1", name="Read", input={}),
    more(3, "input_json", partial_json='{"file_path": "'),
    more(0, "signature", signature="c2ln"),
    begun(4, type="tool_use", id="t2", name="Read", input={}),
    more(4, "input_json", partial_json='{"file_path": "b"}'),
    ended(0),
    more(3, "input_json", partial_json='a"}'),
    more(2, "text", text="y"),
    begun(5, type="tool_use", id="t3", name="Now", input={}),
    *(ended(index) for index in (5, 2, 4, 3)),
    *end("tool_use"),
]


def test_interleaved_blocks_of_every_kind_agree(client) -> None:
    ours = client.receive([sse(*INTERLEAVED)])
    assert_agreement(ours, accumulated(INTERLEAVED))
    assert ours.text == "xy"
    assert [call.arguments for call in ours.calls] == [{"file_path": "a"}, {"file_path": "b"}, {}]


WRITTEN = '{"command": "rm -r build/tmp", "timeout": 5}'


@every_row("length", range(1, len(WRITTEN)))
def test_a_cut_call_is_malformed_here_and_looks_whole_in_the_official_accumulator(client, length) -> None:
    """The only known difference: the SDK makes a complete call of a part of the input, and ralph must not run such
    a call.
    """
    events = [BEGIN, *tool_block(0, WRITTEN[:length]), *end("max_tokens")]
    ours = client.receive([sse(*events)])
    (call,) = ours.calls
    assert isinstance(call, MalformedCall)
    assert ours.content[0]["input"] == {"INVALID_JSON": WRITTEN[:length]}
    theirs = accumulated(events)["content"][0]["input"]
    assert theirs in ({}, {"command": "rm -r build/tmp"}, json.loads(WRITTEN))
