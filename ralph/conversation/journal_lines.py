"""Converts records to the lines of a journal, and lines to records. No I/O happens here.

A line is a JSON object with a sequence number, the time at which it was written, and a checksum. Lines of older
versions of ralph have no time. If the last line is incomplete, a write may have been
cut short, and this is not damage. Any other deviation means that the file was changed after it was written, and
raises JournalDamage. NUL bytes are damage even at the end of the file: a power failure or a restored snapshot can
leave them in place of data. A field of the wrong type is damage too, and the error names the path of the field.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, ValidationError, to_builtins

from ralph.conversation.messages import RequestHead, to_json
from ralph.conversation.records import Record, Recorded, UnknownRecord
from ralph.conversation.secret_spans import spans_field

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ralph.values.redaction import SpansOf

_WRITTEN = b',"at":'
_CHECKSUM = b',"crc":"'
_CHECKSUM_TAIL = b'"}'
_SEAL_BYTES = len(_CHECKSUM) + 8 + len(_CHECKSUM_TAIL)

_NUL = b"\0"
"""A byte that never occurs in a valid journal, because JSON writes it as an escape."""
_HOLDS_NULS = (
    "holds NUL bytes, as a power cut or a restored snapshot leaves them: what came last is lost, and commands may "
    "have run that it does not tell of"
)


View = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
"""Takes the kind and the fields of a line."""


class JournalDamage(Exception):  # noqa: N818 - it is what has been found, not an error of ours
    """A line of a journal differs from the line that ralph wrote. `line` is the number of the line, counted from 1."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line} {why}")
        self.line = line


class JournalReading(Struct, frozen=True):
    records: tuple[Record, ...]
    """The records in order. The sequence number of a record is its index."""
    torn: bytes = b""
    """The bytes of an incomplete last line, which must be removed. Empty if the last line is complete."""
    lacks_break: bool = False
    """True if only the line break at the end of the journal is missing. It must be added."""


def line_of(
    seq: int,
    record: Record | Recorded,
    written_s: float | None = None,
    spans_of: SpansOf | None = None,
) -> bytes:
    """The journal line of a record, including the line break. `written_s` is the time of writing, in seconds since
    1970. None leaves the time out. `spans_of` finds the secrets in a text, and the line says where they are. None if
    nobody looks for secrets.
    """
    written = {} if written_s is None else {"at": round(written_s, 3)}
    if isinstance(record, UnknownRecord):
        return sealed({"seq": seq, "kind": record.kind, **record.fields, **written})
    fields = to_builtins(record, enc_hook=_head_text)
    return sealed({"seq": seq, **fields, **spans_field(record.kind, fields, spans_of), **written})


def written_at(line: bytes) -> float | None:
    """The time at which a line was written, in seconds since 1970. None if the line has no time. `line` must be a
    complete and undamaged line; its line break may be missing.
    """
    body = line.rstrip(b"\n")[:-_SEAL_BYTES]
    try:
        return float(body.rpartition(_WRITTEN)[2])
    except ValueError:
        return None


def _head_text(head: RequestHead) -> str:
    """The JSON text of a request head. msgspec calls this function for values that it cannot convert, and only heads
    are such values.
    """
    return head.json


def sealed(fields: Mapping[str, Any]) -> bytes:
    """The journal line for these fields. It contains a checksum of the fields, and ends with a line break."""
    body = to_json(fields)[:-1]
    return b"%s%s%08x%s\n" % (body, _CHECKSUM, zlib.crc32(body), _CHECKSUM_TAIL)


def begins_kind(beginning: bytes, kind: str) -> bool:
    """Whether `beginning`, the first bytes of a line, belongs to a record of the given kind."""
    return beginning.partition(b",")[2].startswith(b'"kind":"%s"' % kind.encode())


def read_lines(data: bytes) -> JournalReading:
    """Reads all records of a journal, in order.

    Raises JournalDamage if a line is damaged, and NewerFormatError if the journal has a newer format.
    """
    from ralph.conversation.decoding import decoded  # noqa: PLC0415 - a new session reads no line

    *lines, tail = data.split(b"\n")
    lacks_break = _is_whole(tail)
    if lacks_break:
        lines, tail = [*lines, tail], b""
    records = tuple(_read(line, seq, decoded) for seq, line in enumerate(lines))
    if _NUL in tail:
        raise JournalDamage(len(lines) + 1, _HOLDS_NULS)
    if _is_whole(tail[:-1]):  # a complete record and one other byte, which no interrupted write leaves behind
        raise JournalDamage(len(lines) + 1, "has something else for its line break")
    return JournalReading(records, tail, lacks_break)


def readable_part(data: bytes, view: View | None = None) -> tuple[tuple[Record, ...], JournalDamage | None]:
    """The records before the first damaged line. The second value is the damage, or None if no line is damaged. `view`
    makes the fields of each record safe to show. None for the records as they are.

    An incomplete last line is not damage, because a run may be writing it now. The result is only for display: a
    damaged session must not be resumed. Raises NewerFormatError if the journal has a newer format.
    """
    from ralph.conversation.decoding import decoded  # noqa: PLC0415 - a new session reads no line

    *lines, tail = data.split(b"\n")
    if _NUL in tail or _is_whole(tail) or _is_whole(tail[:-1]):
        lines.append(tail)
    records: list[Record] = []
    for seq, line in enumerate(lines):
        try:
            records.append(_read(line, seq, decoded, view))
        except JournalDamage as damage:
            return tuple(records), damage
    return tuple(records), None


class CheckedLines:
    """Checks the lines of a journal without decoding them. The journal is given in chunks of bytes.

    Iteration yields the index, the offset, the kind and the bytes of each line. These bytes do not include the line
    break. If a line does not match its checksum, iteration raises JournalDamage. If a line does not begin with its
    number and its kind, it is yielded with the kind "", and `record_of` raises the error for it. An incomplete last
    line is not damage, and is not yielded.
    """

    def __init__(
        self, chunks: Iterable[bytes], *, skipped: Sequence[str] = (), number: int = 0, offset: int = 0
    ) -> None:
        """Lines of the kinds in `skipped` are checked, but not yielded. `number` and `offset` are the index and the
        offset of the first line.
        """
        self._chunks = chunks
        self._skipped = tuple(f'{kind}"'.encode() for kind in skipped) or (b"\n",)
        self.number = number
        self.end = offset
        """The offset after the last valid line, when the iteration has ended or has met damage. `number` is then the
        index of the next line."""

    def __iter__(self) -> Iterator[tuple[int, int, str, bytes]]:
        pieces: list[bytes] = []
        for chunk in self._chunks:
            pieces.append(chunk)
            if b"\n" in chunk:
                data = b"".join(pieces)
                yield from self._lines_of(data)
                pieces = [data[data.rindex(b"\n") + 1 :]]
        tail = b"".join(pieces)
        if _NUL in tail or _is_whole(tail) or _is_whole(tail[:-1]):
            yield from self._lines_of(tail + b"\n")
            self.end -= 1

    def _lines_of(self, data: bytes) -> Iterator[tuple[int, int, str, bytes]]:
        """Yields the index, the offset, the kind and the bytes of each complete line in `data`. Lines of skipped
        kinds are not yielded. Raises JournalDamage.

        The loop calls only built-in functions, because they are fast, and a store of sessions has hundreds of
        thousands of lines.
        """
        first, number, skipped, start = self.end, self.number, self._skipped, 0
        view, find, begins = memoryview(data), data.find, data.startswith
        try:
            while (end := find(b"\n", start)) >= 0:
                body = end - _SEAL_BYTES  # before `start` if the line is too short; then the comparison fails
                if data[body:end] != b',"crc":"%08x"}' % zlib.crc32(view[start:body]):
                    raise _unlike_its_checksum(data[start:end], number)
                head = b'{"seq":%d,"kind":"' % number
                if not begins(head, start):
                    self.end = first + start
                    yield number, first + start, "", data[start:end]
                elif not begins(skipped, start + len(head)):
                    self.end = first + start
                    kind = start + len(head)
                    yield (
                        number,
                        first + start,
                        data[kind : find(b'"', kind)].decode(errors="replace"),
                        data[start:end],
                    )
                number += 1
                start = end + 1
        finally:
            self.end, self.number = first + start, number


def record_of(line: bytes, number: int, view: View | None = None) -> Record:
    """Decodes a line into a record. `number` is the index of the line in its journal, counted from 0. `view` is that of
    `readable_part`. Raises JournalDamage if the line is damaged, and NewerFormatError if the journal has a newer format.
    """
    from ralph.conversation.decoding import decoded  # noqa: PLC0415 - a new session reads no line

    return _read(line, number, decoded, view)


def _read(
    line: bytes, seq: int, decoded: Callable[[str, Mapping[str, Any]], Record], view: View | None = None
) -> Record:
    if not _is_whole(line):
        raise _unlike_its_checksum(line, seq)
    try:
        fields = _json(line)
        del fields["crc"]
        fields.pop("at", None)
        number, kind = fields.pop("seq"), fields.pop("kind")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise JournalDamage(seq + 1, "is no record") from None
    if number != seq:
        raise JournalDamage(seq + 1, "is out of order")
    if not isinstance(kind, str):
        raise JournalDamage(seq + 1, "is no record")
    try:
        return decoded(kind, fields if view is None else view(kind, fields))
    except RecursionError:
        raise JournalDamage(seq + 1, "is nested too deep to be shown") from None
    except (ValidationError, UnicodeEncodeError) as error:
        raise JournalDamage(seq + 1, f"makes no sense: {error}") from error


def _unlike_its_checksum(line: bytes, seq: int) -> JournalDamage:
    return JournalDamage(seq + 1, _HOLDS_NULS if _NUL in line else "does not match its checksum")


def _json(line: bytes) -> Any:
    """Decodes the JSON of a line. msgspec is ten times as fast as the standard library, but rejects NaN and lone
    surrogates. The standard library decodes only the lines that msgspec rejects.
    """
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return json.loads(line)


def _is_whole(line: bytes) -> bool:
    body, mark, checksum = line.rpartition(_CHECKSUM)
    return bool(mark) and checksum == b"%08x%s" % (zlib.crc32(body), _CHECKSUM_TAIL)
