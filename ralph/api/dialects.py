"""The dialects: APIs of models other than the Messages API, into which requests are translated, and answers back.

Outside of this package, a request and an answer always have the form of the Messages API.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from ralph.values.servers.endpoint import OPENAI_CHAT, OPENAI_RESPONSES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ralph.conversation.messages import RequestBody


class Dialect(Protocol):
    """Translates for one endpoint. It keeps what it has translated, so that a later request needs only its new messages."""

    def body(self, request: RequestBody) -> tuple[bytes, ...]:
        """The JSON of a request, in pieces. Two requests with the same messages at their beginning begin with the same bytes."""
        ...

    def translator(self) -> Translator:
        """A translator for one stream."""
        ...

    def whole(self, value: dict[str, Any]) -> Sequence[dict[str, Any]] | None:
        """The events of the Messages API that an answer in one JSON object means. None if `value` is not an answer."""
        ...


class Translator(Protocol):
    def more(self, data: str) -> dict[str, Any] | None:
        """The event that a piece of the stream means if it brings more of an open block and nothing else. None for another piece:
        then `events` must be asked. Most pieces bring more of a block, so this is the short way for them.
        """
        ...

    def events(self, name: str, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        """The events of the Messages API that an event of the stream means. An event that reports an error is returned as it
        is. Raises StreamParse or StreamTransient.
        """
        ...

    def end(self) -> Sequence[dict[str, Any]]:
        """The last events of the answer, when its stream has ended. Empty if the answer has not ended by its own words. May be
        called more than once.
        """
        ...


_PACKAGES = {OPENAI_CHAT: "ralph.api.chat", OPENAI_RESPONSES: "ralph.api.responses"}
"""The package of each dialect. It has a function `dialect`, which gets the base URL."""


def dialect_of(api: str, base_url: str) -> Dialect | None:
    """The dialect of an API for the server at `base_url`. None for the Messages API, so that a run on it imports no dialect."""
    if api not in _PACKAGES:
        return None
    made: Dialect = import_module(_PACKAGES[api]).dialect(base_url)
    return made
