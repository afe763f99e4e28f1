"""Translates an answer to the Responses API: the whole response, and the events of a stream. No I/O happens here."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from ralph.mock_api.chat import CREATED, arguments_of, prompt_tokens, reasoning_tokens
from ralph.mock_api.events import Event, Line, ScriptedAnswer, input_json
from ralph.mock_api.fault import ErrorEvent, openai_names
from ralph.mock_api.scenario import Block, Text, Thinking, ToolUse, Turn

if TYPE_CHECKING:
    from collections.abc import Iterator


_INCOMPLETE = {
    "max_tokens": "max_output_tokens",
    "model_context_window_exceeded": "max_output_tokens",
    "content_filter": "content_filter",
}
"""The stop reasons of an incomplete response. After any other, the response is complete."""
_FAILURES = frozenset({"server_error", "rate_limit_exceeded", "insufficient_quota", "invalid_prompt"})
_ENCRYPTED = "reasoning.encrypted_content"


def sealed(model: str, item_id: str, summary: list[str], signature: str) -> str:
    """The encrypted content of a reasoning item. It holds what the item has to say when it comes back."""
    plain = json.dumps([model, item_id, summary, signature])
    return "gAAAA" + base64.urlsafe_b64encode(plain.encode()).decode()


def unsealed(encrypted: str) -> list[Any] | None:
    """The model, the id, the summary and the signature in an encrypted content. None if this server did not make it."""
    try:
        value = json.loads(base64.urlsafe_b64decode(encrypted.removeprefix("gAAAA")))
    except ValueError:
        return None
    is_own = isinstance(value, list) and len(value) == 4 and encrypted.startswith("gAAAA")
    return value if is_own else None


def response(answer: ScriptedAnswer) -> Event:
    reason = _INCOMPLETE.get(answer.message["stop_reason"])
    items = _items(answer)
    if reason and items and "status" in items[-1]:
        items[-1]["status"] = "incomplete"
    whole = _head(answer, "incomplete" if reason else "completed")
    return whole | {
        "completed_at": None if reason else CREATED,
        "incomplete_details": {"reason": reason} if reason else None,
        "output": items,
        "usage": _usage(answer),
    }


def stream(answer: ScriptedAnswer, events: list[Event]) -> list[Line]:
    """The events that say what `events` say, the events of the Messages API."""
    translated = _Events(answer).of(events)
    return [{**event, "sequence_number": number} for number, event in enumerate(translated)]


def error_event(error: ErrorEvent, number: int, answer: ScriptedAnswer) -> Event:
    """The event `error`, or `response.failed` for a type that is a code of the latter."""
    if error.type in _FAILURES:
        reason = {"code": error.type, "message": error.message}
        failed = _head(answer, "failed") | {"error": reason}
        return {"type": "response.failed", "response": failed, "sequence_number": number}
    _, code = openai_names(error.type)
    told = {"code": code, "message": error.message, "param": None}
    return {"type": "error", **told, "sequence_number": number}


class _Events:
    def __init__(self, answer: ScriptedAnswer) -> None:
        self._blocks = answer.turn.blocks()
        self._whole = response(answer)
        self._beginning = _head(answer, "in_progress")

    def of(self, events: list[Event]) -> Iterator[Event]:
        for event in events:
            match event["type"]:
                case "message_start":
                    yield {"type": "response.created", "response": self._beginning}
                    yield {"type": "response.in_progress", "response": self._beginning}
                case "content_block_start":
                    yield from self._start(event["index"], event["content_block"])
                case "content_block_delta":
                    yield from self._delta(event["index"], event["delta"])
                case "content_block_stop":
                    yield from self._stop(event["index"])
                case "message_stop":
                    yield {"type": f"response.{self._whole['status']}", "response": self._whole}

    def _start(self, index: int, block: Event) -> Iterator[Event]:
        item = self._whole["output"][index]
        opened = item | {"status": "in_progress"} | _EMPTY.get(item["type"], {})
        if item["type"] == "function_call" and "input" not in block:
            del opened["arguments"]
        if "encrypted_content" in item:
            opened["encrypted_content"] = item["encrypted_content"][:9]  # it is incomplete here, says the API
        yield {"type": "response.output_item.added", "output_index": index, "item": opened}
        part = _part_of(item)
        if part is not None and (names := _NAMES[part["type"]]).part:
            yield self._at(index, part["type"], f"{names.part}.added", part=part | {names.text_field: ""})

    def _delta(self, index: int, delta: Event) -> Iterator[Event]:
        part = _part_of(self._whole["output"][index])
        block = self._blocks[index]
        piece = next((delta[name] for name in ("text", "thinking", "partial_json") if name in delta), "")
        if isinstance(block, ToolUse) and not piece and not input_json(block):
            piece = arguments_of(block)  # the Messages API says nothing of an empty input
        if part is not None and piece:
            names = _NAMES[part["type"]]
            yield self._at(index, part["type"], f"{names.text}.delta", delta=piece, **names.more)

    def _stop(self, index: int) -> Iterator[Event]:
        item = self._whole["output"][index]
        part = _part_of(item)
        if part is not None:
            kind, names = part["type"], _NAMES[part["type"]]
            text = {names.text_field: part[names.text_field]}
            yield self._at(index, kind, f"{names.text}.done", **text, **names.more)
            if names.part:
                yield self._at(index, kind, f"{names.part}.done", part=part)
        yield {"type": "response.output_item.done", "output_index": index, "item": item}

    def _at(self, index: int, kind: str, event_type: str, **fields: Any) -> Event:
        item_id = self._whole["output"][index]["id"]
        place = {"item_id": item_id, "output_index": index} | _NAMES[kind].index
        return {"type": event_type, **place, **fields}


class _Names(Struct, frozen=True):
    """The names in a stream of a part of an item that comes in pieces."""

    text: str
    text_field: str
    part: str = ""
    index: dict[str, int] = field(default_factory=dict)
    more: dict[str, list[Any]] = field(default_factory=dict)
    """Further fields of the events with text."""


_CONTENT = ("response.content_part", {"content_index": 0})
_SUMMARY = ("response.reasoning_summary_part", {"summary_index": 0})
_NAMES = {
    "output_text": _Names("response.output_text", "text", *_CONTENT, {"logprobs": []}),
    "refusal": _Names("response.refusal", "refusal", *_CONTENT),
    "summary_text": _Names("response.reasoning_summary_text", "text", *_SUMMARY),
    "function_call": _Names("response.function_call_arguments", "arguments"),
}
_EMPTY: dict[str, Event] = {
    "message": {"content": []},
    "reasoning": {"summary": []},
    "function_call": {"arguments": ""},
}


def _part_of(item: Event) -> Event | None:
    """The part of an item that comes in pieces. None if the item comes whole."""
    if item["type"] == "function_call":
        return item
    parts = item.get("content") or item.get("summary")
    return parts[0] if parts and parts[0]["type"] in _NAMES else None


def _items(answer: ScriptedAnswer) -> list[Event]:
    turn, message, payload = answer.turn, answer.message, answer.payload
    model = payload.get("model") if _ENCRYPTED in (payload.get("include") or ()) else None
    return [
        _item(turn, block, whole, f"{message['id']}_{at}", model)
        for at, (block, whole) in enumerate(zip(turn.blocks(), message["content"], strict=True))
    ]


def _item(turn: Turn, block: Block, whole: Event, name: str, model: str | None) -> Event:
    """The item of a block. Its encrypted content is bound to `model`; None leaves it out."""
    if isinstance(block, Text):
        part: Event = {"type": "output_text", "text": block.text, "annotations": [], "logprobs": []}
        if turn.stop_reason == "refusal":
            part = {"type": "refusal", "refusal": block.text}
        message = {"type": "message", "id": f"msg_{name}", "role": "assistant", "content": [part]}
        return {**message, "status": "completed"}
    if isinstance(block, Thinking):
        summary = [block.thinking] if block.thinking else []
        item: Event = {"type": "reasoning", "id": f"rs_{name}"}
        item["summary"] = [{"type": "summary_text", "text": text} for text in summary]
        if model is not None:
            item["encrypted_content"] = sealed(model, item["id"], summary, block.signature)
        return item
    if isinstance(block, ToolUse):
        call = {"type": "function_call", "id": f"fc_{name}", "call_id": whole["id"], "name": block.name}
        return {**call, "arguments": arguments_of(block), "status": "completed"}
    return {"id": f"item_{name}", **whole}


def _head(answer: ScriptedAnswer, status: str) -> Event:
    """Some fields repeat the request."""
    asked = {name: answer.payload.get(name, default) for name, default in _REPEATED.items()}
    return {
        "id": answer.message["id"],
        "object": "response",
        "created_at": CREATED,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": answer.message["model"],
        "output": [],
        "usage": None,
        **asked,
    }


_REPEATED: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": None,
    "temperature": 1.0,
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
}


def _usage(answer: ScriptedAnswer) -> Event:
    usage = answer.message["usage"]
    prompt, output = prompt_tokens(usage), usage.get("output_tokens", 0)
    cached = {
        "cached_tokens": usage.get("cache_read_input_tokens", 0),
        "cache_write_tokens": usage.get("cache_creation_input_tokens", 0),
    }
    return {
        "input_tokens": prompt,
        "input_tokens_details": cached,
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens(answer.turn, output)},
        "total_tokens": prompt + output,
    }
