"""Complete answers in every form that a server may give them. ralph must accept each without another request."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ralph.mock_api import ErrorEvent, Fault, Step
from tests.soak.answers import SIGN_IN_TEXT
from tests.soak.attempt import Attempt, Fate

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from ralph.mock_api.scenario import Framing, LineEnding
    from tests.soak.answers import ModelAnswer

    Maker = Callable[[Random, ModelAnswer], Attempt]

_FRAMINGS: tuple[Framing, ...] = ("length", "chunked", "close", "reset")
_LINE_ENDINGS: tuple[LineEnding, ...] = ("\n", "\r\n", "\r")


def whole(answer: ModelAnswer, shape: str, fault: Fault | None, *, ends_connection: bool = False) -> Attempt:
    return Attempt(
        shape,
        "",
        Step(answer.turn, fault),
        Fate.ACCEPTED,
        message_id=answer.message_id,
        content=tuple(answer.content),
        ends_connection=ends_connection,
    )


def _plain(draw: Random, answer: ModelAnswer) -> Attempt:
    # Closing is frequent because only a new connection can be refused at accept.
    is_closed = draw.random() < 0.3
    return whole(answer, "whole", Fault(framing="close") if is_closed else None, ends_connection=is_closed)


def _of_known_length(_draw: Random, answer: ModelAnswer) -> Attempt:
    return whole(answer, "content-length", Fault(framing="length"))


def _reset_after_message_stop(_draw: Random, answer: ModelAnswer) -> Attempt:
    return whole(answer, "reset after message_stop", Fault(framing="reset"), ends_connection=True)


def _no_last_chunk(_draw: Random, answer: ModelAnswer) -> Attempt:
    fault = Fault(cut_after_events=len(answer.events))
    return whole(answer, "no last chunk", fault, ends_connection=True)


def _error_after_message_stop(_draw: Random, answer: ModelAnswer) -> Attempt:
    fault = Fault(error_event=ErrorEvent(after_events=len(answer.events)))
    return whole(answer, "error after message_stop", fault)


def _open_after_message_stop(draw: Random, answer: ModelAnswer) -> Attempt:
    """The server neither ends the body nor closes the connection. It sends nothing, or pings for ever."""
    fault = Fault(stall_after_events=len(answer.events), ping_interval_s=draw.choice((None, 0.01)))
    return whole(answer, "open after message_stop", fault, ends_connection=True)


def _short_stall(draw: Random, answer: ModelAnswer) -> Attempt:
    at = draw.randint(0, len(answer.events) - 1)
    return whole(answer, "short stall", Fault(stall_after_events=at, stall_s=0.1))


def _drip(_draw: Random, answer: ModelAnswer) -> Attempt:
    return whole(answer, "quick drip", Fault(drip_s=0.00001))


def _json(_draw: Random, answer: ModelAnswer) -> Attempt:
    return whole(answer, "JSON", Fault(json_instead_of_sse=True))


def _interleaved(_draw: Random, answer: ModelAnswer) -> Attempt:
    return whole(answer, "interleaved", Fault(interleaved=True, omit_tool_input=True))


def _no_message_delta(_draw: Random, answer: ModelAnswer) -> Attempt:
    return whole(answer, "no message_delta", Fault(omit_message_delta=True))


def _line_endings(draw: Random, answer: ModelAnswer) -> Attempt:
    fault = Fault(line_ending=draw.choice(_LINE_ENDINGS[1:]), framing=draw.choice(_FRAMINGS))
    return whole(answer, "line endings", fault)


def _mixture(draw: Random, answer: ModelAnswer) -> Attempt:
    """Several of these forms at once."""
    fault = Fault(
        framing=draw.choice(_FRAMINGS),
        interleaved=draw.random() < 0.5,
        omit_message_delta=draw.random() < 0.5,
        omit_tool_input=draw.random() < 0.5,
        line_ending=draw.choice(_LINE_ENDINGS),
    )
    return whole(answer, "mixture", fault)


def _twice(_draw: Random, answer: ModelAnswer) -> Attempt:
    """A second answer after the `message_stop` of the first. It is not part of the first."""
    body = answer.body + answer.body
    return _as_bytes(answer, "whole, twice", body)


def _invalid_utf8_in_text(draw: Random, answer: ModelAnswer) -> Attempt:
    """Invalid UTF-8 in a text, which must be shown with replacement characters. Only in a tool's input would it be
    a reason for another request.
    """
    body = answer.body.replace(SIGN_IN_TEXT.encode(), draw.choice((b"\xff", b"\xe4")))
    attempt = _as_bytes(answer, "invalid UTF-8 in text", body)
    shown = [
        {**block, "text": block["text"].replace(SIGN_IN_TEXT, "\ufffd")} if "text" in block else block
        for block in answer.content
    ]
    return replace(attempt, content=tuple(shown))


def _as_bytes(answer: ModelAnswer, shape: str, body: bytes) -> Attempt:
    step = Step(fault=Fault(body=body, content_type="text/event-stream"))
    return replace(whole(answer, shape, None), step=step)


SHAPES: tuple[tuple[int, Maker], ...] = (
    (30, _plain),
    (2, _of_known_length),
    (4, _reset_after_message_stop),
    (3, _no_last_chunk),
    (2, _error_after_message_stop),
    (6, _open_after_message_stop),
    (1, _short_stall),
    (1, _drip),
    (4, _json),
    (3, _interleaved),
    (3, _no_message_delta),
    (3, _line_endings),
    (4, _mixture),
    (2, _twice),
    (3, _invalid_utf8_in_text),
)
