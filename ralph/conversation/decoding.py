"""Decodes the JSON of a journal line into its record type. An error names the path of the wrong field. An unknown kind
passes through, and older formats are upgraded first. Content blocks, the API's messages and events stay
dictionaries, whose fields that ralph reads are checked.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct, ValidationError, convert

from ralph.conversation import records as kinds
from ralph.conversation.messages import RequestHead
from ralph.conversation.records import FORMAT, NewerFormatError, Record
from ralph.values.answer import Block  # noqa: TC001 - records are read by their hints
from ralph.values.usage import TokenUsage  # noqa: TC001 - records are read by their hints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


T = TypeVar("T")


def decoded(kind: str, fields: Mapping[str, Any]) -> Record:
    """Raises ValidationError for a wrong field, and NewerFormatError for the first line of a newer format."""
    known = TYPES.get(kind)
    if known is None:
        return kinds.UnknownRecord(kind, dict(fields))
    if known is kinds.SessionRecord:
        format_ = fields.get("format")
        if isinstance(format_, int) and format_ > FORMAT:
            made_by = f"it was made by ralph {fields.get('ralph')} in format {format_}"
            raise NewerFormatError(f"{made_by}; this one reads up to {FORMAT}")
    record: Record = convert(_upgraded(kind, fields), known, dec_hook=_head)
    check = _CHECKS.get(kind)
    if check is not None:
        check(record)
    return record


def _head(_type: type, text: object) -> RequestHead:
    if not isinstance(text, str):
        raise ValueError(f"Expected `str`, got `{type(text).__name__}`")  # noqa: TRY004 - msgspec adds the path
    return RequestHead.of_body(text.encode()[:-1])


# --- Older formats. A fork has the number of the current format, but may contain older records. So each upgrade looks
# at the fields, not at the number.


_FILLED_IN: Mapping[str, Mapping[str, Any]] = {
    "run": {"endpoint": None},  # lacks it in format 1
    "target": {"first": None},  # in an early version of format 2
    "user": {"task": None},  # in formats 1 and 2
    "ended": {"delivered": True},  # in an early version of ralph: the result is treated as delivered
}
"""The fields that older records of a kind lack."""


def _upgraded(kind: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    if kind not in _FILLED_IN:
        return fields
    # A `run` record of format 1 has no target. The name of the model is the name of the target.
    named = {"target": fields["model"]} if kind == "run" and "model" in fields else {}
    return {**named, **_FILLED_IN[kind], **fields}


# --- Types for dictionaries that are stored as they arrived. They contain the fields that ralph reads.


class _Block(Struct, frozen=True):
    type: str


class _Text(Struct, frozen=True):
    text: str


class _ToolUse(Struct, frozen=True):
    id: str
    name: str
    input: dict[str, Any]


class _ToolResult(Struct, frozen=True):
    tool_use_id: str
    content: str | tuple[Block, ...]


class _Message(Struct, frozen=True):
    content: tuple[Block, ...]
    stop_reason: str | None
    usage: dict[str, Any]


class _Attempt(Struct, frozen=True):
    turn: int
    target: str
    status: int | None
    kind: str | None
    error: str | None
    latency_s: int | float
    tokens: TokenUsage
    cost_usd: int | float | None


class _TurnAsked(Struct, frozen=True):
    turn: int
    attempts: int
    took_s: int | float


_BLOCKS: Mapping[str, type[Struct]] = {"text": _Text, "tool_use": _ToolUse, "tool_result": _ToolResult}
_EVENTS: Mapping[str, type[Struct]] = {"attempt": _Attempt, "turn_asked": _TurnAsked}


def _check_blocks(blocks: Iterable[Block], path: str) -> None:
    for number, block in enumerate(blocks):
        kind = block.get("type")
        found = _looked_at(
            block, _BLOCKS.get(kind, _Block) if isinstance(kind, str) else _Block, path, number
        )
        if isinstance(found, _ToolResult) and not isinstance(found.content, str):
            _check_blocks(found.content, f"{path}[{number}].content")


def _check_content(record: Any) -> None:
    if not isinstance(record.content, str):
        _check_blocks(record.content, "$.content")


def _check_user(record: Any) -> None:
    _check_content(record)
    if record.task is not None and not 0 <= record.task <= len(record.content):
        raise ValidationError("More blocks than there are - at `$.task`")


def _check_answer(record: Any) -> None:
    message = _looked_at(record.message, _Message, "$.message")
    _check_blocks(message.content, "$.message.content")
    made = {block["id"] for block in message.content if block["type"] == "tool_use"}
    for number, call_id in enumerate(record.calls):
        if call_id not in made:
            raise ValidationError(f"No tool_use block has this id - at `$.calls[{number}]`")


def _check_target(record: Any) -> None:
    _looked_at(record.cooling, dict[str, datetime], "$.cooling")


def _check_event(record: Any) -> None:
    shape = _EVENTS.get(str(record.event.get("subtype")))
    if shape is not None:
        _looked_at(record.event, shape, "$.event")


_CHECKS: Mapping[str, Callable[[Any], None]] = {
    "target": _check_target,
    "user": _check_user,
    "queued": _check_content,
    "compacted": _check_content,
    "tool_result": _check_content,
    "assistant": _check_answer,
    "event": _check_event,
}


def _looked_at(value: Any, shape: type[T], path: str, number: int | None = None) -> T:
    """The decoded value, whose path is `path`, or which is item `number` of the list there. Raises ValidationError
    with the complete path of the wrong field.
    """
    fields = getattr(shape, "__struct_fields__", None)
    if fields is not None and isinstance(value, dict):
        # A server may send other keys that contain half of a surrogate pair, which msgspec cannot compare.
        value = {name: value[name] for name in fields if name in value}
    try:
        return convert(value, shape)
    except ValidationError as error:
        what, _, inside = str(error).partition(" - at `$")
        place = path if number is None else f"{path}[{number}]"
        raise ValidationError(f"{what} - at `{place}{inside or '`'}") from None


TYPES: Mapping[str, type[Any]] = {
    str(kind.__struct_config__.tag): kind for kind in kinds.KnownRecord.__subclasses__()
}
