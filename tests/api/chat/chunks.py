"""Streams of Chat Completions, as servers send them and as the official client reads them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx2
from openai import OpenAI
from openai.lib.streaming.chat import ChatCompletionStreamState

if TYPE_CHECKING:
    from collections.abc import Iterable

Chunk = dict[str, Any]
USAGE = {
    "prompt_tokens": 90,
    "completion_tokens": 30,
    "total_tokens": 120,
    "prompt_tokens_details": {"cached_tokens": 50},
    "completion_tokens_details": {"reasoning_tokens": 20},
}
COUNTED = {
    "input_tokens": 40,
    "output_tokens": 30,
    "cache_read_input_tokens": 50,
    "cache_creation_input_tokens": 0,
}
"""These counts in the form of the Messages API."""


def chunk(delta: Chunk | None = None, finish_reason: str | None = None, **more: Any) -> Chunk:
    """A chunk with one choice, or without any if `delta` is None."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish_reason}]
    about = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-6-astra"}
    return {**about, "choices": choices, **more}


def call(
    arguments: Any = "",
    *,
    index: int | None = 0,
    call_id: str | None = None,
    name: str | None = None,
    **more: Any,
) -> Chunk:
    """A delta with one piece of a tool call. Fields that are None are left out."""
    function = {name_: one for name_, one in (("name", name), ("arguments", arguments)) if one is not None}
    fields = {"index": index, "id": call_id, "type": "function" if call_id else None, "function": function}
    return {"tool_calls": [{name_: one for name_, one in fields.items() if one is not None} | more]}


def stream(*chunks: Chunk, is_done: bool = True, line_end: str = "\n") -> bytes:
    """The chunks as a stream. `is_done` is False if `[DONE]` is missing."""
    lines = [json.dumps(one, ensure_ascii=False) for one in chunks]
    return "".join(
        f"data: {one}{line_end * 2}" for one in (*lines, *(["[DONE]"] if is_done else ()))
    ).encode()


def ended(finish_reason: str = "stop") -> tuple[Chunk, Chunk]:
    """The last two chunks of OpenAI's own streams."""
    return chunk({}, finish_reason), chunk(usage=USAGE)


def officially_read(data: bytes) -> Any:
    """The completion that the official client makes of a stream."""
    answer = httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=data)
    transport = httpx2.MockTransport(lambda _: answer)
    state: Any = ChatCompletionStreamState()
    with OpenAI(
        api_key="k", base_url="http://api.test/v1", http_client=httpx2.Client(transport=transport)
    ) as client:
        messages: Iterable[Any] = [{"role": "user", "content": "hi"}]
        for one in client.chat.completions.create(model="m", messages=messages, stream=True):
            state.handle_chunk(one)
    return state.current_completion_snapshot
