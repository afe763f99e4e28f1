"""Streams of other servers that break a rule of the protocol. If their calls are clear, they are accepted with a warning;
otherwise they are asked for again.
"""

from __future__ import annotations

from typing import Any

import pytest

from ralph.mock_api import Text, Thinking, ToolUse, Turn
from tests.api.foreign.wire import CLOSING, DONE, Row, events_of, note, play, sse, stream

Event = dict[str, Any]
ADDS_1, ADDS_2 = ({"command": f"echo {number} >> notes.txt"} for number in (1, 2))
NOTE = events_of(note())
"""A text and a call in blocks 0 and 1."""
SAID = events_of(Turn(CLOSING, id="m-last", chunk_chars=4))
TWO = Turn([ToolUse("Bash", ADDS_1, id="t1"), ToolUse("Bash", ADDS_2, id="t1")], id="m1")


def delta(index: int | None, kind: str, **fields: Any) -> Event:
    event = {"type": "content_block_delta", "delta": {"type": kind, **fields}}
    return event if index is None else {**event, "index": index}


def inserted(events: list[Event], place: int, *more: Event | bytes) -> bytes:
    """The stream with more events at this place."""
    return sse(*events[:place], *more, *events[place:])


def without(events: list[Event], kind: str, index: int | None = None) -> bytes:
    return sse(*(one for one in events if one["type"] != kind or one.get("index") != index))


def unnamed(events: list[Event]) -> bytes:
    """The stream in which only the `event:` lines tell the types."""
    return (
        sse(*events)
        .replace(b'{"type":"message', b'{"t":"message')
        .replace(b'{"type":"content_block_', b'{"t":"content_block_')
    )


AGAIN, FORM = "message_start more than once", "in another form than the API"
ODD, ONE_ID = "where they do not belong", "one id, or none"
BEGUN = [NOTE.index(one) for one in NOTE if one["type"] == "content_block_start"]

CLEAR = [
    Row(
        "message_start repeated with the same id",
        "bifrost#4556, litellm#32479, Kimi-K2.5#33",
        (inserted(NOTE, 2, *[NOTE[0]] * 28), inserted(SAID, 3, SAID[0])),
        notices=(AGAIN, AGAIN),
        notes="1\n",
    ),
    Row(
        "types in the event lines only",
        "sibling of pi#1983, which sends no event lines",
        (unnamed(NOTE), unnamed(SAID)),
        notes="1\n",
    ),
    Row(
        "all stops at the end, thinking without a signature",
        "llama.cpp's server-task.cpp; Ollama's documentation",
        (
            sse(
                *(
                    one
                    for one in events_of(Turn([Thinking("Hm."), Text("I run it."), *note().content[1:]]))
                    if one.get("delta", {}).get("type") != "signature_delta"
                )
            ),
            DONE,
        ),
        notes="1\n",
    ),
]


@pytest.mark.parametrize("row", CLEAR, ids=lambda row: row.name)
def test_a_clear_stream_is_accepted_with_a_warning(row, tmp_path) -> None:
    play(row, tmp_path)


def failing(data: bytes) -> bytes:
    """A stream with an event of the name `error` after the beginning of its text."""
    return sse(*NOTE[:3], b"event: error\ndata: " + data + b"\n\n")


IN_DOUBT = {
    "another message began inside the answer": (
        "sibling of bifrost#4556: two answers mixed",
        inserted(NOTE, 4, {**NOTE[0], "message": {"id": "other"}}),
    ),
    "began twice": ("sibling of Kimi's shared ids", inserted(NOTE, len(NOTE) - 2, *NOTE[BEGUN[1] : -2])),
    "upstream connect error or disconnect": (
        "cursor-sdk2api#25 (kind)",
        failing(b"upstream connect error or disconnect"),
    ),
    "upstream is gone": ("cursor-sdk2api#25 (kind)", failing(b'"upstream is gone"')),
    "the server reported an error without a message": ("sibling of cursor-sdk2api#25", failing(b"")),
}
"""The source and the stream, by a part of the error."""


def test_a_stream_in_doubt_is_asked_for_again_and_an_error_is_one_in_any_form(tmp_path) -> None:
    answers = [
        answer
        for number, (_, broken) in enumerate(IN_DOUBT.values(), 1)
        for answer in (broken, stream(note(number)))
    ]
    play(Row("", "", (*answers, DONE), errors=tuple(IN_DOUBT), notes="1\n2\n3\n4\n5\n"), tmp_path)


def test_an_error_with_a_status_that_no_repetition_helps_ends_the_run(tmp_path) -> None:
    broken = failing(b'{"code": 401, "message": "no key"}')
    source = "sibling of codex2api#673"
    play(Row("", source, (broken,), code=77, error="no key", errors=("no key",)), tmp_path)
