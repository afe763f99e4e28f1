"""Converts records to the lines of a journal, and lines to records.

A line is a JSON object with a sequence number, the time of writing (not in older ralphs' lines), and a checksum. An
incomplete last line is a write that was cut short. Anything else that deviates, such as NUL bytes at the end or a
field of a wrong type, is JournalDamage.

An unknown kind passes through, and older formats are upgraded first. Content blocks, the API's messages and events
stay dictionaries, whose fields that ralph reads are checked.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Struct, ValidationError, convert, to_builtins

from ralph.conversation import records as kinds
from ralph.conversation.messages import RequestHead, to_json
from ralph.conversation.records import FORMAT, KnownRecord, NewerFormatError, Record, UnknownRecord
from ralph.conversation.secret_spans import spans_field
from ralph.values.answer import Block  # noqa: TC001 - records are read by their hints
from ralph.values.usage import TokenUsage  # noqa: TC001 - records are read by their hints

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ralph.values.redaction import SpansOf

_WRITTEN = b',"at":'
_CHECKSUM = b',"crc":"'
_CHECKSUM_TAIL = b'"}'
_SEAL_BYTES = len(_CHECKSUM) + 8 + len(_CHECKSUM_TAIL)

_NUL = b"\0"
"""JSON writes it as an escape, so no valid journal has one."""
_HOLDS_NULS = (
    "contains NUL bytes, as a power cut or a restored snapshot leaves them: what came last is lost, and commands may "
    "have run that it does not tell of"
)


View = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
"""Takes the kind and the fields of a line."""
Read = Callable[[int, int], bytes]
"""`read(most, offset)` returns at most `most` bytes of a journal, and fewer only at its end."""

FIRST_BYTES = 16 * 1024
"""The size of the first read at an offset, enough for the first or the last lines of most journals."""
CHUNK_BYTES = 256 * 1024
"""The size of the largest read. A chunk of this size stays in the processor's cache while its lines are checked."""


class JournalDamage(Exception):  # noqa: N818 - it is what has been found, not an error of ours
    """A line is not the one that ralph wrote. `line` counts from 1."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line} {why}")
        self.line = line


def line_of(
    seq: int, record: Record | KnownRecord, written_s: float | None = None, spans_of: SpansOf | None = None
) -> bytes:
    """The journal line of a record with its line break. `written_s` is in seconds since 1970. `spans_of` finds the
    secrets, whose places the line has; None if nobody looks for any.
    """
    written = {} if written_s is None else {"at": round(written_s, 3)}
    if isinstance(record, UnknownRecord):
        return sealed({"seq": seq, "kind": record.kind, **record.fields, **written})
    # msgspec cannot convert a request head.
    fields = to_builtins(record, enc_hook=lambda head: head.json)
    return sealed({"seq": seq, **fields, **spans_field(record.kind, fields, spans_of), **written})


def written_at(line: bytes) -> float | None:
    """In seconds since 1970, or None if the line has no time. `line` is undamaged; its line break may be missing."""
    body = line.rstrip(b"\n")[:-_SEAL_BYTES]
    try:
        return float(body.rpartition(_WRITTEN)[2])
    except ValueError:
        return None


def sealed(fields: Mapping[str, Any]) -> bytes:
    """The journal line of these fields, with a checksum of them and a line break."""
    body = to_json(fields)[:-1]
    return b"%s%s%08x%s\n" % (body, _CHECKSUM, zlib.crc32(body), _CHECKSUM_TAIL)


def chunks(read: Read, begin: int, end: int, most: int = FIRST_BYTES) -> Iterator[bytes]:
    """Yields the bytes from `begin` to `end` or the end of the file. Chunks begin with `most` bytes and double up to
    `CHUNK_BYTES`.
    """
    while begin < end and (chunk := read(min(most, end - begin), begin)):
        yield chunk
        begin += len(chunk)
        most = min(2 * most, CHUNK_BYTES)


class _Tail(Struct, frozen=True):
    """The bytes after the last line break."""

    offset: int
    is_whole: bool = False
    """True if it is a complete line without a line break."""
    fault: str | None = None
    """The reason why no interrupted write leaves this behind. None if it is no damage."""


def _tail(read: Read, begin: int, end: int) -> _Tail:
    """Looks at the bytes behind the last line break, of which it never holds more than a chunk."""
    offset = _after_break(read, begin, end)
    checksum, held = 0, b""
    for chunk in chunks(read, offset, end):
        if _NUL in chunk:
            return _Tail(offset, fault=_HOLDS_NULS)
        held += chunk
        # The seal and one byte are held back: that byte may be something else than a line break.
        checksum, held = zlib.crc32(held[: -_SEAL_BYTES - 1], checksum), held[-_SEAL_BYTES - 1 :]
    if _is_sealed(held[:-1], checksum):
        return _Tail(offset, fault="has something else for its line break")
    return _Tail(offset, is_whole=_is_sealed(held, checksum))


def _after_break(read: Read, begin: int, end: int) -> int:
    most = 1
    while begin < end:
        start = max(begin, end - most)
        at = read(end - start, start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end, most = start, max(FIRST_BYTES, min(2 * most, CHUNK_BYTES))
    return begin


class CheckedLines:
    """Checks the lines of a journal without decoding them, in chunks: only the longest line has to fit into memory.

    Yields the index, the offset, the kind and the bytes of each line, without its line break. Raises JournalDamage for
    a wrong checksum. A line that does not begin with its number and kind has the kind "", and `record_of` raises for
    it. An incomplete last line is neither damage nor yielded.
    """

    def __init__(self, read: Read, size: int, number: int = 0, offset: int = 0) -> None:
        """`size` is the offset after the last byte. `number` and `offset` are those of the first line."""
        self._read, self._size = read, size
        self.number = number
        self.end = offset
        """The offset after the last valid line, when the iteration has ended or has met damage."""
        self.lacks_break = False
        """Whether only the line break of the last line is missing."""

    def __iter__(self) -> Iterator[tuple[int, int, str, bytes]]:
        tail = _tail(self._read, self.end, self._size)
        pieces: list[bytes] = []
        for chunk in chunks(self._read, self.end, self._size if tail.is_whole else tail.offset):
            pieces.append(chunk)
            if b"\n" in chunk:
                data = b"".join(pieces)
                yield from self._lines_of(data)
                pieces = [data[data.rindex(b"\n") + 1 :]]
        if tail.fault is not None:
            raise JournalDamage(self.number + 1, tail.fault)
        if tail.is_whole:
            yield from self._lines_of(b"".join(pieces) + b"\n")
            self.end -= 1
            self.lacks_break = True

    def _lines_of(self, data: bytes) -> Iterator[tuple[int, int, str, bytes]]:
        """The loop calls only built-in functions: a store of sessions has hundreds of thousands of lines."""
        first, number, start = self.end, self.number, 0
        view, find, begins = memoryview(data), data.find, data.startswith
        try:
            while (end := find(b"\n", start)) >= 0:
                body = end - _SEAL_BYTES  # before `start` if the line is too short; then the comparison fails
                if data[body:end] != b',"crc":"%08x"}' % zlib.crc32(view[start:body]):
                    raise _unlike_its_checksum(data[start:end], number)
                head = b'{"seq":%d,"kind":"' % number
                kind, behind = start + len(head), start
                if begins(head, start):
                    behind = find(b'"', kind)
                self.end = first + start
                yield number, first + start, data[kind:behind].decode(errors="replace"), data[start:end]
                number += 1
                start = end + 1
        finally:
            self.end, self.number = first + start, number


def record_of(line: bytes, number: int, view: View | None = None) -> Record:
    """Decodes a line. `number` is its index in the journal, from 0. `view` makes the fields safe to show. Raises
    JournalDamage, and NewerFormatError for a newer format.
    """
    if not _is_sealed(line):
        raise _unlike_its_checksum(line, number)
    try:
        fields = _json(line)
        del fields["crc"]
        fields.pop("at", None)
        written, kind = fields.pop("seq"), fields.pop("kind")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise JournalDamage(number + 1, "is not a record") from None
    if written != number:
        raise JournalDamage(number + 1, "is out of order")
    if not isinstance(kind, str):
        raise JournalDamage(number + 1, "is not a record")
    try:
        return decoded(kind, fields if view is None else view(kind, fields))
    except RecursionError:
        raise JournalDamage(number + 1, "is nested too deep to be shown") from None
    except (ValidationError, UnicodeEncodeError) as error:
        raise JournalDamage(number + 1, f"makes no sense: {error}") from error


def _unlike_its_checksum(line: bytes, seq: int) -> JournalDamage:
    return JournalDamage(seq + 1, _HOLDS_NULS if _NUL in line else "does not match its checksum")


def _json(line: bytes) -> Any:
    """Decodes by msgspec, which is ten times as fast as the standard library, but rejects NaN and lone surrogates."""
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return json.loads(line)


def _is_sealed(line: bytes, checksum: int = 0) -> bool:
    """Whether a line ends with the checksum of what is before it. `checksum` is that of an earlier part of the line."""
    body, seal = line[:-_SEAL_BYTES], line[-_SEAL_BYTES:]
    return seal == b"%s%08x%s" % (_CHECKSUM, zlib.crc32(body, checksum), _CHECKSUM_TAIL)


# --- The record types of lines


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
