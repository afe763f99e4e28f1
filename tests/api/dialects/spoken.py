"""One answer, and the errors of servers, in each dialect: what a table of faults needs to try all dialects alike."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ralph.mock_api import Text, ToolUse, Turn, as_events, as_message
from ralph.values.servers import ANTHROPIC, OPENAI_CHAT, OPENAI_RESPONSES
from tests.api.chat import chunks
from tests.api.responses import server

if TYPE_CHECKING:
    from collections.abc import Sequence

TEXT = "Ja: 世界 🙂"
CALLS = (("t1", "Read", {"file_path": "ä.py"}), ("t2", "Bash", {"command": "printf '🙂'"}))
JSON = "application/json"


@dataclass(frozen=True)
class Spoken:
    """An answer with a text and two calls in one dialect."""

    api: str
    events: tuple[bytes, ...]
    """The events of its stream. The last one is what completes the answer, without `[DONE]`."""
    whole: dict[str, Any]
    """The answer in one JSON object."""
    begun: int
    """The number of events after which the message has begun."""

    def __repr__(self) -> str:
        return self.api

    @property
    def stream(self) -> bytes:
        return b"".join(self.events)


def _event(event: dict[str, Any], name: str = "") -> bytes:
    line = f"event: {name}\n" if name else ""
    return f"{line}data: {json.dumps(event, ensure_ascii=False)}\n\n".encode()


def text_only(api: str, text: str, end: str | None = None) -> list[bytes]:
    """The events of an answer with a text. `end` is the dialect's own word for the end, or None for the usual one."""
    if api == OPENAI_CHAT:
        return [_event(chunks.chunk({"content": text})), _event(chunks.chunk({}, end or "stop"))]
    if api == ANTHROPIC:
        return [_event(event, event["type"]) for event in as_events(Turn(text, stop_reason=end))]
    more: dict[str, Any] = {"status": "incomplete", "incomplete_details": {"reason": end}} if end else {}
    whole = server.response(server.message(server.text_part(text)), **more)
    return [_event(event, event["type"]) for event in server.events_of(whole)]


def _messages() -> Spoken:
    calls = [ToolUse(name, arguments, id=call_id) for call_id, name, arguments in CALLS]
    turn = Turn([Text(TEXT), *calls])
    events = tuple(_event(event, event["type"]) for event in as_events(turn))
    return Spoken(ANTHROPIC, events, as_message(turn), 1)


def _chat() -> Spoken:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for piece in server.halves(TEXT)]
    for index, (call_id, name, arguments) in enumerate(CALLS):
        first, last = server.halves(json.dumps(arguments, ensure_ascii=False))
        deltas.append(chunks.call(first, index=index, call_id=call_id, name=name))
        deltas.append(chunks.call(last, index=index))
    events = [_event(chunks.chunk(delta)) for delta in deltas]
    calls = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for call_id, name, arguments in CALLS
    ]
    whole = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": TEXT, "tool_calls": calls},
                "finish_reason": "tool_calls",
            }
        ],
    }
    return Spoken(OPENAI_CHAT, (*events, _event(chunks.chunk({}, "tool_calls"))), whole, 1)


def _responses() -> Spoken:
    calls = [
        server.call(json.dumps(arguments, ensure_ascii=False), name=name, call_id=call_id)
        for call_id, name, arguments in CALLS
    ]
    whole = server.response(server.message(server.text_part(TEXT)), *calls)
    events = tuple(_event(event, event["type"]) for event in server.events_of(whole))
    return Spoken(OPENAI_RESPONSES, events, whole, 1)


SPOKEN: Sequence[Spoken] = (_messages(), _chat(), _responses())
