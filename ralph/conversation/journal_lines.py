"""The lines of a journal: JSON with a sequence number and a checksum. Pure: bytes in, records out.

A torn end is not damage: a write that was cut short leaves the beginning of a line. Every other deviation means that
the file was changed afterwards: it is damage, and raises an error. NUL bytes, which a power cut or a snapshot leaves in
place of written data, are damage even at the end. So is a field of the wrong type, which is reported with its path.
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
"""A byte that never occurs in a journal's JSON, because JSON writes it as an escape."""
_HOLDS_NULS = (
    "holds NUL bytes, as a power cut or a restored snapshot leaves them: what came last is lost, and commands may "
    "have run that it does not tell of"
)


class JournalDamage(Exception):  # noqa: N818 - it is what has been found, not an error of ours
    """A line that differs from what was written. `line` is 1-based."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line} {why}")
        self.line = line


class JournalReading(Struct, frozen=True):
    records: tuple[Record, ...]
    """In order: a record's sequence number is its index."""
    torn: bytes = b""
    """The beginning of a line at the end, to be cut off; empty: the last line is whole."""
    lacks_break: bool = False
    """The last record is whole except for its line break, which must be added."""


def line_of(seq: int, record: Record | Recorded) -> bytes:
    """A record's line, with its line break."""
    if isinstance(record, UnknownRecord):
        return sealed({"seq": seq, "kind": record.kind, **record.fields})
    return sealed({"seq": seq, **to_builtins(record, enc_hook=_head_text)})


def _head_text(head: RequestHead) -> str:
    """The text of a request head. All other values in records are plain JSON."""
    return head.json


def sealed(fields: Mapping[str, Any]) -> bytes:
    """The line with these fields and a checksum of them."""
    body = to_json(fields)[:-1]
    return b"%s%s%08x%s\n" % (body, _CHECKSUM, zlib.crc32(body), _CHECKSUM_TAIL)


def begins_kind(beginning: bytes, kind: str) -> bool:
    """Whether these bytes begin a line of that kind."""
    return beginning.partition(b",")[2].startswith(b'"kind":"%s"' % kind.encode())


def read_lines(data: bytes) -> JournalReading:
    """All records, in order. Raises JournalDamage for the first damaged line, and NewerFormatError."""
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
    """The records before the first damaged line, and that damage; None: there is no damage. The result is for display
    only: a session is never resumed from it.

    A torn end is no damage: a journal has one while it is being written. Raises NewerFormatError.
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
        number, kind = fields.pop("seq"), fields.pop("kind")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise JournalDamage(seq + 1, "is no record") from None
    if number != seq:
        raise JournalDamage(seq + 1, "is out of order")
    if not isinstance(kind, str):
        raise JournalDamage(seq + 1, "is no record")
    try:
        return decoded(kind, fields)
    except (ValidationError, UnicodeEncodeError) as error:
        raise JournalDamage(seq + 1, f"makes no sense: {error}") from error


def _json(line: bytes) -> Any:
    """The JSON of a line.

    The standard library decodes only what msgspec refuses (NaN, half a surrogate pair): it is ten times as slow.
    """
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return json.loads(line)


def _is_whole(line: bytes) -> bool:
    body, mark, checksum = line.rpartition(_CHECKSUM)
    return bool(mark) and checksum == b"%08x%s" % (zlib.crc32(body), _CHECKSUM_TAIL)
