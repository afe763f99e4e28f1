"""Reads the frontmatter of a Markdown file: fields between two lines of `---`, in the part of YAML that people use for Claude
Code: scalars, lists, block scalars and nested blocks. Any other line is an error, because it could restrict what may run.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

Field = str | tuple[str, ...]

_FENCE = "---"
_KEY = r"([A-Za-z][\w-]*)[ \t]*:(?:[ \t]+(.*))?$"
_ITEM = r"[ \t]*-[ \t]+(.*)$"
# The parts of a list in brackets: quoted texts, and words that may have a pattern in parentheses.
_PART = r"\"(?:[^\"\\]|\\.)*\"|'[^']*'|(?:[^,(]|\([^)]*\))+"


def split_frontmatter(text: str) -> tuple[dict[str, Field], str]:
    """The fields of the frontmatter, if there is one, and the text after it. The value of a nested block is its text. Raises
    ValueError with the first line that is not supported.
    """
    lines = text.split("\n")
    ends = [index for index, line in enumerate(lines) if index and line.rstrip() == _FENCE]
    if lines[0].rstrip() != _FENCE:
        return {}, text
    if not ends:
        if re.match(_KEY, lines[1] if len(lines) > 1 else ""):
            raise ValueError(f"its head has no end: no line is {_FENCE}")
        return {}, text
    return _fields(lines[1 : ends[0]]), "\n".join(lines[ends[0] + 1 :])


def _fields(lines: Sequence[str]) -> dict[str, Field]:
    fields: dict[str, Field] = {}
    index = 0
    while index < len(lines):
        line = lines[index]
        index += 1
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key = re.match(_KEY, line)
        if key is None or key[1] in fields:
            raise ValueError(f"line {index + 1} of its head is not understood")
        start = index
        while index < len(lines) and not _begins_field(lines[index]):
            index += 1
        written = (key[2] or "").strip()
        below = lines[start:index]
        if written and not all(line[:1].isspace() or line[0] == "]" for line in below if line):
            raise ValueError(f"the value of {key[1]} in its head is not understood: items below a text")
        fields[key[1]] = _value(written, below)
    return fields


def _begins_field(line: str) -> bool:
    """Whether the line begins a field. Otherwise it continues one, as the end of a list in brackets does."""
    return bool(line.strip()) and not line[0].isspace() and line[0] != "]" and re.match(_ITEM, line) is None


def _value(written: str, below: Sequence[str]) -> Field:
    """`written` is the text after the key, and `below` are the lines that follow."""
    if written[:1] in {"|", ">"}:
        return ("\n" if written[0] == "|" else " ").join(line.strip() for line in below).strip()
    items = [re.match(_ITEM, line) for line in below if line.strip()]
    if not written and items and all(items):
        return tuple(_scalar(item[1].strip()) for item in items if item is not None)
    whole = " ".join(filter(None, [written, *(line.strip() for line in below)]))
    if whole.startswith("[") and whole.endswith("]"):
        return tuple(_scalar(part.strip()) for part in re.findall(_PART, whole[1:-1]) if part.strip())
    if not written:
        return "\n".join(below).strip()
    return " ".join([_scalar(written), *(line.strip() for line in below)]).strip()


def _scalar(written: str) -> str:
    if written[:1] == written[-1:] == "'" and len(written) > 1:
        return written[1:-1].replace("''", "'")
    if written[:1] == written[-1:] == '"' and len(written) > 1:
        try:
            return str(json.loads(written))
        except ValueError:
            return written[1:-1]
    return written.partition(" #")[0].rstrip()


def as_names(field: Field) -> tuple[str, ...]:
    """The names in a list, or in a text in which commas or white space separate them."""
    words = (field,) if isinstance(field, str) else field
    return tuple(name for word in words for name in re.findall(r"[^\s,(]+(?:\([^)]*\))?", word))


def as_text(field: Field) -> str:
    """The value of the field as one line of text."""
    return " ".join((field if isinstance(field, str) else ", ".join(field)).split())
