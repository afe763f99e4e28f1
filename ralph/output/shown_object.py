"""Removes secrets from a JSON object before ralph writes it. Each string in the object is redacted separately, so
that the object remains valid JSON.

The file contents in the calls and results of Read, Edit and Write are not changed. Otherwise a later edit might not
match the file. The output of the other tools was redacted earlier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

# A tuple, because `list | tuple` would be made anew for each value.
_LISTS = (list, tuple)

_FILE_TOOLS = frozenset({"Read", "Edit", "Write"})

# Keys whose values are ralph's own and are read by programs.
_OWN_KEYS = frozenset({"type", "subtype", "terminal_reason", "uuid", "session_id"})

# No value below these keys is ralph's own, whatever the key is called.
_OTHERS_OBJECTS = frozenset({"input", "structured_output"})


def shown(value: Any, redact: Callable[[str], str]) -> Any:
    """A copy of a JSON value in which `redact` is applied to the strings. Three kinds of strings are not changed:
    values of the keys in `_OWN_KEYS`, arguments of the file tools, and contents of tool results.
    """
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, _LISTS):
        return [shown(item, redact) for item in value]
    if not isinstance(value, dict):
        return value
    kept = _OWN_KEYS
    if value.get("type") == "tool_use" and value.get("name") in _FILE_TOOLS:
        kept = kept | {"input"}
    elif value.get("type") == "tool_result":
        kept = kept | {"content"}
    return {
        name: item if name in kept else (redacted if name in _OTHERS_OBJECTS else shown)(item, redact)
        for name, item in value.items()
    }


def redacted(value: Any, redact: Callable[[str], str]) -> Any:
    """A copy of a JSON value in which `redact` is applied to every string. The keys of objects are not changed."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, _LISTS):
        return [redacted(item, redact) for item in value]
    if isinstance(value, dict):
        return {name: redacted(item, redact) for name, item in value.items()}
    return value
