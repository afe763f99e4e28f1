"""The short way for a piece that only brings more of an open block. It is for most pieces, and means what the long way does."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import product
from typing import TYPE_CHECKING, Any

from ralph.api.chat import ChatTranslator
from ralph.api.responses import ResponseStream
from ralph.values.errors import AgentError
from tests.api.chat.chunks import call, chunk
from tests.rows import every_row

if TYPE_CHECKING:
    from ralph.api.client import Translator

Event = dict[str, Any]
TEXTS = ("content", "reasoning", "reasoning_content", "refusal")


def meant(translator: Translator, events: list[Event], *, is_short: bool) -> list[Any]:
    """The events that a stream means. `is_short` is True if the short way is tried first."""
    told: list[Any] = []
    try:
        for event in events:
            data = json.dumps(event)
            more = translator.more(data) if is_short else None
            told += translator.events("message", json.loads(data)) if more is None else [more]
            told += translator.end()
    except AgentError as error:
        told.append(repr(error))
    return told


CALL, OTHER = call("{", call_id="c1", name="X"), call("{", index=1, call_id="c2", name="Y")
NAMELESS = [{"content": "Hi"}, call("{", call_id="c1")]
FIRST = ([{"content": "Hi"}], [{"reasoning": "Hm."}], [CALL], [CALL, OTHER], NAMELESS)
"""The deltas that open blocks."""
NEXT = ({"content": "x"}, {"reasoning": "x"}, {"reasoning_content": "x"}, call("}"))
"""The deltas that bring more of a block."""
MORE = {"function": {"arguments": "y"}}
CHANGES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys((f"choices.0.delta.{field}" for field in TEXTS), (None, "", "y", 1, ["y"])),
    "choices.0.delta.tool_calls": (None, [], [{}], ["y"], 1, [MORE, MORE], [{"id": "c1", **MORE}]),
    "choices.0.delta.tool_calls.0.index": (None, 1, 2, 0.0, False),
    "choices.0.delta.tool_calls.0.id": (None, "", "c1", "c2", 1),
    "choices.0.delta.tool_calls.0.extra_content": ({"a": 1},),
    "choices.0.delta.tool_calls.0.function": (None, {}, 1),
    "choices.0.delta.tool_calls.0.function.name": (None, "", "X", 1),
    "choices.0.delta.tool_calls.0.function.arguments": ("", None, {}),
    "choices.0.delta.reasoning_details": ([], [{"type": "reasoning.text", "text": "y"}]),
    "choices.0.delta.function_call": (None, {"name": "X", "arguments": "y"}),
    "choices.0.delta": (None, {}, 1),
    "choices.0.finish_reason": ("", "stop", "error"),
    "choices.0.index": (None, 1, "0"),
    "choices.0.usage": (None, {"prompt_tokens": 3}),
    "choices": (None, [], [{"index": 1, "delta": {"content": "y"}}] * 2),
    "usage": (None, {}, {"prompt_tokens": 3}),
    "error": (None, {"message": "m"}),
    "x_groq": ({"usage": {"prompt_tokens": 3}},),
}
"""Values for the fields of a chunk, by their places."""


def changed(event: Event, place: str, value: Any) -> Event:
    """A copy of `event` with this value at that place, or without a change if it has no such place."""
    copy: Event = json.loads(json.dumps(event))
    holder: Any = copy
    *above, last = (int(key) if key.isdecimal() else key for key in place.split("."))
    with suppress(LookupError, TypeError):
        for key in above:
            holder = holder[key]
        if isinstance(holder, dict):
            holder[last] = value
    return copy


def test_a_chunk_means_the_same_on_both_ways() -> None:
    """Every change of every chunk, alone and together with other text in the chunk."""
    changes = [(place, value) for place, values in CHANGES.items() for value in values]
    others = [change for change in changes if change[1] == "y"]
    for first, more, one, other in product(FIRST, NEXT, changes, (changes[0], *others)):
        ends = chunk(call("{}", call_id="c1", name="X")), chunk({}, "stop")
        events = [*map(chunk, first), changed(changed(chunk(more), *one), *other), *ends]
        short = meant(ChatTranslator(), events, is_short=True)
        assert short == meant(ChatTranslator(), events, is_short=False), events


PARTS = ("output_text", "refusal", "reasoning_summary_text", "reasoning_text", "function_call_arguments")
AT = {"output_index": 0, "content_index": 0, "summary_index": 0}
CALL_ITEM = {"type": "function_call", "id": "f", "call_id": "c", "name": "X", "arguments": "xx"}
BEGIN: Event = {"type": "response.output_item.added", **AT, "item": CALL_ITEM}
EVENTS: tuple[Event, ...] = (
    *(
        {"type": f"response.{part}.delta", **AT, "delta": delta, **other}
        for part in PARTS
        for delta in ("x", "")
        for other in ({}, {"content_index": 1, "summary_index": 1})
    ),
    {"type": "response.output_text.delta", **AT, "delta": 1},
    {"type": "response.output_text.done", **AT, "text": "xx"},
    {**BEGIN, "type": "response.output_item.done"},
    {"type": "response.output_item.done", **AT, "item": {"type": "reasoning", "id": "r", "content": []}},
)


def test_an_event_of_a_response_means_the_same_on_both_ways() -> None:
    for events in product(EVENTS, repeat=3):
        told = [BEGIN, *events]
        short = meant(ResponseStream(), told, is_short=True)
        assert short == meant(ResponseStream(), told, is_short=False), told


@every_row(
    "first, more",
    [
        ({"content": "Hi"}, chunk({"content": "x"}, logprobs=None, obfuscation="aX3", usage=None)),
        ({"content": "Hi"}, chunk({"role": "assistant", "content": "x", "tool_calls": []}, service_tier="x")),
        ({"content": "Hi"}, chunk({"content": "x", "reasoning_content": None})),
        ({"reasoning_content": "Hm."}, chunk({"content": None, "reasoning_content": "x"})),
        ({"reasoning": "Hm."}, chunk({"content": "", "reasoning": "x", "reasoning_details": []})),
        (call("", call_id="c1", name="X"), chunk(call("{"))),
        (call("", call_id="c1", name="X"), chunk(call("{", index=None, call_id="", name=""))),
    ],
)
def test_the_pieces_of_each_vendor_take_the_short_way(first: Event, more: Event) -> None:
    translator = ChatTranslator()
    list(translator.events("", chunk(first)))
    assert translator.more(json.dumps(more)) is not None


def test_the_pieces_of_a_response_take_the_short_way() -> None:
    translator = ResponseStream()
    place = {"item_id": "m", "output_index": 0, "content_index": 0, "logprobs": []}
    event = {"type": "response.output_text.delta", **place, "delta": "x"}
    list(translator.events("message", event))
    assert translator.more(json.dumps({**event, "sequence_number": 7, "obfuscation": "aX3"})) is not None
