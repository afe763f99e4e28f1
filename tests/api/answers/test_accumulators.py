"""From every valid and complete stream, ralph must make the same message as the official SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ralph.mock_api import Turn, as_events, encode_events, example_names, load_example
from ralph.mock_api.scenario import as_step
from tests.api.answers.pieces import split
from tests.api.answers.streams import streams
from tests.api.harness import WHOLE_TURN
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
