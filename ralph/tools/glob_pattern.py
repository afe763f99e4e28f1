"""Matches relative paths against glob patterns with `*`, `?`, `[...]`, `{a,b}` and `**`. No pattern is slow to match.
As in ripgrep and .gitignore, a pattern without a slash matches file names in any directory. A pattern with a slash
matches the whole path, relative to the directory of the search. Brackets and braces also stand for themselves, because
files are called `[id]` and `{{name}}`.

Also finds out whether git ignores a directory as a whole, so that a search which names it does not find it empty.
Ripgrep applies the rules to files.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from fnmatch import translate
from typing import TYPE_CHECKING

from ralph.machine.files.paths import beginning_of
from ralph.values.answer import ToolError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MOST_ALTERNATIVES = 200
# The maximum length of a path in Linux (PATH_MAX).
_LONGEST = 4096
_BRACES = re.compile(r"\{([^{}]*)\}")

_CLASS = re.compile(r"\[[!^]?+\]?+[^\]]*\]")
_ESCAPED = re.compile(r"\\.", re.DOTALL)

_Segment = re.Pattern[str] | None
"""A part of a pattern between slashes, as a regular expression for one part of a path. None stands for the part `**`,
which matches any number of parts of a path."""


class GlobPattern:
    def __init__(self, pattern: str) -> None:
        """A `!` at the beginning inverts the pattern. Raises ToolError if the braces expand to too many patterns."""
        _refuse_long(pattern)
        self._is_negated = pattern.startswith("!")
        pattern = pattern.removeprefix("!").removeprefix("./")
        if pattern.endswith("/"):
            pattern += "**"
        self.is_about_name = "/" not in pattern
        pattern = pattern.removeprefix("/")
        self._alternatives = [_segments_of(one) for one in dict.fromkeys((*_expanded(pattern), pattern))]

    def matches(self, path: str) -> bool:
        """Whether a path matches. `path` is relative and has slashes as separators."""
        parts = [path.rpartition("/")[2]] if self.is_about_name else path.split("/")
        return any(_segments_match(segments, parts) for segments in self._alternatives) != self._is_negated


def plain_glob(pattern: str) -> str:
    """Removes a leading `./` from the pattern. Raises ToolError if a bracket, a brace or an escape is incomplete."""
    _refuse_long(pattern)
    plain = pattern.removeprefix("./")
    rest = _CLASS.sub("", _ESCAPED.sub("", plain))
    if rest == "!" or any(mark in rest for mark in "[\\") or rest.count("{") != rest.count("}"):
        raise ToolError(f"the glob {pattern!r} is not finished: a bracket, a brace or a name is missing")
    return plain


def _refuse_long(pattern: str) -> None:
    if len(pattern) > _LONGEST:
        raise ToolError(f"the glob has {len(pattern):,} characters; at most {_LONGEST:,} make sense")


def _expanded(pattern: str) -> list[str]:
    """Expands all braces, and returns the resulting patterns. A brace without a partner is an ordinary character."""
    done: list[str] = []
    todo = [pattern]
    while todo:
        if len(done) + len(todo) > _MOST_ALTERNATIVES:
            raise ToolError(
                f"the pattern stands for more than {_MOST_ALTERNATIVES} alternatives; use a simpler one"
            )
        pattern = todo.pop()
        braces = _BRACES.search(pattern)
        if braces is None:
            done.append(pattern)
            continue
        before, after = pattern[: braces.start()], pattern[braces.end() :]
        todo += [before + choice + after for choice in braces[1].split(",")]
    return done


def _segments_of(pattern: str) -> list[_Segment]:
    segments: list[_Segment] = [None if name == "**" else _compiled(name) for name in pattern.split("/")]
    if segments[-1] is None:  # `src/**` matches what is below src, not src itself
        segments.append(_compiled("*"))
    return segments


def _compiled(name: str) -> re.Pattern[str]:
    """A regular expression for one segment of a pattern, in which brackets are either classes or themselves. It needs linear time."""
    spelled = (name.replace("[^", "[!"), name.replace("[", "[[]"))
    # The standard library knows no escapes.
    plain = (re.sub(r"\\([*?\[])", r"[\1]", one) for one in spelled)
    return re.compile("|".join(translate(re.sub(r"\\(.)", r"\1", one)) for one in plain))


def _segments_match(segments: list[_Segment], parts: list[str]) -> bool:
    at = part = 0
    retry_at, retry_part = -1, 0
    while part < len(parts):
        segment = segments[at] if at < len(segments) else ""
        if segment is None:
            retry_at, retry_part = at, part
            at += 1
        elif not isinstance(segment, str) and segment.fullmatch(parts[part]):
            at, part = at + 1, part + 1
        elif retry_at >= 0:
            retry_part += 1
            at, part = retry_at + 1, retry_part
        else:
            return False
    return at == len(segments)


IGNORE_FILE = ".gitignore"
_ANY_FILE = "any file of no special name"


def is_ignored_whole(directory: str, top: str, *, counts_own: bool) -> bool:
    """Whether rules ignore the directory, one above it, or any file directly in it, by a rule that names its place, such
    as `out/*`. Both paths are absolute and without links. `top` is the top of the repository. With `counts_own`, any
    rule in the directory's own file counts too, such as a `*` there.
    """
    parts = () if directory == top else tuple(os.path.relpath(directory, top).split("/"))
    if any(_is_ignored(top, parts[:depth], is_directory=True) for depth in range(1, len(parts) + 1)):
        return True
    of_file = (*parts, _ANY_FILE)
    if counts_own and (own := _verdict(top, of_file, len(parts), is_directory=False)) is not None:
        return own
    return _is_ignored(top, of_file, most=len(parts), names_place=True)


def _is_ignored(
    top: str,
    parts: Sequence[str],
    *,
    most: int | None = None,
    is_directory: bool = False,
    names_place: bool = False,
) -> bool:
    """Whether the rules ignore the path with these parts. The nearest file with a rule for it decides."""
    depths = reversed(range(len(parts) if most is None else most))
    verdicts = (
        _verdict(top, parts, depth, is_directory=is_directory, names_place=names_place) for depth in depths
    )
    return next((verdict for verdict in verdicts if verdict is not None), False)


def _verdict(
    top: str, parts: Sequence[str], depth: int, *, is_directory: bool, names_place: bool = False
) -> bool | None:
    """Whether the rules in the directory `depth` levels below the top ignore the path with these parts."""
    path = "/".join(parts[depth:])
    for rule in _rules("/".join((top.rstrip("/"), *parts[:depth], IGNORE_FILE))):
        is_negated = rule.startswith("!")
        pattern = rule.removeprefix("!")
        if pattern.endswith("/") and not is_directory:
            continue
        pattern = pattern.rstrip("/")
        if not pattern or (names_place and "/" not in pattern):
            continue
        with suppress(ToolError):  # too many alternatives in braces
            if GlobPattern(pattern).matches(path):
                return not is_negated
    return None


def _rules(file: str) -> Iterator[str]:
    """The rules of a file, the last one first. Reads its first 64 KiB."""
    for line in reversed(os.fsdecode(beginning_of(file)).split("\n")):
        rule = line.removesuffix("\r")
        while rule.endswith(" ") and not rule.endswith("\\ "):
            rule = rule[:-1]
        if rule and not rule.startswith("#"):
            yield rule
