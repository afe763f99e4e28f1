"""Responses as OpenAI's server streams them, and as the official client reads them."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

import httpx2
from openai import OpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Event = dict[str, Any]
USAGE = {
    "input_tokens": 90,
    "input_tokens_details": {"cached_tokens": 50, "cache_write_tokens": 0},
    "output_tokens": 30,
    "output_tokens_details": {"reasoning_tokens": 20},
    "total_tokens": 120,
}


def text_part(text: str) -> Event:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def refusal_part(text: str) -> Event:
    return {"type": "refusal", "refusal": text}


def message(*parts: Event, item_id: str = "msg_1", **more: Any) -> Event:
    return {
        "type": "message",
        "id": item_id,
        "role": "assistant",
        "status": "completed",
        "content": [*parts],
        **more,
    }


def reasoning(
    *summary: str, item_id: str = "rs_1", secret: str | None = "gAAAAAB", content: Iterable[str] = ()
) -> Event:
    item: Event = {"type": "reasoning", "id": item_id}
    item["summary"] = [{"type": "summary_text", "text": text} for text in summary]
    if secret is not None:
        item["encrypted_content"] = secret
    if content:
        item["content"] = [{"type": "reasoning_text", "text": text} for text in content]
    return item


def call(arguments: str, *, name: str = "Bash", call_id: str = "call_1", **more: Any) -> Event:
    return {
        "type": "function_call",
        "id": f"fc_{call_id}",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "status": "completed",
        **more,
    }


def response(*output: Event, status: str = "completed", **more: Any) -> Event:
    """A whole response."""
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "gpt-6-astra",
        "status": status,
        "error": None,
        "incomplete_details": None,
        "output": [*output],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": USAGE,
        **more,
    }


def halves(text: str) -> list[str]:
    """The text in two pieces, one of which may be empty."""
    return [text[: len(text) // 2], text[len(text) // 2 :]]


def item_events(place: int, item: Event) -> Iterator[Event]:
    """The events of one item, from its beginning to its end."""
    at = {"output_index": place, "item_id": item["id"]}
    begun: Event = {**item, "status": "in_progress"}
    match item["type"]:
        case "message":
            begun["content"] = []
        case "reasoning":
            begun |= {"summary": []}
            begun.pop("content", None)
        case _:
            begun["arguments"] = ""
    yield {"type": "response.output_item.added", "output_index": place, "item": begun}
    yield from part_events(at, item)
    yield {"type": "response.output_item.done", "output_index": place, "item": item}


def part_events(at: Event, item: Event) -> Iterator[Event]:
    if item["type"] == "function_call":
        base = "response.function_call_arguments"
        yield from ({"type": f"{base}.delta", **at, "delta": piece} for piece in halves(item["arguments"]))
        yield {"type": f"{base}.done", **at, "name": item["name"], "arguments": item["arguments"]}
        return
    parts = item["content"] if item["type"] == "message" else [*item["summary"], *item.get("content", ())]
    for number, part in enumerate(parts):
        kind = part["type"]
        base = {"summary_text": "response.reasoning_summary_text"}.get(kind, f"response.{kind}")
        index = {"summary_index": number} if kind == "summary_text" else {"content_index": number}
        logprobs: Event = {"logprobs": []} if kind == "output_text" else {}
        if item["type"] == "message":
            empty = (
                {"type": kind, "text": "", "annotations": []} if kind == "output_text" else refusal_part("")
            )
            yield {"type": "response.content_part.added", **at, **index, "part": empty}
        elif kind == "summary_text":
            empty = {"type": kind, "text": ""}
            yield {"type": "response.reasoning_summary_part.added", **at, **index, "part": empty}
        whole = {name: part[name] for name in ("text", "refusal") if name in part}
        for piece in halves(next(iter(whole.values()))):
            yield {"type": f"{base}.delta", **at, **index, **logprobs, "delta": piece}
        yield {"type": f"{base}.done", **at, **index, **logprobs, **whole}


def events_of(whole: Event) -> list[Event]:
    """The events of a response, as OpenAI sends them."""
    started = {**whole, "status": "in_progress", "output": [], "usage": None}
    end = "incomplete" if whole["status"] == "incomplete" else "completed"
    events = [
        {"type": "response.created", "response": started},
        {"type": "response.in_progress", "response": started},
        *(event for place, item in enumerate(whole["output"]) for event in item_events(place, item)),
        {"type": f"response.{end}", "response": whole},
    ]
    return [{"sequence_number": number, **event} for number, event in enumerate(events)]


def stream(events: Iterable[Event]) -> bytes:
    return b"".join(
        f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n".encode()
        for event in events
    )


@cache
def _event_type() -> TypeAdapter[Any]:
    return TypeAdapter(ResponseStreamEvent)


def check_events(events: Iterable[Event]) -> None:
    """Raises ValidationError for an event that OpenAI's types do not allow."""
    for event in events:
        _event_type().validate_python(event)


def read_by_the_official_client(body: bytes) -> Response:
    """The response that the official client assembles from a stream."""
    transport = httpx2.MockTransport(
        lambda _request: httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=body)
    )
    with (
        httpx2.Client(transport=transport) as http,
        OpenAI(api_key="k", http_client=http, max_retries=0) as client,
        client.responses.stream(model="m", input="hi") as parsed,
    ):
        last = None
        for event in parsed:
            if event.type in {"response.completed", "response.incomplete"}:
                last = event.response
        assert last is not None
        return last
