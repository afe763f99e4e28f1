"""The words of a shell command without their quotes, in which the parts are marked that are known only at run time."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.permissions.patterns import ANY, expanded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Part = str | None
"""A known text, or `ANY` for a text that is known only at run time."""

_ESCAPES = dict(zip("ntrabeEfv", "\n\t\r\a\b\x1b\x1b\f\v", strict=True)) | {each: each for each in "\\'\"?"}
# bash(1), QUOTING: the escapes of $'...'. Of `\x{41}`, the manual says nothing.
_ANSI = re.compile(
    r"\\(?:x(?:\{([0-9A-Fa-f]*)\}?|([0-9A-Fa-f]{1,2}))|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|([0-7]{1,3})|c(\\\\|.)|(.))",
    re.DOTALL,
)
_MOST_CHOICES = 500


class Word(Struct, frozen=True):
    parts: tuple[Part, ...]
    is_glob: bool = False
    """True if every unknown part is a file name pattern, such as `*` in `*.py`."""
    has_glob: bool = False
    """True if a part outside quotes is a file name pattern."""
    choices: tuple[str, ...] = ()
    """The words into which the shell expands the braces of this word, without quotes."""
    is_one: bool = False
    """True if it stays one word, because each unknown part is a file name pattern or in quotes."""
    variable: str = ""
    """The name of the variable whose value the word is."""
    is_stream: bool = False
    """True for `<(...)`, from which a program reads what another one writes."""

    @property
    def text(self) -> str | None:
        """The word, or None if a part of it is unknown."""
        return None if ANY in self.parts else "".join(part or "" for part in self.parts)

    @property
    def known(self) -> str:
        """The known parts of the word, joined."""
        return "".join(part or "" for part in self.parts)

    @property
    def is_unknown(self) -> bool:
        """Whether the word is known only at run time, with no part of it known before."""
        return self.parts == (ANY,) and self.is_any

    @property
    def is_any(self) -> bool:
        """Whether what is not known of the word is the value of a variable or the output of a command."""
        return not (self.is_glob or self.has_glob or self.choices or self.is_stream)

    def elements(self) -> Iterator[Part]:
        for part in self.parts:
            if part is ANY:
                yield ANY
            else:
                yield from part


ONE, SEVERAL = "\0", "\1"
"""They stand in a text for a part that is known only at run time, and for one that the shell may split into several words."""
# Characters that are literal in quotes. There, others for private use stand for them.
_HIDDEN = {ord(char): 0xE000 + ord(char) for char in "*?[]{},"}
_SHOWN = {hidden: char for char, hidden in _HIDDEN.items()}
_VARIABLE = re.compile(r"\"?\$(?:\{(?=\w+\}))?([A-Za-z_]\w*)\}?\"?")
_PART = re.compile(r"[\0\1*?]|\[[^\]]*\]")

UNKNOWN = Word((ANY,))


def plain(text: str) -> Word:
    return Word((text,))


def name_of(words: Sequence[Word]) -> str | None:
    """The name of a command without its directories. None if the name is known only at run time."""
    if not words:
        return ""
    last = words[0].parts[-1] if words[0].parts else ""
    known = words[0].text
    if known is not None:
        return known.rpartition("/")[2]
    return last.rpartition("/")[2] if last and "/" in last else None


def hidden(text: str, only: str = "") -> str:
    """A text in quotes, for `word_of`. `only` is the one character that is literal, if not all are."""
    return text.replace(only, chr(_HIDDEN[ord(only)])) if only else text.translate(_HIDDEN)


def word_of(marked: str, raw: str, *, is_assigned: bool = False) -> Word:
    """Makes a word from its text without quotes, as it was `hidden` and with marks in it. `raw` is how it is written. The shell does
    not expand braces and patterns in an assigned value.
    """
    closed = marked.rfind("]") + 1  # behind it, an opening bracket begins no pattern
    has_glob = re.search("[*?]", marked) is not None or -1 < marked.find("[") < closed
    if "{" in marked and ("," in marked or ".." in marked) and not is_assigned:
        done, rest = expanded(marked.replace(SEVERAL, ONE), _MOST_CHOICES)
        choices = tuple(one.translate(_SHOWN) for one in (*done, *rest))
        return Word((ANY,), has_glob=has_glob, choices=choices)
    parts = [
        part
        for one in _PART.split(marked[:closed] + hidden(marked[closed:], "["))
        for part in (ANY, one.translate(_SHOWN))
    ][1:]
    variable = _VARIABLE.fullmatch(raw)
    return Word(
        tuple(part for part in parts if part != ""),
        is_glob=re.search(r"[\0\1]", marked) is None
        and re.search(r"[*?\[]", marked) is not None
        and not is_assigned,
        has_glob=has_glob,
        is_one=SEVERAL not in marked and not is_assigned,
        variable=variable[1] if variable else "",
        is_stream=marked == ONE and raw[:2] in ("<(", ">("),
    )


def decoded_escapes(raw: str) -> str:
    """The text that `$'...'` stands for, whose content is `raw`. Escapes name bytes, of which several may be one character."""

    def char(found: re.Match[str]) -> str:
        braced, code, small, large, octal, control, letter = found.groups()
        if small or large:
            number = int(small or large, 16)
            return chr(number) if number < 0xD800 or 0xE000 <= number < 0x110000 else "\ufffd"
        if octal:
            byte = int(octal, 8) & 0xFF
        elif control:
            byte = 0x7F if control == "?" else ord(control[0]) & 0x1F
        elif letter:
            return _ESCAPES.get(letter, "\\" + letter)
        else:
            byte = int(code or braced or "0", 16) & 0xFF
        return chr(byte) if byte < 0x80 else chr(0xDC00 + byte)  # as `surrogateescape` writes a byte

    def characters(found: re.Match[str]) -> str:
        return found[0].encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")

    return re.sub(r"[\udc80-\udcff]+", characters, _ANSI.sub(char, raw).split("\0")[0])
