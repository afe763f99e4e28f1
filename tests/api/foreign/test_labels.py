"""Answers whose headers say something else than their bodies are."""

from __future__ import annotations

import gzip
import json
import zlib
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


HALF = len(NOTE) // 2
SAME = "Claude Code and the official SDK accept it"

ROWS = [
    *(
        Row(
            f"a stream as {content_type or 'nothing'}",
            "issue text; the official SDK never looks at the content type",
            (http_answer(NOTE, content_type), DONE),
            peers=SAME,
            notices=(f"labelled its stream as {content_type or 'no content type'}",),
            notes="1\n",
        )
        for content_type in ("text/plain", "application/json", "text/html", "application/octet-stream", "")
    ),
    Row(
        "a stream as text, with a comment and a byte order mark first",
        "sibling: proxies that keep a connection alive",
        (http_answer(b"\xef\xbb\xbf\n: ping\n\n" + NOTE, "text/plain"), DONE),
        notices=("labelled its stream as text/plain",),
        notes="1\n",
    ),
    *(
        Row(
            f"content-encoding {word}",
            source,
            (coded(word, NOTE), DONE),
            peers=SAME,
            notices=(f"a content-encoding {word!r} that there is not",),
            notes="1\n",
        )
        for word, source in (
            ("UTF-8", "donsetch#290"),
            ("none", "the usual recipe against a proxy's compression"),
            ("binary", "sibling: a word of MIME's content-transfer-encoding"),
        )
    ),
    Row(
        "gzip in several members",
        "RFC 1952, section 2.2",
        (coded("gzip", gzip.compress(NOTE[:HALF]) + gzip.compress(NOTE[HALF:])), DONE),
        peers="Claude Code accepts it",
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
        "identity, gzip",
        "found while playing other rows",
        (coded("identity, gzip", gzip.compress(NOTE)), DONE),
        peers="the official SDK accepts it",
        notes="1\n",
    ),
    Row(
        "deflate without the header of zlib",
        "RFC 9110, section 8.4.1.2",
        (coded("deflate", zlib.compress(NOTE)[2:-4]), DONE),
        peers="the official SDK accepts it",
        notes="1\n",
    ),
    *(
        Row(
            f"{what} that is labelled {word}",
            "OmniRoute#2291, agentgateway#3040",
            (coded(word, body), DONE),
            peers="Claude Code and the official SDK fail",
            notes="1\n",
        )
        for what, word, body in (
            ("a stream", "gzip", NOTE),
            ("a stream", "br", NOTE),
            ("a comment", "gzip", b": OPENROUTER PROCESSING\n\n" + NOTE),
            ("a message on several lines", "gzip", json.dumps(as_message(note()), indent=1).encode()),
        )
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
    *(
        Row(
            f"a 401 of another form as {label}: {source}",
            source,
            (as_json(body, label),),
            code=77,
            errors=("no key",),
            error="no key",
        )
        for label, source, body in (
            (SSE, "sibling: the error object of vLLM", {"object": "error", "message": "no key", "code": 401}),
            ("application/json", "z.ai, with status 200", {"code": 401, "msg": "no key", "success": False}),
        )
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_body_counts_and_not_its_label(row, tmp_path) -> None:
    play(row, tmp_path)
