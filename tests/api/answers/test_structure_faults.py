"""Whatever happens to the order of a stream's events, an accepted message must be the one that was sent (A21). What leaves
its calls in doubt is refused.
"""

from __future__ import annotations

import contextlib
import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ralph.mock_api import Text, Thinking, ToolUse, Turn, as_events, as_message
from ralph.values.errors import AgentError, StreamParse, StreamTransient
from tests.api.harness import WHOLE_TURN, sse
from tests.rows import every_row

if TYPE_CHECKING:
    from ralph.values.answer import Answer
    from tests.api.answers.pieces import PieceClient

EVENTS = as_events(WHOLE_TURN)
WHOLE = as_message(WHOLE_TURN)
LAST = len(EVENTS) - 1
STRUCTURE = [number for number, event in enumerate(EVENTS) if event["type"] != "content_block_delta"]
NAMES = [f"{number}-{event['type']}-{event.get('index', '')}" for number, event in enumerate(EVENTS)]


def kind(number: int) -> str:
    return str(EVENTS[number]["type"])


def named(numbers: list[int]) -> pytest.MarkDecorator:
    """One test for each of these events, with the name of the event."""
    return pytest.mark.parametrize("number", [pytest.param(n, id=NAMES[n]) for n in numbers])


def outcome(client: PieceClient, events: list[dict[str, Any]]) -> Answer | AgentError:
    try:
        return client.receive([sse(*events)])
    except AgentError as error:
        return error


def assert_is_the_original(answer: Answer) -> None:
    assert (answer.content, answer.stop_reason) == (WHOLE["content"], WHOLE["stop_reason"])
    assert [call.id for call in answer.calls] == ["t1", "t2"]


def is_of_call(number: int) -> bool:
    return int(EVENTS[number].get("index", 0)) >= 2


@named([n for n in STRUCTURE if kind(n) != "message_delta"])
def test_a21_without_one_structural_event_a_stream_is_the_original_if_its_calls_are_clear(
    answering, number
) -> None:
    client = answering(sse(*EVENTS[:number], *EVENTS[number + 1 :]))
    if kind(number) == "message_stop":
        with pytest.raises(StreamTransient):
            client.send()
    elif kind(number) == "content_block_start" and is_of_call(number):
        with pytest.raises(StreamParse):
            client.send()
    else:
        answer = client.send()
        assert_is_the_original(answer)
        assert answer.warnings


@named([n for n in STRUCTURE if kind(n) not in {"message_delta", "message_stop"}])
def test_a21_a_structural_event_that_comes_again_anywhere_later_makes_no_other_call(client, number) -> None:
    for place in range(number + 1, LAST + 1):
        result = outcome(client, [*EVENTS[:place], EVENTS[number], *EVENTS[place:]])
        if kind(number) == "content_block_start" and is_of_call(number) and place > number + 1:
            assert isinstance(result, StreamParse), f"again before {NAMES[place]}"
        else:
            assert not isinstance(result, AgentError), f"again before {NAMES[place]}: {result}"
            assert_is_the_original(result)


@named([n for n in STRUCTURE if n > 0])
def test_a21_only_a_block_may_begin_before_message_start(answering, number) -> None:
    rest = [event for place, event in enumerate(EVENTS) if place != number]
    client = answering(sse(EVENTS[number], *rest))
    if kind(number) == "content_block_start":
        assert_is_the_original(client.send())
    else:
        with pytest.raises(StreamTransient):
            client.send()


@every_row("number", range(LAST))
def test_a21_two_neighbours_that_change_places_are_an_error_or_change_nothing(answering, number) -> None:
    swapped = [*EVENTS[:number], EVENTS[number + 1], EVENTS[number], *EVENTS[number + 2 :]]
    client = answering(sse(*swapped))
    if is_harmless(number):
        assert_is_the_original(client.send())
    else:
        with pytest.raises(StreamParse):
            client.send()


def is_harmless(number: int) -> bool:
    """Whether the event and the next one may be exchanged. A block's first delta must not come before its beginning, and
    the input of a call not after its end. Without `message_delta`, a block must not be open at the end.
    """
    one, two = EVENTS[number], EVENTS[number + 1]
    if one.get("index") is None or one.get("index") != two.get("index") or one["type"] == two["type"]:
        return True
    if two.get("delta", {}).get("partial_json") == "":
        return True
    return one["type"] == "content_block_delta" and not is_of_call(number)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(1, LAST - 1), st.integers(1, LAST - 1)), min_size=1, max_size=4))
def test_a21_a_few_moved_events_are_an_error_or_the_original(client, moves) -> None:
    events = list(EVENTS)
    for source, target in moves:
        events.insert(target, events.pop(source))
    result = outcome(client, events)
    if isinstance(result, AgentError):
        assert isinstance(result, StreamParse)
    else:
        assert_is_the_original(result)


@every_row("place", range(1, LAST))
def test_a21_an_end_that_comes_too_early_is_an_error_or_whole_blocks_of_the_original(client, place) -> None:
    """A message that ends too early cannot be told from a short one, but no block may be incomplete."""
    result = outcome(client, [*EVENTS[:place], EVENTS[LAST], *EVENTS[place:LAST]])
    if isinstance(result, AgentError):
        assert isinstance(result, StreamParse)
    else:
        assert result.content == WHOLE["content"][: len(result.content)]
        assert result.warnings, "what was not said has been inferred"


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
