"""Decides by the rules of Claude Code which tools a hook is called for. No I/O happens here."""

from __future__ import annotations

import re

from ralph.values.tool_choice import TOOL_NAMES

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
    """The reason why a matcher is invalid, or None if it is valid. A name that resembles the name of a tool is
    probably misspelt, and then the hook would never be called.
    """
    if matcher is None or matcher == "*":
        return None
    if _PLAIN.fullmatch(matcher):
        from ralph.permissions.settings_keys import misspelt  # noqa: PLC0415 - few drivers have hooks

        listed = re.split(r"\s*[|,]\s*", matcher.strip())
        missing = [name for name in TOOL_NAMES if name not in listed]
        found = misspelt((name for name in listed if name not in TOOL_NAMES), missing)
        return None if found is None else f"no tool is called {found[0]!r}: did you mean {found[1]}?"
    try:
        re.compile(matcher)
    except (re.error, RecursionError, OverflowError) as error:
        return f"it is no regular expression: {error}"
    return None
