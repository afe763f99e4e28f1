"""Patterns in rules, and the words of a shell command that they are compared with: without their quotes, with the parts marked that
are known only at run time, such as `$x`. So there are two questions: whether a text matches a pattern in every case, and whether
it may match. Also says what a path pattern means. No I/O happens here.
"""

from __future__ import annotations

import posixpath
import re
from itertools import chain, product, takewhile
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.permissions.rule import Effect, RuleError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from ralph.permissions.judge import RulePlaces
    from ralph.permissions.rule import PermissionRule

ANY = None
"""In a pattern, a wildcard. In a text, an unknown part. It stands for any text, including the empty text."""

NAME = ""
"""An unknown part of a text that contains no slash, such as `*` in a file name. At the beginning of a file name, this
part does not begin with a dot."""

Element = str | None
"""One character, `ANY` or `NAME`."""

WORD_END = "\x1f"
"""Follows each word in the pattern of a command, so that a space inside a word does not look like the end of the word."""

_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")


def expanded(text: str, most: int) -> tuple[list[str], list[str]]:
    """Expands braces such as `{a,b}`, and no range such as `{1..3}`. Returns the texts, and what is left beyond `most` texts."""
    done: list[str] = []
    todo = [text]
    while todo and len(done) + len(todo) <= most:
        one = todo.pop()
        braces = _BRACES.search(one)
        if braces is None:
            done.append(one)
        else:
            todo += [one[: braces.start()] + each + one[braces.end() :] for each in braces[1].split(",")]
    return done, todo


class Wildcard:
    """A pattern with wildcards. A comparison takes time in proportion to the text, whatever the pattern is."""

    def __init__(self, elements: Iterable[Element], *, is_text: bool = False) -> None:
        """`is_text`: between known characters, the end of a word stands for a space inside a word too."""
        known = list(elements)
        kept = [one for at, one in enumerate(known) if one is not ANY or at == 0 or known[at - 1] is not ANY]
        self._end = 1 << len(kept)
        self._wild = 0
        self._literal: dict[Element, int] = {}
        for at, one in enumerate(kept):
            if one is ANY:
                self._wild |= 1 << at
            else:
                self._literal[one] = self._literal.get(one, 0) | 1 << at
            if is_text and one == WORD_END and ANY not in (kept[at - 1], *(kept[at + 1 : at + 2] or [ANY])):
                self._literal[" "] = self._literal.get(" ", 0) | 1 << at
        ends = [at for at, one in enumerate(kept) if one == WORD_END]
        # The places between words behind which the text may have options.
        self._gaps = sum(1 << at + 1 for at in ends if kept[at + 1 : at + 2] not in ([], [ANY]))
        found = [*_options_behind_wildcards(kept)]
        self._options = sum(1 << at for span in found for at in span)
        """The characters (bits) of options that stand behind a wildcard, as in `*--force`."""
        is_text = len(kept) > 1 and kept[0] is ANY
        self._first = 2 if is_text else 0
        """The first character (bit) of a text behind a wildcard at the beginning, as in `*prod*`."""
        self._dashes = sum(3 << span[0] for span in found)
        """The first two characters (bits) of each."""

    def surely_matches(self, text: Sequence[Element]) -> bool:
        """Whether the text matches for all values of its unknown parts."""
        # Each bit of `places` is a place in the pattern that the text so far can lead to.
        places = self._past_wildcards(1)
        for one in text:
            places = self._over(one, places)
            if not places:
                return False
        return bool(places & self._end)

    def may_match(self, text: Sequence[Element]) -> bool:
        """Whether the text matches for at least one value of its unknown parts."""
        places = self._past_wildcards(1)
        before: Element = "/"
        for one in text:
            if one is ANY:
                # An unknown text can lead from the first of the places to every later one.
                places = (self._end << 1) - (places & -places)
            elif one == NAME:
                places = self._through_name(places, begins=before == "/")
            else:
                places = self._over(one, places)
            if not places:
                return False
            before = one
        return bool(places & self._end)

    def may_match_words(
        self, words: Iterable[Word], options: Collection[str] | None, *, is_named: bool = False
    ) -> bool:
        """Whether words of a command match for at least one value of their unknown parts. A value is no option, unless it is one
        of `options`, those that the line names anywhere. None means any option. Options between two words of the pattern are left
        out, each with the word behind it, which may be its value. If that is unknown, it is none of the pattern's words unless
        `is_named` says that the line has all of them.
        """
        places, behind = self._past_wildcards(1), 0  # `behind`: those that an option has led to
        for word in words:
            is_unknown = word.parts[:1] == (ANY,)
            surely = places
            places |= 0 if is_unknown and not is_named else behind
            skipped = places if {*word.parts} == {ANY} and not word.is_one else 0  # it may be no word at all
            is_option = not is_unknown and word.known.startswith(("-", "+"))
            if not is_option:  # the value of an option
                skipped |= behind & self._gaps
            if is_option and (word.text == "--" or "=" in word.known or word.known[0] == "+"):
                skipped, behind = skipped | (places | behind) & self._gaps, 0
            elif is_option:
                behind = (places | behind) & self._gaps
            else:
                behind = surely & self._gaps if is_unknown and options != frozenset() else 0
            places = (
                self._over(WORD_END, self._over_word(word, places, options, 0 if is_named else self._first))
                | skipped
            )
            if not places | behind:
                return False
        return bool(places & self._end)

    def _over_word(self, word: Word, places: int, options: Collection[str] | None, first: int) -> int:
        """The places (bits) that can be reached from `places` over a word without its end. `first` is in no value."""
        before: str | None = ""
        for at, part in enumerate(word.parts):
            if part is not ANY:
                for char in part:
                    places = self._over(char, places)
            elif before is not ANY:  # two unknown parts side by side are one
                begins = before in ("", "-")
                is_option = at == 1 and before.startswith("-") and "=" not in before
                kept = 0 if options is None else self._dashes if is_option else self._options
                places = self._over_value(
                    places, options, kept | first, begins=begins, may_split=not word.is_one
                )
            before = part
        return places

    def _over_value(
        self, places: int, options: Collection[str] | None, kept: int, *, begins: bool, may_split: bool
    ) -> int:
        """The places (bits) that can be reached from `places` over an unknown part of a word. What stands at the places `kept` is
        no part of a value. `begins`: the part begins the word. `may_split`: it may become several words.
        """
        end, dash = (self._literal.get(one, 0) for one in (WORD_END, "-"))
        dash = 0 if options is None else dash
        starts, inside, closed, before = (places, 0, 0, None) if begins else (0, places, 0, None)
        while before != (before := (starts, inside, closed)):
            for option in options or ():
                reached = starts
                for char in option:
                    reached = self._over(char, reached)
                closed |= reached
            inside |= self._over_unknown(inside & ~(end | kept)) | self._over_unknown(
                starts & ~(end | dash | kept & 2)
            )
            if may_split and (begins or options is None or options):
                starts |= self._over(WORD_END, inside | closed)
        return starts | inside | closed  # the value may be empty

    def _over(self, one: Element, places: int) -> int:
        """The places (bits) that can be reached from `places` over one element that only wildcards and an equal one match."""
        return self._past_wildcards((places & self._wild) | (places & self._literal.get(one, 0)) << 1)

    def _through_name(self, places: int, *, begins: bool) -> int:
        """The places (bits) that can be reached from `places` over an unknown text without a slash. `begins`: it begins a file name."""
        closed = self._literal.get("/", 0)
        first = closed | (self._literal.get(".", 0) if begins else 0)
        behind = self._over_unknown(places & ~first)
        while (further := behind | self._over_unknown(behind & ~closed)) != behind:
            behind = further
        return places | behind  # the text may be empty

    def _over_unknown(self, places: int) -> int:
        """The places (bits) that can be reached from `places` over one unknown character."""
        return self._past_wildcards((places & self._wild) | (places & ~self._wild & (self._end - 1)) << 1)

    def _past_wildcards(self, places: int) -> int:
        return places | (places & self._wild) << 1


def _options_behind_wildcards(pattern: Sequence[Element]) -> Iterator[range]:
    """The indices of the characters of options such as `--force` and `-rf` behind a wildcard, and of no end of a name, such as `-prod`."""
    text = "".join("\0" if one is ANY else one for one in pattern)
    for found in re.finditer(rf"(?<=\0)(?:--\w[^\0{WORD_END}]*|-[A-Za-z]{{1,2}}(?=[\0{WORD_END}]))", text):
        yield range(*found.span())


# --- Path patterns
# Path patterns in rules, such as `./secrets/**`, `~/.ssh/**` and `//etc/*`. Their syntax is that of .gitignore. A
# pattern may have several meanings. In a rule that denies, all of them apply. In a rule that allows, only the
# narrowest applies.

_MOST_ALTERNATIVES = 200
_MOST_DIRECTORIES = 4
"""The maximum number of `/**/` in a pattern that are compared exactly."""
_PIECE = re.compile(r"\*\*|\*|\?|\[[!^]?\]?[^\]/]*\]|\\.|.", re.DOTALL)
_WILD = re.compile(r"[*?\[]")


class PathPattern:
    """The path pattern of one rule. Its methods expect absolute paths."""

    def __init__(self, rule: PermissionRule, places: RulePlaces) -> None:
        """One that denies also matches the targets of links that lead to what it names. Raises RuleError."""
        assert rule.pattern is not None  # noqa: S101 - a rule for the whole tool has no path
        is_wide = rule.effect is not Effect.ALLOW
        alternatives, rest = expanded(rule.pattern, _MOST_ALTERNATIVES)
        if rest:
            raise RuleError(f"{rule.text!r} stands for more than {_MOST_ALTERNATIVES} patterns")
        globs = [glob for one in alternatives for glob in _placed(one, rule, places, is_wide=is_wide)]
        if is_wide:
            is_unclear = rule.pattern.startswith("/") and not rule.pattern.startswith("//")
            globs += [one for glob in globs for one in _behind_links(glob, places, is_unclear=is_unclear)]
        self._globs = tuple(dict.fromkeys(globs))
        # Some file systems do not tell upper from lower case. A name that is denied stays denied in both.
        flags = re.DOTALL | re.IGNORECASE if is_wide else re.DOTALL
        self._wholes = [re.compile(f"{_regex(glob)}(?:/.*)?", flags) for glob in self._globs]
        # Of each glob the last of its parts that do not consist of wildcards only. `*` if there is no such part.
        parts = ([part for part in glob.split("/") if part.strip("*")] or ["*"] for glob in self._globs)
        self._names = [Wildcard(_elements(named[-1], below=0)) for named in parts]
        variants = [one for glob in self._globs for one in _variants(glob)]
        self._wildcards = [Wildcard(_elements(one, below=below)) for one in variants for below in (0, 1)]

    def matches(self, path: str) -> bool:
        """Whether the pattern matches the path or a directory above it."""
        return any(whole.fullmatch(path) for whole in self._wholes)

    def may_match(self, path: Sequence[Element]) -> bool:
        """Whether the pattern may match a path with unknown parts. In doubt, the result is True."""
        lowered = [one if one is ANY else one.lower() for one in path]
        return any(wildcard.may_match(lowered) for wildcard in self._wildcards)

    def may_match_name(self, name: Sequence[Element]) -> bool:
        """Whether the pattern may match a file with this name in any directory. Only its last name counts: `secrets` in
        `secrets/**`, and `.env` in `a/*/.env`.
        """
        lowered = [one if one is ANY else one.lower() for one in name]
        return any(wildcard.may_match(lowered) for wildcard in self._names)

    def literal_paths(self) -> Iterator[str]:
        """The paths in the pattern without wildcards. A name for every depth is one at the top level."""
        plain = (glob.replace("/**/", "/") for glob in self._globs)
        return (re.sub(r"\\(.)", r"\1", glob) for glob in plain if not _WILD.search(glob))

    def whole_places(self) -> Iterator[str]:
        """Yields each file or whole directory that the pattern matches, unless it has a wildcard before its end."""
        for glob in self._globs:
            place = re.sub(r"/\*\*?$", "", glob)
            if place and not _WILD.search(re.sub(r"\\.", "", place)):
                yield re.sub(r"\\(.)", r"\1", place)

    def may_be_below(self, directory: str) -> bool:
        """Whether the pattern may match the directory or a path inside the directory."""
        inside = directory.rstrip("/").lower()
        return any(
            wildcard.may_match([*inside, *rest]) for wildcard in self._wildcards for rest in ("", ["/", ANY])
        )

    def holds(self, directory: str) -> bool:
        """Whether the pattern matches everything in the directory."""
        return self.matches(f"{directory.rstrip('/')}/\x01") or self.matches(directory)


def _placed(pattern: str, rule: PermissionRule, places: RulePlaces, *, is_wide: bool) -> Iterator[str]:
    """Converts a pattern to absolute globs: with `is_wide` for every possible meaning, otherwise for the narrowest one."""
    roots = (rule.root,) if rule.root else ()
    if pattern.startswith("//"):
        yield _normal(pattern[1:])
    elif pattern == "~" or pattern.startswith("~/"):
        if not places.homes:
            raise RuleError(f"{rule.text!r}: there is no home directory")
        yield from (_normal(f"{_escaped(home)}/{pattern[2:]}") for home in places.homes)
    elif pattern.startswith("/"):
        yield from (_normal(f"{_escaped(base)}{pattern}") for base in roots or places.cwds)
        if is_wide:  # people write an absolute path with one slash too
            yield _normal(pattern)
    else:
        starts = (*roots, *places.cwds) if is_wide else places.cwds
        plain = pattern.removeprefix("./")
        # A pattern with a slash inside is about one place, and any other about names at every depth.
        is_about_name = "/" not in plain.rstrip("/") and (is_wide or not pattern.startswith("./"))
        between = "**/" if is_about_name else ""
        yield from (_normal(f"{_escaped(base)}/{between}{plain}") for base in starts)


def _behind_links(glob: str, places: RulePlaces, *, is_unclear: bool) -> Iterator[str]:
    """The glob with the links resolved that stand before its first wildcard. A name for every depth is one at the top level.
    `is_unclear`: `/bin/**` is probably about a directory of the project, and not about where the link `/bin` leads.
    """
    for one in dict.fromkeys((glob, glob.replace("/**/", "/"))):
        parts = one.split("/")
        known = [*takewhile(lambda part: not _WILD.search(re.sub(r"\\.", "", part)), parts)]
        if is_unclear and len(known) < min(3, len(parts)):
            continue
        path = re.sub(r"\\(.)", r"\1", "/".join(known)) or "/"
        real = places.disk.real(path)
        if real != path:
            yield "/".join((_escaped(real).rstrip("/"), *parts[len(known) :])) or "/**"


def _normal(glob: str) -> str:
    """The glob without the parts `.` and `..`, without doubled slashes, and without a slash at the end."""
    return posixpath.normpath(glob).replace("//", "/") if glob.strip("/") else "/**"


def _escaped(path: str) -> str:
    return re.sub(r"([\\*?\[])", r"\\\1", path)


def _regex(glob: str) -> str:
    made = ""
    pieces = _PIECE.findall(glob)
    at = 0
    while at < len(pieces):
        piece = pieces[at]
        if piece == "**" and pieces[at + 1 : at + 2] == ["/"] and made.endswith("/"):
            made += "(?:.*/)?"
            at += 2
            continue
        made += _translated(piece)
        at += 1
    return made


def _translated(piece: str) -> str:
    match piece:
        case "**":
            return ".+"
        case "*":
            return "[^/]*"
        case "?":
            return "[^/]"
    if piece[0] == "[" and len(piece) > 2:
        return _class(piece)
    return re.escape(piece[-1] if piece[0] == "\\" else piece)


def _class(piece: str) -> str:
    negation = "^/" if piece[1] in "!^" else ""
    members = re.sub(r"([\\\[^&~|])", r"\\\1", piece[1 + bool(negation) : -1])
    try:
        return re.compile(f"[{negation}{members}]").pattern
    except re.error:  # an invalid range such as [z-a]
        return "[^/]"


def _variants(glob: str) -> Iterator[str]:
    """The glob with each `/**/` as a slash, and as some directories. With too many of them, one glob that matches more."""
    first, *others = re.sub(r"/(?:\*\*/)+", "/**/", glob).split("/**/")
    if len(others) > _MOST_DIRECTORIES:
        yield "/**".join((first, *others))
        return
    for between in product(("/", "/**/"), repeat=len(others)):
        yield first + "".join(chain.from_iterable(zip(between, others, strict=True)))


def _elements(glob: str, *, below: int) -> Iterator[Element]:
    """Replaces each wildcard of the glob by `ANY`, which may match more. With `below` 1, it matches what is inside a matching
    directory, and not the directory itself.
    """
    for piece in _PIECE.findall(glob):
        if piece in ("*", "**", "?") or (piece[0] == "[" and len(piece) > 2):
            yield ANY
        else:
            yield from piece[-1].lower()
    if below:
        yield from ("/", ANY)


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
