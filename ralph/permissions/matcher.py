"""Decides which tools a hook is about, by the rules of Claude Code. Pure."""

from __future__ import annotations

import re

_PLAIN = re.compile(r"[\w\s|,-]*")


def matches(matcher: str | None, tool: str) -> bool:
    """True if a matcher covers a tool.

    A plain name, and each name of a list `A|B` or `A,B`, covers exactly the tool of that name. Anything else is a
    regular expression, which may match anywhere in the name. None, "" and "*" cover all tools.
    """
    if matcher is None or matcher in ("", "*"):
        return True
    if _PLAIN.fullmatch(matcher):
        return tool in re.split(r"\s*[|,]\s*", matcher.strip())
    return re.search(matcher, tool) is not None


def why_no_matcher(matcher: str | None) -> str | None:
    """The reason why a matcher cannot be used, or None if it can."""
    if matcher is None or matcher == "*" or _PLAIN.fullmatch(matcher):
        return None
    try:
        re.compile(matcher)
    except (re.error, RecursionError, OverflowError) as error:
        return str(error)
    return None
