"""Replaces the placeholders in a command's text, for arguments and for the output of shell lines. They are searched for only
in the text of the file, so that an argument cannot add a shell line. No I/O happens here.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.prompt.frontmatter import as_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ralph.prompt.commands import Command

# A block of shell lines, and one line: !`...` at the beginning of a word.
_SHELL = re.compile(
    r"^```!\s*\n(?P<block>.*?)\n?```|(?:^|(?<=\s))!`(?P<line>[^`\n]+)`", re.MULTILINE | re.DOTALL
)
_PLACE = re.compile(
    r"\$ARGUMENTS\[(?P<index>\d+)\]|\$\{?(?P<all>ARGUMENTS)\b\}?|\$(?P<number>\d+)"
    r"|\$\{(?P<fact>CLAUDE_\w+)\}|\$(?P<name>[A-Za-z][\w-]*)"
)
_COUNTED_FROM_1 = re.compile(r"\$1(?!\d)")
_COUNTS_FROM_0 = re.compile(r"\$0(?!\d)|\$ARGUMENTS\[")


class ShellLine(Struct, frozen=True):
    """A shell command in a command's text, which its output replaces in the prompt."""

    command: str


class Expansion(Struct, frozen=True):
    """The text of a command with its arguments, split into plain text and lines to run in a shell."""

    parts: tuple[str | ShellLine, ...]

    @property
    def own_text(self) -> str:
        """The text without shell lines, which alone names files."""
        return "".join(part if isinstance(part, str) else " " for part in self.parts)


def expand(command: Command, arguments: str, facts: Mapping[str, str]) -> Expansion:
    """Inserts the arguments into the command's text. `facts` maps names such as `CLAUDE_SESSION_ID` to their values. Numbered
    placeholders count from 0, and stay without an argument, as in Claude Code. If no placeholder is replaced, the arguments
    are added at the end.
    """
    filling = _Filling(command, arguments, facts)
    parts: list[str | ShellLine] = []
    end = 0
    for found in _SHELL.finditer(command.body):
        parts.append(filling.filled(command.body[end : found.start()]))
        shell = found["block"] if found["block"] is not None else found["line"]
        parts.append(ShellLine(filling.filled(shell).strip()))
        end = found.end()
    parts.append(filling.filled(command.body[end:]))
    if arguments and not filling.has_place:
        parts.append(f"\n\nARGUMENTS: {arguments}")
    return Expansion(tuple(part for part in parts if part))


def may_count_from_1(body: str) -> bool:
    """Whether a command's text has `$1` and not `$0`, as for ralph 0.1.0, which counted from 1."""
    return _COUNTED_FROM_1.search(body) is not None and _COUNTS_FROM_0.search(body) is None


class _Filling:
    def __init__(self, command: Command, arguments: str, facts: Mapping[str, str]) -> None:
        self._arguments = arguments
        self._words = _words(arguments)
        self._facts = facts
        self._names = as_names(command.fields.get("arguments", ()))
        self.has_place = False

    def filled(self, text: str) -> str:
        return _PLACE.sub(self._value, text)

    def _value(self, found: re.Match[str]) -> str:
        if found["fact"] is not None:
            return self._facts.get(found["fact"], found[0])
        if found["all"] is not None:
            value: str | None = self._arguments
        elif found["name"] is not None:
            if found["name"] not in self._names:
                return found[0]
            value = self._word(self._names.index(found["name"])) or ""
        elif found["index"] is not None:
            value = self._word(int(found["index"]))
        else:
            value = self._word(int(found["number"]))
        if value is None:
            return found[0]
        self.has_place = True
        return value

    def _word(self, index: int) -> str | None:
        return self._words[index] if 0 <= index < len(self._words) else None


def _words(arguments: str) -> Sequence[str]:
    """Splits the arguments as a shell does. A text with an unclosed quote, such as `don't`, is split at white space."""
    try:
        return shlex.split(arguments)
    except ValueError:
        return arguments.split()
