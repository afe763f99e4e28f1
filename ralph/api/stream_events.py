"""The types of stream events with their deltas and blocks, and the conversion of decoded JSON to these types. No I/O
happens here.

Unknown events and fields are ignored. Deltas and blocks of unknown types, and parts that must be kept unchanged, stay
dictionaries. The source is the streaming contract of the Messages API, version 2026-10-21.
"""

# No `from __future__ import annotations` here: msgspec would compile each annotation by itself at the first event.

from typing import Annotated, Any

from msgspec import Meta, Struct, convert

from ralph.api.error_body import stream_error
from ralph.values.errors import StreamParse
from ralph.values.strict_json import with_whole_keys

Index = Annotated[int, Meta(ge=0)]
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
    index: Index
    content_block: dict[str, Any]
    """The content block as the server sent it. `check_block` checks its fields."""


class BlockDelta(Struct, frozen=True, tag="content_block_delta"):
    index: Index
    delta: KnownDelta


class OtherBlockDelta(Struct, frozen=True, tag="content_block_delta"):
    """A delta of an unknown type, or of a known type with unexpected fields, as the server sent it."""

    index: Index
    delta: dict[str, Any]


class BlockStop(Struct, frozen=True, tag="content_block_stop"):
    index: Index


class MessageDelta(Struct, frozen=True, tag="message_delta"):
    delta: dict[str, Any]
    usage: Any = None
    """The API's `usage` object, which counts from the beginning of the answer. Any other value is ignored."""
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
    """A complete message, sent as one JSON object by a server that ignored `stream`."""

    content: list[dict[str, Any]]


class TextStart(Struct, frozen=True, tag="text"):
    text: str = ""


class ThinkingStart(Struct, frozen=True, tag="thinking"):
    thinking: str = ""


class CallStart(Struct, frozen=True, tag="tool_use"):
    """The beginning of a tool call. `input` may be missing."""

    id: Name
    name: Name


class OtherStart(Struct, frozen=True):
    type: str


_KNOWN_STARTS = {"text": TextStart, "thinking": ThinkingStart, "tool_use": CallStart}


def stream_event(event: dict[str, Any]) -> StreamEvent | None:
    """Converts an event to its type. None for unknown types, and for types that add nothing to the answer, such as
    pings.

    Raises StreamParse with the path of a wrong field. If the event reports an error of the server, raises that error.
    """
    kind = event.get("type")
    if kind not in _KNOWN_EVENTS:
        # The last two forms come from servers that imitate OpenAI's API.
        if kind == "error" or event.get("object") == "error" or (kind is None and event.get("error")):
            raise stream_error(event)
        return None
    typed: StreamEvent
    if kind != "content_block_delta":
        typed = checked(event, _EventBesideDeltas)
    else:
        try:
            typed = _converted(event, BlockDelta)
        except ValueError:  # an unknown type of delta, or a wrong field, which `OpenBlock.extend` judges
            typed = checked(event, OtherBlockDelta)
    return typed


def check_block(block: dict[str, Any]) -> None:
    """Checks the fields of a block that begins. Raises StreamParse with the path of a wrong field."""
    kind = checked(block, OtherStart).type
    if kind in _KNOWN_STARTS:
        checked(block, _KNOWN_STARTS[kind])


def checked(value: dict[str, Any], kind: Any) -> Any:
    """Converts the object to `kind`, a Struct or a union of Structs. Raises StreamParse if it does not match."""
    try:
        return _converted(value, kind)
    except ValueError as error:  # a ValidationError, or half of a surrogate pair in the type
        raise StreamParse(f"{value.get('type')}: {error}") from None


def _converted(value: dict[str, Any], kind: Any) -> Any:
    """Converts the object to `kind`, ignoring unknown keys. Raises ValueError if it does not match."""
    try:
        return convert(value, kind)
    except UnicodeEncodeError:
        return convert(with_whole_keys(value), kind)
