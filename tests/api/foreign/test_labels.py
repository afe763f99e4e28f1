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


ROWS = [
    Row(
        "a stream as text, with a comment and a byte order mark first",
        "sibling: proxies that keep a connection alive",
        (http_answer(b"\xef\xbb\xbf\n: ping\n\n" + NOTE, "text/plain"), DONE),
        notices=("labelled its stream as text/plain",),
        notes="1\n",
    ),
    Row(
        "content-encoding UTF-8",
        "donsetch#290",
        (coded("UTF-8", NOTE), DONE),
        notices=("a content-encoding 'UTF-8' that there is not",),
        notes="1\n",
    ),
    Row(
        "a whole message in gzip, and padding",
        "sibling: what `gzip` ignores with a warning",
        (
            http_answer(
                gzip.compress(json.dumps(as_message(note())).encode()) + b"\0\0more",
                "application/json",
                headers="content-encoding: gzip\r\n",
            ),
            DONE,
        ),
        notices=("sent the whole message as JSON",),
        notes="1\n",
    ),
    Row(
        "a message on several lines that is labelled gzip",
        "OmniRoute#2291, agentgateway#3040",
        (coded("gzip", json.dumps(as_message(note()), indent=1).encode()), DONE),
        notes="1\n",
    ),
    Row(
        "a whole message as an event stream",
        "issue text",
        (as_json(as_message(note())), DONE),
        notices=("sent the whole message as JSON",),
        notes="1\n",
    ),
    Row(
        "a message whose content is a text",
        "sibling: the form of requests",
        (as_json({**as_message(note()), "content": CLOSING, "stop_reason": "end_turn"}, "application/json"),),
        notices=("sent the whole message as JSON",),
    ),
    Row(
        "an overload as an event stream",
        "issue text",
        (as_json(error("overloaded_error", "Overloaded")), DONE),
        errors=("overloaded_error: Overloaded",),
    ),
    Row(
        "a 401 as an event stream",
        "issue text",
        (as_json(error("authentication_error", "invalid x-api-key")),),
        code=77,
        errors=("invalid x-api-key",),
        error="invalid x-api-key",
    ),
    Row(
        "a 401 of another form",
        "z.ai, with status 200",
        (as_json({"code": 401, "msg": "no key", "success": False}, "application/json"),),
        code=77,
        errors=("no key",),
        error="no key",
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_body_counts_and_not_its_label(row, tmp_path) -> None:
    play(row, tmp_path)
