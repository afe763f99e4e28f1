"""Matches relative paths against glob patterns with `*`, `?`, `[...]`, `{a,b}` and `**`. No pattern is slow to match.
As in ripgrep and .gitignore, a pattern without a slash matches file names in any directory. A pattern with a slash
matches the whole path, relative to the directory of the search. Brackets and braces also stand for themselves, because
files are called `[id]` and `{{name}}`.
"""

from __future__ import annotations

import re

from ralph.values.tool_calls import ToolError

_MOST_ALTERNATIVES = 200
# The maximum length of a path in Linux (PATH_MAX).
_LONGEST = 4096
_BRACES = re.compile(r"\{([^{}]*)\}")
_PIECES = re.compile(r"\*+|\?|\[[!^]?\]?[^\]]*\]|\\.|.", re.DOTALL)

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
    if segments[-1] is None:  # `src/**` matches what lies below src, not src itself
        segments.append(_compiled("*"))
    return segments


def _compiled(name: str) -> re.Pattern[str]:
    """A regular expression for one segment of a pattern, in which brackets are either classes or themselves."""
    return re.compile(
        "|".join(dict.fromkeys(_expression(name, has_classes=has) for has in (True, False))), re.DOTALL
    )


def _expression(name: str, *, has_classes: bool) -> str:
    """It needs linear time: the text after a `*` is matched at the first possible place, and no other place is tried (as in
    fnmatch).
    """
    fixed = [""]
    for piece in _PIECES.findall(name):
        if piece[0] == "*":
            fixed.append("")
        else:
            fixed[-1] += _translated(piece, has_classes=has_classes)
    if len(fixed) == 1:
        return fixed[0]
    middle = "".join(f"(?>.*?{part})" for part in fixed[1:-1])
    return f"{fixed[0]}{middle}.*{fixed[-1]}"


def _translated(piece: str, *, has_classes: bool) -> str:
    if piece == "?":
        return "."
    if piece[0] == "[" and len(piece) > 1:
        if not has_classes:
            return re.escape(piece)
        negation = "^" if piece[1] in "!^" else ""
        members = piece[1 + len(negation) : -1]
        ranges = re.fullmatch(r"(?:.-.|[^-]|-)*", members, re.DOTALL)
        escaped = re.sub(r"([\\\]\[^&~|])", r"\\\1", members)
        try:
            return re.compile(f"[{negation}{escaped}]").pattern if ranges else re.escape(piece)
        except re.error:  # an invalid range such as [z-a]
            return re.escape(piece)
    return re.escape(piece[-1])


def _segments_match(segments: list[_Segment], parts: list[str]) -> bool:
    """Whether the segments match the parts of a path."""
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
