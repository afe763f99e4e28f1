"""Defines the types of stream events, of their deltas and of their blocks. Converts decoded JSON to these types. No
I/O happens here.

Unknown events and fields are ignored. Deltas and blocks of unknown types stay dictionaries, and so do parts that must
be kept unchanged. The source is the streaming contract of the Messages API, version 2026-10-21. Fields in another form
whose meaning is clear are read too.
"""

# No `from __future__ import annotations` here: msgspec would compile each annotation by itself at the first event.

import re
from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct, convert

from ralph.api.error_body import stream_error
from ralph.values.errors import StreamParse
from ralph.values.strict_json import with_whole_keys

Name = Annotated[str, Meta(min_length=1)]


class TextDelta(Struct, frozen=True, tag="text_delta"):
    text: str


class ThinkingDelta(Struct, frozen=True, tag="thinking_delta"):
    thinking: str


class InputJsonDelta(Struct, frozen=True, tag="input_json_delta"):
    partial_json: str


class SignatureDelta(Struct, frozen=True, tag="signature_delta"):
    signature: str | None = ""


class CitationsDelta(Struct, frozen=True, tag="citations_delta"):
    citation: Any = None


KnownDelta = TextDelta | ThinkingDelta | InputJsonDelta | SignatureDelta | CitationsDelta
KNOWN_DELTAS = ("text_delta", "thinking_delta", "input_json_delta", "signature_delta", "citations_delta")


class MessageStart(Struct, frozen=True, tag="message_start"):
    message: dict[str, Any]


class BlockStart(Struct, frozen=True, tag="content_block_start"):
    index: int
    content_block: dict[str, Any]
    """The content block as the server sent it. `check_block` checks its fields."""


class BlockDelta(Struct, frozen=True, tag="content_block_delta"):
    index: int
    delta: KnownDelta


class OtherBlockDelta(Struct, frozen=True, tag="content_block_delta"):
    """A delta that none of the other types fits, as the server sent it: its type is unknown, or its fields are
    unexpected.
    """

    index: int
    delta: dict[str, Any]


class BlockStop(Struct, frozen=True, tag="content_block_stop"):
    index: int


class MessageDelta(Struct, frozen=True, tag="message_delta"):
    delta: dict[str, Any]
    usage: Any = None
    """The API's `usage` object. Its numbers are totals since the beginning of the answer. A value that is not an
    object is ignored."""
    context_management: Any = None
    input_transformations: Any = None


class MessageStop(Struct, frozen=True, tag="message_stop"):
    pass


_EventBesideDeltas = MessageStart | BlockStart | BlockStop | MessageDelta | MessageStop
_KNOWN_EVENTS = frozenset(
    (
        *("message_start", "message_delta", "message_stop"),
        *("content_block_start", "content_block_delta", "content_block_stop"),
    )
)
StreamEvent = _EventBesideDeltas | BlockDelta | OtherBlockDelta


class WholeMessage(Struct, frozen=True, tag="message"):
    """A complete message in one JSON object. A server sends it if it ignores the field `stream` of the request."""

    content: list[dict[str, Any]] | str | None = None
    """The blocks. A text stands for one text block, as in requests."""


class TextStart(Struct, frozen=True, tag="text"):
    text: str | None = ""


class ThinkingStart(Struct, frozen=True, tag="thinking"):
    thinking: str | None = ""


class CallStart(Struct, frozen=True, tag="tool_use"):
    """The beginning of a tool call. `input` may be missing. A call without an id gets one."""

    name: Name
    id: str | None = None


class OtherStart(Struct, frozen=True):
    type: str


_KNOWN_STARTS = {"text": TextStart, "thinking": ThinkingStart, "tool_use": CallStart}


def in_clear_form(event: dict[str, Any]) -> dict[str, Any]:
    """The event in the form of the contract, if its own form leaves no doubt: an index such as 0.0 or "0", or one that was
    left out because it is 0, and a message or a delta that is null or was left out because it is empty. Otherwise the event
    itself.
    """
    kind = event.get("type")
    name = {"message_start": "message", "message_delta": "delta"}.get(str(kind), "index")
    value = event.get(name)
    if name != "index":
        return event if value is not None else {**event, name: {}}
    if value is None or (type(value) in {float, str} and re.fullmatch(r"[0-9]{1,9}(\.0)?", str(value))):
        return {**event, name: int(float(value or 0))}
    return event


def stream_event(event: dict[str, Any], began: datetime | None = None) -> StreamEvent | None:
    """Converts an event to its type. None for an event of an unknown type, and for one that adds nothing to the
    answer, such as a ping.

    If a field is wrong, raises StreamParse with the field's path. If the event reports an error of the server,
    raises that error. `began` is the time at which the answer began, for `stream_error`.
    """
    kind = event.get("type")
    if kind not in _KNOWN_EVENTS:
        # The last two forms come from servers that imitate OpenAI's API.
        if kind == "error" or event.get("object") == "error" or (kind is None and event.get("error")):
            raise stream_error(event, began)
        return None
    typed: StreamEvent
    if kind != "content_block_delta":
        typed = checked(event, _EventBesideDeltas)
    else:
        try:
            typed = _converted(event, BlockDelta)
        except ValueError:  # an unknown type of delta, or a wrong field, which `StreamAssembler` judges
            typed = checked(event, OtherBlockDelta)
    return typed


def check_block(block: dict[str, Any]) -> None:
    """Checks the fields of a block that begins. If a field is wrong, raises StreamParse with the field's path."""
    kind = checked(block, OtherStart).type
    if kind in _KNOWN_STARTS:
        checked(block, _KNOWN_STARTS[kind])


def checked(value: dict[str, Any], kind: Any) -> Any:
    """Converts the object to `kind`, a Struct or a union of Structs. Raises StreamParse if the object does not have
    this form.
    """
    try:
        return _converted(value, kind)
    except ValueError as error:  # a ValidationError, or half of a surrogate pair in the type
        raise StreamParse(f"{value.get('type')}: {error}") from None


def _converted(value: dict[str, Any], kind: Any) -> Any:
    """Converts the object to `kind`, ignoring unknown keys. Raises ValueError if the object does not have this form."""
    try:
        return convert(value, kind)
    except UnicodeEncodeError:
        return convert(with_whole_keys(value), kind)
