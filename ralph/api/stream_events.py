"""Types of the stream's events, their deltas and the blocks they start. Pure: a decoded object in, a typed one out.

Unknown events and fields are ignored; deltas and blocks of an unknown kind are passed on as they came. What must
be kept verbatim stays a plain object.
Source: the Messages API's streaming contract, version 2026-10-21.
"""

from __future__ import annotations

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
    """The block as it came; `check_block` checks its fields."""


class BlockDelta(Struct, frozen=True, tag="content_block_delta"):
    index: Index
    delta: KnownDelta


class OtherBlockDelta(Struct, frozen=True, tag="content_block_delta"):
    """A delta of an unknown kind, or of a known kind with other fields, unchanged."""

    index: Index
    delta: dict[str, Any]


class BlockStop(Struct, frozen=True, tag="content_block_stop"):
    index: Index


class MessageDelta(Struct, frozen=True, tag="message_delta"):
    delta: dict[str, Any]
    usage: Any = None
    """Cumulative counts. Anything but an object is ignored."""
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
    """The answer of a server that ignored `stream`."""

    content: list[dict[str, Any]]


class TextStart(Struct, frozen=True, tag="text"):
    text: str = ""


class ThinkingStart(Struct, frozen=True, tag="thinking"):
    thinking: str = ""


class CallStart(Struct, frozen=True, tag="tool_use"):
    """The start of a call. Its `input` may be missing."""

    id: Name
    name: Name


class OtherStart(Struct, frozen=True):
    type: str


_KNOWN_STARTS = {"text": TextStart, "thinking": ThinkingStart, "tool_use": CallStart}


def stream_event(event: dict[str, Any]) -> StreamEvent | None:
    """The typed event; None: an event of this kind adds nothing to the answer.

    Raises StreamParse, which names the path of the wrong field. For an error event, raises the error that it reports.
    """
    kind = event.get("type")
    if kind not in _KNOWN_EVENTS:
        # The last two are the shapes of OpenAI's clones.
        if kind == "error" or event.get("object") == "error" or (kind is None and event.get("error")):
            raise stream_error(event)
        return None
    typed: StreamEvent
    if kind != "content_block_delta":
        typed = checked(event, _EventBesideDeltas)
    else:
        try:
            typed = _converted(event, BlockDelta)
        except ValueError:  # of another kind, or one that its block may refuse
            typed = checked(event, OtherBlockDelta)
    return typed


def check_block(block: dict[str, Any]) -> None:
    """Check the fields of a block that begins. Raises StreamParse, which names the path inside the block."""
    kind = checked(block, OtherStart).type
    if kind in _KNOWN_STARTS:
        checked(block, _KNOWN_STARTS[kind])


def checked(value: dict[str, Any], kind: Any) -> Any:
    """Converts the object to `kind`, a Struct or a union of Structs. Raises StreamParse if it does not fit."""
    try:
        return _converted(value, kind)
    except ValueError as error:  # a ValidationError, or half a character in a kind
        raise StreamParse(f"{value.get('type')}: {error}") from None


def _converted(value: dict[str, Any], kind: Any) -> Any:
    """Converts the object to `kind`; unknown keys are ignored. Raises ValueError."""
    try:
        return convert(value, kind)
    except UnicodeEncodeError:
        return convert(with_whole_keys(value), kind)
