"""Attempts that end the run: permanent failures at once, and damaged answers at the third time.

The exit codes are those of the README, and were written by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.mock_api import ErrorEvent, Fault, Step, encode_event
from tests.soak.attempt import Attempt, Fate

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from ralph.mock_api import Playable
    from tests.soak.answers import ModelAnswer

    Maker = Callable[[Random, ModelAnswer], Attempt]

_REJECTED, _AUTH, LIMIT_REACHED, _UNAVAILABLE = 69, 77, 3, 75

_STATUS_EXITS = {
    400: _REJECTED,
    401: _AUTH,
    402: _AUTH,
    403: _AUTH,
    404: _REJECTED,
    413: LIMIT_REACHED,
    422: _REJECTED,
}
_TYPE_EXITS = {
    "invalid_request_error": _REJECTED,
    "authentication_error": _AUTH,
    "billing_error": _AUTH,
    "permission_error": _AUTH,
    "not_found_error": _REJECTED,
    "request_too_large": LIMIT_REACHED,
}
_PORTAL = "<html><title>Please log in</title><body>Hotel Wi-Fi</body></html>"


def _final(fault: str, detail: str, step: Playable, exit_code: int, message_id: str = "") -> Attempt:
    return Attempt(fault, detail, step, Fate.PERMANENT, exit_code=exit_code, message_id=message_id)


def _damaged(fault: str, detail: str, step: Playable, message_id: str = "") -> Attempt:
    return Attempt(fault, detail, step, Fate.DAMAGED, exit_code=_REJECTED, message_id=message_id)


def _status(draw: Random, _answer: ModelAnswer) -> Attempt:
    status = draw.choice([*_STATUS_EXITS])
    return _final("final status", str(status), Fault(status=status), _STATUS_EXITS[status])


def _status_the_server_does_not_want_again(draw: Random, _answer: ModelAnswer) -> Attempt:
    status = draw.choice((429, 500, 529))
    step = Fault(status=status, headers={"x-should-retry": "false"})
    return _final("x-should-retry: false", str(status), step, _UNAVAILABLE)


def _redirect(draw: Random, _answer: ModelAnswer) -> Attempt:
    status = draw.choice((301, 302, 307, 308))
    step = Fault(status=status, headers={"location": "http://127.0.0.1:1/v1/messages"})
    return _final("redirect", str(status), step, _REJECTED)


def _captive_portal(_draw: Random, _answer: ModelAnswer) -> Attempt:
    return _damaged("captive portal", "", Fault(status=200, body=_PORTAL))


def _malformed_json(draw: Random, answer: ModelAnswer) -> Attempt:
    at = draw.randint(1, len(answer.events))
    step = Step(answer.turn, Fault(malformed_json_at_event=at))
    return _damaged("malformed JSON", f"event {at}", step, answer.id_after(at - 1))


def _input_of_no_call(_draw: Random, answer: ModelAnswer) -> Attempt:
    start = encode_event(answer.events[answer.start_event - 1])
    piece = {"type": "input_json_delta", "partial_json": '{"command": '}
    lost = encode_event({"type": "content_block_delta", "index": 0, "delta": piece})
    step = Fault(body=start + lost + answer.body, content_type="text/event-stream")
    return _damaged("input of no call", "", step, answer.message_id)


def _error_event(draw: Random, answer: ModelAnswer) -> Attempt:
    error_type = draw.choice([*_TYPE_EXITS])
    at = draw.randrange(len(answer.events))
    step = Step(answer.turn, Fault(error_event=ErrorEvent(error_type, "Never", at)))
    detail = f"{error_type} after {at}"
    return _final("final error event", detail, step, _TYPE_EXITS[error_type], answer.id_after(at))


def _error_object(draw: Random, _answer: ModelAnswer) -> Attempt:
    error_type = draw.choice([*_TYPE_EXITS])
    step = Fault(status=200, body={"type": "error", "error": {"type": error_type, "message": "Never"}})
    return _final("200 with a final error object", error_type, step, _TYPE_EXITS[error_type])


DAMAGED: tuple[tuple[int, Maker], ...] = (
    (1, _captive_portal),
    (3, _malformed_json),
    (2, _input_of_no_call),
)
FINAL: tuple[tuple[int, Maker], ...] = (
    (4, _status),
    (1, _status_the_server_does_not_want_again),
    (1, _redirect),
    (3, _error_event),
    (1, _error_object),
)
