"""Attempts that fail and are repeated: every transient fault that the scripted server can play.

What each must lead to was written by hand, from docs/retry.md and not from ralph's code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ralph.mock_api import ErrorEvent, Fault, Step
from tests.soak.answers import SIGN_IN_INPUT
from tests.soak.attempt import Attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from random import Random

    from tests.soak.answers import ModelAnswer

    Maker = Callable[[Random, ModelAnswer], Attempt]

_STATUS_KINDS = {
    408: "timeout",
    409: "server",
    429: "rate_limit",
    500: "server",
    502: "server",
    503: "overloaded",
    504: "timeout",
    529: "overloaded",
}
_TYPE_KINDS = {
    "overloaded_error": "overloaded",
    "api_error": "server",
    "rate_limit_error": "rate_limit",
    "timeout_error": "timeout",
    "an_error_of_tomorrow": "stream",
}
# Headers, and the seconds they ask for.
_REQUESTED: tuple[tuple[Mapping[str, str], float], ...] = (
    ({}, 0.0),
    ({}, 0.0),
    ({"retry-after": "0"}, 0.0),
    ({"retry-after": "0.012"}, 0.012),
    ({"retry-after-ms": "11"}, 0.011),
)
_STREAM_FRAMINGS: tuple[Literal["length", "chunked", "close", "reset"], ...] = (
    "length",
    "chunked",
    "close",
    "reset",
)
_GARBAGE = (b"SSH-2.0-OpenSSH_9.9\r\n", b"\x15\x03\x03\x00\x02\x02\x28", b"HTTP\r\n\r\n", b"\xff\x00" * 40)


def _status(draw: Random, _answer: ModelAnswer) -> Attempt:
    status = draw.choice([*_STATUS_KINDS])
    headers, requested_s = draw.choice(_REQUESTED)
    is_closed = draw.random() < 0.3
    step = Fault(status=status, headers=headers, framing="close" if is_closed else None)
    kind = _STATUS_KINDS[status]
    detail = f"{status} {dict(headers)}"
    return Attempt(
        "status",
        detail,
        step,
        failure_kind=kind,
        status=status,
        requested_s=requested_s,
        ends_connection=is_closed,
    )


def _status_with_another_body(draw: Random, _answer: ModelAnswer) -> Attempt:
    """An error status with a page of a proxy, an empty body, a huge body, or a body that breaks off. Only the
    status counts.
    """
    status = draw.choice([*_STATUS_KINDS])
    bodies = {
        "page": Fault(status=status, body="<title>Bad Gateway</title>", framing="close"),
        "empty": Fault(status=status, body="", framing="close"),
        "huge": Fault(status=status, huge_body_bytes=300_000, framing="close"),
        "cut": Fault(status=status, cut_after_bytes=draw.randrange(20)),
        "reset": Fault(status=status, framing="reset"),
    }
    name = draw.choice([*bodies])
    kind = _STATUS_KINDS[status]
    step, detail = bodies[name], f"{status} {name}"
    return Attempt("status, odd body", detail, step, failure_kind=kind, status=status, ends_connection=True)


def _status_the_server_wants_again(_draw: Random, _answer: ModelAnswer) -> Attempt:
    step = Fault(status=400, headers={"x-should-retry": "true"})
    return Attempt("x-should-retry", "400", step, failure_kind="invalid_request", status=400)


def _no_headers(draw: Random, _answer: ModelAnswer) -> Attempt:
    is_reset = draw.random() < 0.5
    step = Fault(reset_before_headers=is_reset, close_before_headers=not is_reset)
    detail = "reset" if is_reset else "close"
    return Attempt("no headers", detail, step, failure_kind="network", ends_connection=True)


def at_accept(draw: Random, _answer: ModelAnswer) -> Attempt:
    """The server refuses a connection when it accepts it. This works only for a request on a new connection."""
    is_reset = draw.random() < 0.5
    step = Fault(reset_before_headers=is_reset, close_before_headers=not is_reset, at_accept=True)
    detail = "reset" if is_reset else "close"
    return Attempt("at accept", detail, step, failure_kind="network", is_recorded=False, ends_connection=True)


def _partial_headers(draw: Random, _answer: ModelAnswer) -> Attempt:
    size = draw.randint(1, 80)
    step = Fault(status=200, body="", partial_headers_bytes=size)
    return Attempt("partial headers", f"{size} bytes", step, failure_kind="network", ends_connection=True)


def _garbage(draw: Random, _answer: ModelAnswer) -> Attempt:
    garbage = draw.choice(_GARBAGE)
    return Attempt(
        "garbage", str(garbage[:20]), Fault(garbage=garbage), failure_kind="network", ends_connection=True
    )


def cut_after_bytes(draw: Random, answer: ModelAnswer) -> Attempt:
    size = len(answer.body)
    # Half of them near an end, where a boundary of events is.
    at = draw.choice((draw.randrange(size), draw.randrange(max(0, size - 90), size)))
    framing = draw.choice(_STREAM_FRAMINGS)
    step = Step(answer.turn, Fault(cut_after_bytes=at, framing=framing))
    detail = f"{at} of {size}, {framing}"
    return Attempt(
        "cut after bytes",
        detail,
        step,
        failure_kind="stream",
        ends_connection=True,
        message_id=(answer.message_id if at >= answer.start_bytes else ""),
    )


def _cut_after_events(draw: Random, answer: ModelAnswer) -> Attempt:
    at = draw.randrange(len(answer.events))
    framing = draw.choice(_STREAM_FRAMINGS)
    step = Step(answer.turn, Fault(cut_after_events=at, framing=framing))
    return Attempt(
        "cut after events",
        f"{at}, {framing}",
        step,
        failure_kind="stream",
        message_id=answer.id_after(at),
        ends_connection=True,
    )


def _error_event(draw: Random, answer: ModelAnswer) -> Attempt:
    error_type = draw.choice([*_TYPE_KINDS])
    at = draw.randrange(len(answer.events))
    step = Step(answer.turn, Fault(error_event=ErrorEvent(error_type, "Later, please", at)))
    return Attempt(
        "error event",
        f"{error_type} after {at}",
        step,
        failure_kind=_TYPE_KINDS[error_type],
        message_id=answer.id_after(at),
    )


def _error_object(draw: Random, _answer: ModelAnswer) -> Attempt:
    error_type = draw.choice([*_TYPE_KINDS])
    body = {"type": "error", "error": {"type": error_type, "message": "Later, please"}}
    step = Fault(status=200, body=body)
    return Attempt("200 with an error object", error_type, step, failure_kind=_TYPE_KINDS[error_type])


def _no_message_stop(_draw: Random, answer: ModelAnswer) -> Attempt:
    step = Step(answer.turn, Fault(omit_message_stop=True))
    return Attempt("no message_stop", "", step, failure_kind="stream", message_id=answer.message_id)


def _empty(draw: Random, _answer: ModelAnswer) -> Attempt:
    content_type = draw.choice(("text/event-stream", "application/json", "text/plain"))
    return Attempt(
        "empty 200",
        content_type,
        Fault(status=200, body="", content_type=content_type),
        failure_kind="stream",
    )


def _json_cut_short(draw: Random, answer: ModelAnswer) -> Attempt:
    at = draw.randint(1, 200)
    step = Step(answer.turn, Fault(json_instead_of_sse=True, cut_after_bytes=at))
    return Attempt("JSON cut short", f"{at} bytes", step, failure_kind="stream", ends_connection=True)


def _invalid_utf8_in_input(draw: Random, answer: ModelAnswer) -> Attempt:
    damage = draw.choice((b"\xff\xfe", b"\xe4", b"\xf0\x9f\x99", b"\xed\xa0\x80"))
    body = answer.body.replace(SIGN_IN_INPUT.encode(), damage)
    step = Fault(body=body, content_type="text/event-stream")
    return Attempt(
        "invalid UTF-8 in input", str(damage), step, failure_kind="stream", message_id=answer.message_id
    )


QUICK: tuple[tuple[int, Maker], ...] = (
    (8, _status),
    (3, _status_with_another_body),
    (1, _status_the_server_wants_again),
    (3, _no_headers),
    (3, at_accept),
    (3, _partial_headers),
    (2, _garbage),
    (8, cut_after_bytes),
    (6, _cut_after_events),
    (5, _error_event),
    (2, _error_object),
    (2, _no_message_stop),
    (2, _empty),
    (2, _json_cut_short),
    (3, _invalid_utf8_in_input),
)
"""The weight and the maker of each fault that takes no time."""
