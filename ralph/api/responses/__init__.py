"""The Responses API of OpenAI: its requests and streams, translated to those of the Messages API. No I/O happens here.

The source is the official package `openai` 3.57, whose types the tests use.
"""

from __future__ import annotations

from typing import Any

from ralph.api.openai_requests import ConvertedMessages, is_openai
from ralph.api.responses.request import input_items, request_fields
from ralph.api.responses.stream import ResponseStream, events_of_whole
from ralph.conversation.messages import RequestBody, to_json


class Responses:
    """Translates for one endpoint."""

    def __init__(self, base_url: str) -> None:
        self._is_openais = is_openai(base_url)
        self._messages = ConvertedMessages(input_items)
        self._head = (b"", b"")
        """The last request head, and its converted form without the closing brace."""

    def body(self, request: RequestBody) -> tuple[bytes, ...]:
        if self._head[0] != request.head.body:
            self._head = (request.head.body, to_json(request_fields(request.head))[:-1])
        return self._messages.body(request, self._head[1], b',"input":[', is_openais=self._is_openais)

    def translator(self) -> ResponseStream:
        return ResponseStream()

    def whole(self, value: dict[str, Any]) -> tuple[dict[str, Any], ...] | None:
        return events_of_whole(value)


dialect = Responses
