"""Answers whose headers say something else than their bodies are. tests/api/test_hostile_bodies.py has each label."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from ralph.mock_api import as_message, encode_events
from tests.api.foreign.wire import CLOSING, DONE, Row, events_of, note, play
from tests.api.harness import http_answer

NOTE = encode_events(events_of(note()))
SSE = "text/event-stream"


def coded(coding: str, body: bytes) -> bytes:
    return http_answer(body, headers=f"content-encoding: {coding}\r\n")


def as_json(value: Any, content_type: str = SSE) -> bytes:
    return http_answer(json.dumps(value).encode(), content_type)


def error(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}


def taken(name: str, source: str, answer: bytes, *notices: str) -> Row:
    return Row(name, source, (answer, DONE), notices=notices, notes="1\n")


def refused(name: str, source: str, answer: bytes, why: str) -> Row:
    return Row(name, source, (answer,), code=77, errors=(why,), error=why)


MESSAGE = as_message(note())
PACKED = gzip.compress(json.dumps(MESSAGE).encode()) + b"\0\0more"
AS_JSON = "sent the whole message as JSON"
OTHER_FORM = {"code": 401, "msg": "no key", "success": False}
BARE = {**MESSAGE, "content": CLOSING, "stop_reason": "end_turn"}
ROWS = [
    taken(
        "a stream as text, with a comment and a byte order mark first",
        "sibling: proxies that keep a connection alive",
        http_answer(b"\xef\xbb\xbf\n: ping\n\n" + NOTE, "text/plain"),
        "labelled its stream as text/plain",
    ),
    taken(
        "a whole message in gzip, and padding",
        "sibling: what `gzip` ignores with a warning",
        http_answer(PACKED, "application/json", headers="content-encoding: gzip\r\n"),
        AS_JSON,
    ),
    Row(
        "a message whose content is a text",
        "sibling: the form of requests",
        (as_json(BARE, "application/json"),),
        notices=(AS_JSON,),
    ),
    Row(
        "an overload as an event stream",
        "issue text",
        (as_json(error("overloaded_error", "Overloaded")), DONE),
        errors=("overloaded_error: Overloaded",),
    ),
    refused(
        "a 401 of another form", "z.ai, with status 200", as_json(OTHER_FORM, "application/json"), "no key"
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_body_counts_and_not_its_label(row, tmp_path) -> None:
    play(row, tmp_path)
