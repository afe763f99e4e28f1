"""Finds the files that a text imports by `@path`, as CLAUDE.md, commands and prompts do, but not in code. No I/O happens here."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# A fence of Markdown: three or more backticks or tildes at the beginning of a line, up to its like or to the end.
_FENCED = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n]*\n.*?(?:^[ \t]*\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
# A code span of Markdown: as many backticks before it as behind it, within a paragraph.
_SPAN = re.compile(r"(?<!`)(`+)(?!`)(?:(?!\n[ \t]*\n).)+?(?<!`)\1(?!`)", re.DOTALL)
# `\ ` stands for a space in a name, as in Claude Code.
_NAMED = re.compile(r"(?:^|(?<=\s))@((?:\\ |[^\s\\])+)")
_TRAILING = ".,;:!?)]}>*\"'"
_LIKE_A_PATH = re.compile(r"(\.{0,2}|~)/.|.*\.(md|txt)$", re.IGNORECASE)


def outside_code(text: str) -> str:
    """The text with spaces in place of its code blocks and code spans. The length of the text stays the same."""
    for code in (_FENCED, _SPAN):
        text = code.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    return text


def imported_paths(text: str) -> Iterator[str]:
    """Yields each path that the text imports once, without the punctuation after it."""
    known = set()
    for found in _NAMED.finditer(outside_code(text)):
        name = found[1].replace("\\ ", " ").partition("#")[0].rstrip(_TRAILING)
        if name and name not in known and not name.startswith("@"):
            known.add(name)
            yield name


def is_meant_as_path(name: str) -> bool:
    """Whether a name after `@` is certainly a path. Other names may be a person, or a package such as `@types/node`."""
    return _LIKE_A_PATH.match(name) is not None
