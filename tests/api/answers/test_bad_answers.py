"""A 2xx answer that is not an event stream, or whose stream breaks the rules (A12, A13, A15)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ralph.values.errors import (
    PERMANENT_KINDS,
    STATUS_OF_TYPE,
    ErrorClass,
    FailureKind,
    Json,
    StreamParse,
    StreamTransient,
    classify_error,
    failure_kind,
)
from tests.api.harness import KEY, failure
from tests.rows import every_row

PORTAL = """<!DOCTYPE html><html><head>
<title>
  Hotel Wi-Fi &mdash; Log in
</title></head><body>Please accept the terms.</body></html>"""

API_ERRORS = """
invalid_request_error authentication_error billing_error permission_error not_found_error request_too_large
rate_limit_error timeout_error api_error overloaded_error brand_new_error
""".split()


@every_row("data", [b"[1]", b"3", b'"text"', b"null", b'{"type": 3}', b'{"type": ["ping"]}'])
def test_a12_an_event_that_is_no_object_with_a_type_is_permanent(answering, data) -> None:
    error = failure(answering(b"data: " + data + b"\n\n"))
    assert isinstance(error, StreamParse)
    assert data.decode() in error.message


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"n": ' + b"9" * 5000 + b"}"])
def test_a12_json_that_the_parser_gives_up_on_is_no_crash(answering, data) -> None:
    assert isinstance(failure(answering(b"data: " + data + b"\n\n")), Json)


def test_a12_the_raw_bytes_of_the_error_are_redacted(answering) -> None:
    error = failure(answering(f'data: {{"echo": "{KEY[1]}\n\n'.encode()))
    assert KEY[1] not in str(error)
    assert "[redacted]" in str(error)


@every_row("before", [182, 190, 199])
@every_row("content_type", ["text/event-stream", "text/html"])
def test_a_key_across_the_end_of_what_is_shown_leaves_no_half(answering, before, content_type) -> None:
    line = "data: " if content_type == "text/event-stream" else "<title>" + KEY[1] + "</title>"
    error = failure(answering(f"{line}{'x' * before}{KEY[1]}\n\n".encode(), content_type))
    assert "sk-" not in str(error)


def test_a13_a_captive_portal_is_shown_by_type_title_and_text(answering) -> None:
    error = failure(answering((PORTAL + "x" * 100_000).encode(), "text/html; charset=utf-8"))
    assert isinstance(error, StreamParse)
    assert "text/html" in error.message
    assert '"Hotel Wi-Fi &mdash; Log in"' in error.message
    assert "<!DOCTYPE html>" in error.message
    assert len(error.message) < 500
    assert classify_error(error) is ErrorClass.PERMANENT


@every_row("content_type", ["text/plain", "application/octet-stream", "application/json"])
def test_a13_something_else_is_named_by_its_content_type(answering, content_type) -> None:
    error = failure(answering(b"hello \xff", content_type))
    assert isinstance(error, StreamParse)
    assert content_type in error.message
    assert "hello \ufffd" in error.message


@every_row("error_type", API_ERRORS)
@every_row("content_type", ["application/json", "text/plain"])
def test_a15_an_error_object_with_200_goes_by_its_type(answering, error_type, content_type) -> None:
    body = {"type": "error", "error": {"type": error_type, "message": "no"}, "request_id": "req_9"}
    error = failure(answering(json.dumps(body).encode(), content_type))
    assert isinstance(error, StreamParse | StreamTransient)
    assert (error.error_type, error.message, error.request_id) == (error_type, "no", "req_9")
    assert isinstance(error, StreamParse) == (failure_kind(error) in PERMANENT_KINDS)
    assert isinstance(error, StreamParse) == (
        STATUS_OF_TYPE.get(error_type, 500) in {400, 401, 402, 403, 404, 413}
    )


def test_a15_an_overflow_with_200_is_seen_as_one(answering) -> None:
    body = {"error": {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8"}}
    assert failure_kind(failure(answering(json.dumps(body).encode(), "application/json"))) is (
        FailureKind.CONTEXT_OVERFLOW
    )


@every_row(
    "body",
    [
        {"hello": 1},
        [],
        {"type": "message", "content": 5},
        {"type": "message", "content": [KEY[1]]},
        {"type": "message", "content": [{"type": "tool_use", "key": KEY[1]}]},
    ],
)
def test_a15_other_json_is_permanent_and_redacted(answering, body: Any) -> None:
    error = failure(answering(json.dumps(body).encode(), "application/json"))
    assert isinstance(error, StreamParse)
    assert KEY[1] not in str(error)
