"""The Responses API of OpenAI: its requests and streams, translated to those of the Messages API. No I/O happens here.

The source is the official package `openai` 3.57, whose types the tests use.
"""

from __future__ import annotations

from typing import Any

from ralph.api.openai_requests import ConvertedMessages, cache_key, is_openai
from ralph.api.responses.request import input_items, request_fields
from ralph.api.responses.stream import ResponseStream, events_of_whole
from ralph.conversation.messages import RequestBody, to_json


class Responses:
    """Translates for one endpoint."""

    def __init__(self, base_url: str) -> None:
        self._has_cache_key = is_openai(base_url)
        self._messages = ConvertedMessages(input_items)
        self._head = (b"", b"")
        """The last request head, and its converted form without the closing brace."""

    def body(self, request: RequestBody) -> tuple[bytes, ...]:
        if self._head[0] != request.head.body:
            self._head = (request.head.body, to_json(request_fields(request.head))[:-1])
        key = b',"prompt_cache_key":' + to_json(cache_key(request)) if self._has_cache_key else b""
        head = self._head[1] + key + b',"input":['
        *packed, newest = self._messages.pieces(request)
        return (head, *packed, newest + b"]}") if packed else (head + newest + b"]}",)

    def translator(self) -> ResponseStream:
        return ResponseStream()

    def whole(self, value: dict[str, Any]) -> tuple[dict[str, Any], ...] | None:
        return events_of_whole(value)


dialect = Responses
