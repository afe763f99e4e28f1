"""The places of secrets in a journal's records. A journal stores texts as they are, because the model gets them again
or a file must match them. The places let secrets be cut whenever a record is shown, also where nobody knows them
any more.

Only the line of a run always has a list, which may be empty. Without one, an older ralph made the run, and only keys
of known forms can be cut.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec import Struct, ValidationError, convert
from msgspec.structs import replace

from ralph.conversation.messages import to_json
from ralph.values.credentials import MIN_SECRET_CHARS
from ralph.values.redaction import OWN_KEYS, Redactor, SpansOf, cut_at
from ralph.values.screen_text import visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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
