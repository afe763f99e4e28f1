"""The form of a chunk that brings a piece of text, thinking or arguments and nothing else, as nearly all chunks do. JSON of
one form is read faster than any JSON. The fields are all those that `ChatTranslator` reads. No I/O happens here.
"""

# No `from __future__ import annotations` here: msgspec would compile each annotation by itself.

from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.json import Decoder

_Empty = Literal[""] | None


class PlainFunction(Struct, frozen=True):
    arguments: str
    name: _Empty = None


class PlainCall(Struct, frozen=True):
    """A piece of a call that has begun, so that it needs neither id nor name."""

    function: PlainFunction
    index: int | None = None
    id: _Empty = None
    extra_content: None = None


class PlainDelta(Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[PlainCall] | None = None
    reasoning_details: Annotated[list[None], Meta(max_length=0)] | None = None
    refusal: _Empty = None
    function_call: None = None


class PlainChoice(Struct, frozen=True):
    delta: PlainDelta
    index: Literal[0] | None = 0
    finish_reason: _Empty = None
    usage: None = None


class PlainChunk(Struct, frozen=True):
    choices: tuple[PlainChoice]
    type: str = ""
    usage: None = None
    error: None = None
    x_groq: None = None


PLAIN_CHUNK = Decoder(PlainChunk)
