"""Converts records to the lines of a journal, and lines to records.

A line is a JSON object with a sequence number, the time of writing (not in older ralphs' lines), and a checksum. An
incomplete last line is a write that was cut short. Anything else that deviates, such as NUL bytes at the end or a
field of a wrong type, is JournalDamage.

An unknown kind passes through, and older formats are upgraded first. Content blocks, the API's messages and events
stay dictionaries, whose fields that ralph reads are checked.

A journal stores texts as they are, because the model gets them again or a file must match them. A line therefore names
the places of secrets in its record, so that they can be cut whenever a record is shown, also where nobody knows them any
more. Only the line of a run always has a list, which may be empty. Without one, an older ralph made the run, and only
keys of known forms can be cut.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Struct, ValidationError, convert, to_builtins
from msgspec.structs import replace

from ralph.conversation import records as kinds
from ralph.conversation.messages import RequestHead, to_json
from ralph.conversation.records import FORMAT, KnownRecord, NewerFormatError, Record, UnknownRecord
from ralph.values.answer import Block  # noqa: TC001 - records are read by their hints
from ralph.values.credentials import MIN_SECRET_CHARS
from ralph.values.redaction import OWN_KEYS, Redactor, SpansOf, cut_at
from ralph.values.screen_text import visible
from ralph.values.usage import TokenUsage  # noqa: TC001 - records are read by their hints

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

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


# --- The places of secrets

FIELD = "secrets"
"""The field of a line with its places."""
_HEAD = "head"
"""A request head is JSON in a string. Its places are those in the object."""
_OF_DIRECTORIES = frozenset({"session", "moved"})
"""Records of ids, times and directories, which programs need as they are."""
_MARKED = f'"{FIELD}":[['.encode()
_ALWAYS_HAS_FIELD = "run"
_OWN_WORD = r"[a-z_]{1,40}"


class SecretSpan(Struct, frozen=True, array_like=True, omit_defaults=True):
    """The place of one secret, in code points of the decoded string."""

    path: tuple[str | int, ...]
    """Names of members and indexes of items. A member with a secret in its name is given by its index."""
    offset: int
    length: int
    is_in_name: bool = False
    """Whether the secret is in the name of the last member, whose index ends the path."""


def spans_field(kind: str, fields: Mapping[str, Any], spans_of: SpansOf | None) -> dict[str, Any]:
    """The field with the places. Empty if the line needs none. `spans_of` is None if nobody looks for secrets."""
    if spans_of is None or kind in _OF_DIRECTORIES:
        return {}
    spans = _spans_in(_with_open_head(fields), spans_of)
    return {FIELD: spans} if spans or kind == _ALWAYS_HAS_FIELD else {}


def _spans_in(record: Any, spans_of: SpansOf) -> list[list[Any]]:
    found: list[list[Any]] = []
    waiting: list[tuple[Any, tuple[str | int, ...]]] = [(record, ())]  # a model may nest values deep
    while waiting:
        value, path = waiting.pop()
        if isinstance(value, str):
            found += [[path, begin, end - begin] for begin, end in spans_of(value)]
        elif isinstance(value, dict):
            for index, (name, item) in enumerate(value.items()):
                in_name = spans_of(name)
                found += [[(*path, index), begin, end - begin, True] for begin, end in in_name]
                if not _is_media(value, name):
                    waiting.append((item, (*path, index if in_name else name)))
        elif isinstance(value, list | tuple):
            waiting += [(item, (*path, index)) for index, item in enumerate(value)]
    return found


def marked_secrets(line: bytes) -> set[str]:
    """The secrets at the recorded places of a line. Empty if the line cannot be read."""
    view = RecordView(Redactor())
    if _MARKED in line:
        with suppress(ValueError):
            fields = json.loads(line)
            view(fields.get("kind", ""), fields)
    return view.found


class RecordView:
    """Makes records safe to show: cuts the secrets at the recorded places, those that `redactor` knows, and all that
    looks like a key. Control characters hide none.
    """

    def __init__(self, redactor: Redactor) -> None:
        self.redactor = redactor
        self.found: set[str] = set()
        """The secrets at the recorded places. A commit on the same page may contain them too."""
        self.has_unmarked = False
        """Whether an older ralph made one of the runs."""

    def __call__(self, kind: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fields without secrets. Raises ValidationError for a place that is not in the record."""
        if kind in _OF_DIRECTORIES:
            return fields
        self.has_unmarked = self.has_unmarked or (kind == _ALWAYS_HAS_FIELD and FIELD not in fields)
        cut: Any = _with_open_head({name: item for name, item in fields.items() if name != FIELD})
        if FIELD in fields:
            cut = self._cut(cut, convert(fields[FIELD], tuple[SecretSpan, ...]))
        # One search over all texts of a record takes a fraction of the time of a search in each, and finds the same:
        # no secret needs more than its own text.
        texts = "\n".join(_texts_in(cut))
        clean = cut if self.redactor.redact_all(texts) == texts else self._clean(cut)
        return (
            {**clean, _HEAD: to_json(clean[_HEAD]).decode()} if isinstance(clean.get(_HEAD), dict) else clean
        )

    def _cut(self, value: Any, spans: Sequence[SecretSpan]) -> Any:
        if not spans:
            return value
        if isinstance(value, str) and not any(one.path for one in spans):
            return self._without(value, spans)
        if isinstance(value, dict):
            items: list[tuple[str | int, str, Any]] = [(name, name, item) for name, item in value.items()]
        elif isinstance(value, list | tuple):
            items = [(index, "", item) for index, item in enumerate(value)]
        else:
            raise _misplaced()
        own: dict[str | int, list[SecretSpan]] = {}
        for one in spans:
            if not one.path:
                raise _misplaced()
            own.setdefault(one.path[0], []).append(one)
        cut = []
        for index, (key, name, item) in enumerate(items):
            its = [*own.pop(key, ()), *(own.pop(index, ()) if key != index else ())]
            below = [replace(one, path=one.path[1:]) for one in its]
            shown = self._without(name, [one for one in below if one.is_in_name and not one.path])
            cut.append((shown, self._cut(item, [one for one in below if not one.is_in_name or one.path])))
        if own:
            raise _misplaced()
        return dict(cut) if isinstance(value, dict) else [item for _, item in cut]

    def _without(self, text: str, spans: Sequence[SecretSpan]) -> str:
        places = sorted((one.offset, one.offset + one.length) for one in spans)
        ends = [0, *(end for _, end in places)]
        if any(
            not end <= begin < its_end <= len(text)
            for end, (begin, its_end) in zip(ends, places, strict=False)
        ):
            raise _misplaced()
        for begin, end in places:
            secret = visible(text[begin:end])
            if len(secret) >= MIN_SECRET_CHARS:
                self.found.add(secret)
        return cut_at(text, places)

    def _clean(self, value: Any) -> Any:
        redact = self.redactor.redact_all
        if isinstance(value, str):
            return redact(value)
        if isinstance(value, list | tuple):
            return [self._clean(item) for item in value]
        if isinstance(value, dict):
            return {
                redact(name): item if _is_kept(value, name) else self._clean(item)
                for name, item in value.items()
            }
        return value


def _texts_in(value: Any) -> list[str]:
    """Strings and names of members, but no bytes of images."""
    texts: list[str] = []
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, dict):
            texts += value
            is_media = value.get("type") == "base64"
            waiting += [item for name, item in value.items() if not (is_media and _is_media(value, name))]
        elif isinstance(value, list | tuple):
            waiting += value
    return texts


def _with_open_head(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    head = fields.get(_HEAD)
    if not isinstance(head, str):
        return fields
    try:
        return {**fields, _HEAD: json.loads(head)}
    except ValueError:  # the decoder tells what is wrong
        return fields


def _is_media(value: Mapping[str, Any], name: str) -> bool:
    return name == "data" and value.get("type") == "base64"


def _is_kept(value: Mapping[str, Any], name: str) -> bool:
    item = value[name]
    is_own = name in OWN_KEYS and isinstance(item, str) and re.fullmatch(_OWN_WORD, item) is not None
    return is_own or _is_media(value, name)


def _misplaced() -> ValidationError:
    return ValidationError(f"No text at the place of a secret - at `$.{FIELD}`")
