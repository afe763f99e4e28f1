"""A journal's lines: JSON with a number and a checksum, written whole or not at all. Pure: bytes in, records out.

What is torn at the end is told apart from what is damaged: a write that was cut short leaves the beginning of a
line, anything else was changed by somebody. NUL bytes are what a power cut or a snapshot leaves of data that was written
and announced: damage, at the end too. Damage is an error, never a guess.
A field that is not as the type of its record says is damage too, told with its path.
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, ValidationError, to_builtins

from ralph.conversation.messages import RequestHead, to_json
from ralph.conversation.records import Record, Recorded, UnknownRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_CHECKSUM = b',"crc":"'
_CHECKSUM_TAIL = b'"}'


_NUL = b"\0"
"""JSON has no such byte: it is written as an escape."""
_HOLDS_NULS = (
    "holds NUL bytes, as a power cut or a restored snapshot leaves them: what came last is lost, and commands may "
    "have run that it does not tell of"
)


class JournalDamage(Exception):  # noqa: N818 - it is what has been found, not an error of ours
    """A line that is not as it was written. `line` counts from 1."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line} {why}")
        self.line = line


class JournalReading(Struct, frozen=True):
    records: tuple[Record, ...]
    """In their order: a record's number is its place, from 0 without a gap."""
    torn: bytes = b""
    """The beginning of a line at the end, to be cut off; empty: the journal ends with a whole line."""
    lacks_break: bool = False
    """The last record is whole but for its line break, which is to be written."""


def line_of(seq: int, record: Record | Recorded) -> bytes:
    """The line with its line break."""
    if isinstance(record, UnknownRecord):
        return sealed({"seq": seq, "kind": record.kind, **record.fields})
    return sealed({"seq": seq, **to_builtins(record, enc_hook=_head_text)})


def _head_text(head: RequestHead) -> str:
    """The one value in a record that is no JSON."""
    return head.json


def sealed(fields: Mapping[str, Any]) -> bytes:
    """The line of these fields, with its checksum."""
    body = to_json(fields)[:-1]
    return b"%s%s%08x%s\n" % (body, _CHECKSUM, zlib.crc32(body), _CHECKSUM_TAIL)


def begins_kind(beginning: bytes, kind: str) -> bool:
    """Whether this is the beginning of a line of that kind."""
    return beginning.partition(b",")[2].startswith(b'"kind":"%s"' % kind.encode())


def read_lines(data: bytes) -> JournalReading:
    """Every record, in order. Raises JournalDamage for the first line that is not as it was written, and
    NewerFormatError.
    """
    from ralph.conversation.decoding import decoded  # noqa: PLC0415 - a new session reads no line

    *lines, tail = data.split(b"\n")
    lacks_break = _is_whole(tail)
    if lacks_break:
        lines, tail = [*lines, tail], b""
    records = tuple(_read(line, seq, decoded) for seq, line in enumerate(lines))
    if _NUL in tail:
        raise JournalDamage(len(lines) + 1, _HOLDS_NULS)
    if _is_whole(tail[:-1]):  # and one byte more, where no write would have ended
        raise JournalDamage(len(lines) + 1, "has something else for its line break")
    return JournalReading(records, tail, lacks_break)


def readable_part(data: bytes) -> tuple[tuple[Record, ...], JournalDamage | None]:
    """The records up to the first line that is not as it was written, and what is wrong with that one.

    For people who look, never for resuming: a torn end is what a journal has while it is written, and is no
    damage. Raises NewerFormatError.
    """
    from ralph.conversation.decoding import decoded  # noqa: PLC0415 - a new session reads no line

    *lines, tail = data.split(b"\n")
    if _NUL in tail or _is_whole(tail) or _is_whole(tail[:-1]):
        lines.append(tail)
    records: list[Record] = []
    for seq, line in enumerate(lines):
        try:
            records.append(_read(line, seq, decoded))
        except JournalDamage as damage:
            return tuple(records), damage
    return tuple(records), None


def _read(line: bytes, seq: int, decoded: Callable[[str, Mapping[str, Any]], Record]) -> Record:
    if not _is_whole(line):
        raise JournalDamage(seq + 1, _HOLDS_NULS if _NUL in line else "does not match its checksum")
    try:
        fields = _json(line)
        del fields["crc"]
        number, kind = fields.pop("seq"), str(fields.pop("kind"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise JournalDamage(seq + 1, "is no record") from None
    if number != seq:
        raise JournalDamage(seq + 1, "is out of order")
    try:
        return decoded(kind, fields)
    except ValidationError as error:
        raise JournalDamage(seq + 1, f"makes no sense: {error}") from error


def _json(line: bytes) -> Any:
    """Ten times as fast as the standard library alone, which takes what JSON does not have: NaN, half a surrogate pair."""
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return json.loads(line)


def _is_whole(line: bytes) -> bool:
    body, mark, checksum = line.rpartition(_CHECKSUM)
    return bool(mark) and checksum == b"%08x%s" % (zlib.crc32(body), _CHECKSUM_TAIL)
