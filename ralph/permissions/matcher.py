"""Decides by the rules of Claude Code which tools a hook is called for. No I/O happens here."""

from __future__ import annotations

import re

_PLAIN = re.compile(r"[\w\s|,-]*")


def matches(matcher: str | None, tool: str) -> bool:
    """True if the matcher of a hook covers a tool.

    A matcher is a name, or a list of names such as `A|B` or `A,B`. A name covers only the tool with exactly that
    name. Any other matcher is a regular expression, which may match any part of the tool's name. None, "" and "*"
    cover all tools.
    """
    if matcher is None or matcher in ("", "*"):
        return True
    if _PLAIN.fullmatch(matcher):
        return tool in re.split(r"\s*[|,]\s*", matcher.strip())
    return re.search(matcher, tool) is not None


def why_no_matcher(matcher: str | None) -> str | None:
    """The reason why a matcher is invalid, or None if it is valid."""
    if matcher is None or matcher == "*" or _PLAIN.fullmatch(matcher):
        return None
    try:
        re.compile(matcher)
    except (re.error, RecursionError, OverflowError) as error:
        return str(error)
    return None
