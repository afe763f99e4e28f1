"""Cuts secrets out of an object before it is written: string by string, so that it stays valid JSON.

File content from Read, Edit and Write is left as it is, or a later edit would not match. The output of the
other tools is redacted before it gets here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_FILE_TOOLS = frozenset({"Read", "Edit", "Write"})

# ralph's own words and numbers, which programs go by.
_OWN_KEYS = frozenset({"type", "subtype", "terminal_reason", "uuid", "session_id"})

# Below these nothing is ralph's own, whatever a key is called.
_OTHERS_OBJECTS = frozenset({"input", "structured_output"})


def shown(value: Any, redact: Callable[[str], str]) -> Any:
    """A copy of a JSON value with `redact` applied to its strings. Texts of ralph's own and content of files stay as
    they are.
    """
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list | tuple):
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
    """A copy of a foreign JSON value with `redact` applied to every string, except the keys of objects."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list | tuple):
        return [redacted(item, redact) for item in value]
    if isinstance(value, dict):
        return {name: redacted(item, redact) for name, item in value.items()}
    return value
