"""Removes the quotes from the words of a shell command, and marks the parts of words that are known only at run time."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.permissions.patterns import ANY, expanded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Part = str | None
"""A known text, or `ANY` for a text that is known only at run time."""

_ESCAPES = dict(zip("ntrabeEfv", "\n\t\r\a\b\x1b\x1b\f\v", strict=True)) | {each: each for each in "\\'\"?"}
# bash(1), QUOTING: the escapes of $'...'.
_ANSI = re.compile(
    r"\\(?:x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|([0-7]{1,3})|c(.)|(.))", re.DOTALL
)
_MOST_CHOICES = 500
_IN_QUOTES = re.compile(r'\\([$`"\\\n])')


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
        return self.parts == (ANY,) and not (self.has_glob or self.choices or self.is_stream)

    def elements(self) -> Iterator[Part]:
        for part in self.parts:
            if part is ANY:
                yield ANY
            else:
                yield from part


_BARE = frozenset("word number variable_name special_variable_name extglob_pattern regex [ ]".split())
"""The types of syntax nodes that stand for text outside quotes."""

_QUOTED = frozenset("string raw_string ansi_c_string translated_string".split())
_VARIABLE = re.compile(r"(?:\"?)\$(?:\{(?=\w+\}))?([A-Za-z_]\w*)\}?\"?")
_MANY = re.compile(rb"\$\{?!?(?:\w+\[)?@")

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


def word_of(node: Any, source: bytes) -> Word:
    """Makes the word for a node of the syntax tree."""
    raw = source[node.start_byte : node.end_byte].decode("utf-8", "replace")
    bare = "".join(_bare_texts(node, source))
    has_glob = re.search(r"[*?]|\[.*\]", bare, re.DOTALL) is not None
    # The shell may expand the word to several, because of `{a,b}` or `{1..3}`.
    if any(child.type == "brace_expression" for child in node.children) or (
        "{" in bare and ("," in bare or ".." in bare)
    ):
        done, rest = expanded(re.sub(r"[\"'\\]", "", raw), _MOST_CHOICES)
        return Word((ANY,), has_glob=has_glob, choices=(*done, *rest))
    is_known = not any("expansion" in one.type or "substitution" in one.type for one in _below(node))
    is_glob = is_known and re.search(r"[*?\[]", bare) is not None
    parts = tuple(_joined(_parts(node, source)))
    is_stream = node.type == "process_substitution"
    variable = _VARIABLE.fullmatch(raw)
    name = variable[1] if variable else ""
    return Word(parts, is_glob, has_glob, is_one=_is_one(node, source), variable=name, is_stream=is_stream)


def _is_one(node: Any, source: bytes) -> bool:
    """Whether no part of a word can become several words. `"$@"` and `"${x[@]}"` can although they are in quotes."""
    if node.type in _QUOTED:
        return _MANY.search(source[node.start_byte : node.end_byte]) is None
    if node.type in ("concatenation", "command_name"):
        return all(_is_one(child, source) for child in node.children)
    return node.type in _BARE or node.type == "process_substitution"


def _joined(parts: Iterable[Part]) -> Iterator[Part]:
    text = ""
    for part in parts:
        if part is not ANY:
            text += part
            continue
        if text:
            yield text
        text = ""
        yield ANY
    if text:
        yield text


def _parts(node: Any, source: bytes) -> Iterator[Part]:
    raw = source[node.start_byte : node.end_byte].decode("utf-8", "replace")
    match node.type:
        case kind if kind in _BARE:
            yield from _unquoted(raw)
        case "raw_string":
            yield raw[1:-1]
        case "ansi_c_string":
            yield decoded_escapes(raw[2:-1])
        case "string" | "translated_string":
            yield from _quoted(node, source)
        case "concatenation" | "command_name":
            yield from _in_order(node, source)
        case _:
            yield ANY


def _in_order(node: Any, source: bytes) -> Iterator[Part]:
    """The parts of a word of several nodes. Neighbours outside quotes are read as one text: `[a]` consists of three nodes."""
    bare = at = node.start_byte
    for child in node.children:
        if child.type not in _BARE:
            yield from _unquoted(source[bare : child.start_byte].decode("utf-8", "replace"))
            yield from _parts(child, source)
            bare = child.end_byte
        at = child.end_byte
    yield from _unquoted(source[bare : max(at, node.end_byte)].decode("utf-8", "replace"))


def _quoted(node: Any, source: bytes) -> Iterator[Part]:
    """The parts of a text in double quotes. Text that lies between two syntax nodes is included."""
    begin = source.index(b'"', node.start_byte) + 1
    end = node.end_byte - 1
    string = node if node.type == "string" else next(iter(node.named_children), node)
    at = begin
    for child in string.named_children:
        if child.type == "string_content":
            continue
        yield _IN_QUOTES.sub(_kept, source[at : child.start_byte].decode("utf-8", "replace"))
        yield ANY
        at = child.end_byte
    yield _IN_QUOTES.sub(_kept, source[at:end].decode("utf-8", "replace"))


def _kept(escape: re.Match[str]) -> str:
    return "" if escape[1] == "\n" else escape[1]


def _unquoted(raw: str) -> Iterator[Part]:
    """Yields the literal parts of an unquoted text, without backslashes, and ANY for a wildcard, such as `*` or `[ab]`."""
    for piece in re.findall(r"\\.|[*?]|\[[^\]]*\]|.", raw, re.DOTALL):
        if piece[0] == "\\" and len(piece) > 1:
            yield "" if piece[1] == "\n" else piece[1]
        elif piece in ("*", "?") or (piece[0] == "[" and len(piece) > 1):
            yield ANY
        else:
            yield piece


def decoded_escapes(raw: str) -> str:
    """The text that `$'...'` stands for, whose content is `raw`."""

    def char(found: re.Match[str]) -> str:
        code, small, large, octal, control, letter = found.groups()
        if code or small or large:
            number = int(code or small or large, 16)
            return chr(number) if number < 0x110000 else ""
        if octal:
            return chr(int(octal, 8) & 0xFF)
        if control:
            return chr(ord(control) & 0x1F)
        return _ESCAPES.get(letter, "\\" + letter)

    return _ANSI.sub(char, raw).split("\0")[0]


def _below(node: Any) -> Iterator[Any]:
    yield node
    for child in node.children:
        yield from _below(child)


def _bare_texts(node: Any, source: bytes) -> Iterator[str]:
    if node.type in ("concatenation", "command_name"):
        for child in node.children:
            yield from _bare_texts(child, source)
    elif node.type in _BARE:
        raw = source[node.start_byte : node.end_byte].decode("utf-8", "replace")
        yield re.sub(r"\\.", "", raw, flags=re.DOTALL)
