"""The three dialects that the server speaks: a table of what differs between them. No I/O happens here."""

from __future__ import annotations

from collections.abc import Callable, Mapping  # noqa: TC003 - msgspec reads the types of fields
from typing import Any

from msgspec import Struct

from ralph.mock_api import chat, chat_request, responses, responses_request, validation
from ralph.mock_api.events import (
    PING,
    Event,
    Line,
    ScriptedAnswer,
    as_message,
    break_order,
    message_events,
    with_pings,
)
from ralph.mock_api.fault import ErrorEvent, Fault, ScenarioError, anthropic_error, openai_error
from ralph.mock_api.scenario import STAND_IN, Step


class ServedApi(Struct, frozen=True, kw_only=True):
    api: str
    """The name in recorded requests, and in ralph's settings."""
    message_id: str
    """The beginning of the ids of answers."""
    call_id: str
    request_id_header: str
    key_headers: frozenset[str]
    no_key: str
    """The message for a request without a key."""
    ping: Line
    without: frozenset[str] = frozenset()
    """The parts of a fault that have no counterpart."""
    find_refusal: Callable[[Event, Mapping[str, str], bool], Fault | None]
    """The answer that refuses a request, or None if it is valid. Takes the body, the headers, and whether the last
    answer ended with `pause_turn`."""
    conversation: Callable[[Event], list[Event]]
    """The messages of a request in the form of the Messages API."""
    error_body: Callable[[int, str | None, str], Event]
    """The body of an error. Takes the status, the text or None for the usual one, and the id of the request."""
    error_event: Callable[[ErrorEvent, int, ScriptedAnswer], Event]
    """The error in a stream. The number is that of the events before it."""
    whole: Callable[[ScriptedAnswer], Event]
    """The answer to a request without `stream`."""
    lines: Callable[[ScriptedAnswer, list[Event]], list[Line]]
    """The stream that says what these events of the Messages API say."""

    def answer(self, step: Step, *, index: int, model: str, payload: Mapping[str, Any]) -> ScriptedAnswer:
        turn = step.turn or STAND_IN
        ids = {"message_id": self.message_id, "call_id": self.call_id}
        return ScriptedAnswer(turn, as_message(turn, index=index, model=model, **ids), payload)

    def stream(self, answer: ScriptedAnswer, fault: Fault) -> list[Line]:
        """The events as the fault leaves them; what it does to single bytes comes later. Raises `ScenarioError` if a
        part of it has no counterpart.
        """
        for name in self.without:
            if getattr(fault, name):
                raise ScenarioError(f"{name}: has no counterpart in {self.api}")
        events = break_order(message_events(answer.turn, answer.message), fault)
        lines = with_pings(self.lines(answer, events), answer.turn, self.ping)
        if fault.error_event is None:
            return lines
        before = lines[: fault.error_event.after_events]
        number = sum(line != self.ping for line in before)
        return [*before, self.error_event(fault.error_event, number, answer)]


ANTHROPIC = ServedApi(
    api="anthropic",
    message_id="msg_mock",
    call_id="toolu_mock",
    request_id_header="request-id",
    key_headers=frozenset({"x-api-key", "authorization"}),
    no_key="x-api-key header is required",
    ping=PING,
    find_refusal=validation.find_refusal,
    conversation=lambda payload: payload["messages"],
    error_body=anthropic_error,
    error_event=lambda error, _, __: {
        "type": "error",
        "error": {"type": error.type, "message": error.message},
    },
    whole=lambda answer: answer.message,
    lines=lambda _, events: list(events),
)
_OPENAI: dict[str, Any] = {
    "call_id": "call_mock",
    "request_id_header": "x-request-id",
    "key_headers": frozenset({"authorization", "api-key"}),  # the latter is Azure's
    "no_key": (
        "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer "
        "auth (i.e. Authorization: Bearer YOUR_KEY)."
    ),
    "ping": ": ping",
    "error_body": openai_error,
}
CHAT = ServedApi(
    api="openai-chat",
    message_id="chatcmpl-mock",
    find_refusal=lambda payload, _, __: chat_request.find_refusal(payload),
    conversation=chat_request.conversation,
    error_event=chat.error_chunk,
    whole=chat.completion,
    lines=chat.chunks,
    **_OPENAI,
)
RESPONSES = ServedApi(
    api="openai-responses",
    message_id="resp_mock",
    without=frozenset({"omit_message_delta"}),  # the reason for the end is in the last event
    find_refusal=lambda payload, _, __: responses_request.find_refusal(payload),
    conversation=responses_request.conversation,
    error_event=responses.error_event,
    whole=responses.response,
    lines=responses.stream,
    **_OPENAI,
)
BY_API = {dialect.api: dialect for dialect in (ANTHROPIC, CHAT, RESPONSES)}
_OPENAI_BASES = ("/v1", "/v1beta/openai", "/openai/v1")  # OpenAI's own, Gemini's and Azure's
BY_PATH = {
    "/v1/messages": ANTHROPIC,
    **{f"{base}/chat/completions": CHAT for base in _OPENAI_BASES},
    **{f"{base}/responses": RESPONSES for base in _OPENAI_BASES},
}


def lookup_path(path: str) -> str | None:
    """The part of the path behind `/models`. None if the path is not about models."""
    base, mark, rest = path.partition("/models")
    return rest if mark and base in _OPENAI_BASES else None


def dialect_at(path: str, headers: Mapping[str, str]) -> ServedApi:
    """The dialect of a request to this path. If the path leaves it open, the header of the Messages API decides."""
    if path in BY_PATH:
        return BY_PATH[path]
    is_openais = lookup_path(path) is not None and "anthropic-version" not in headers
    return CHAT if is_openais else ANTHROPIC
