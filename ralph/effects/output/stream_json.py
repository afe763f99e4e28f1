"""Events as `stream-json` objects, under the names that readers know. Pure: it builds, it does not write.

`type`, `uuid` and `session_id` of every object are added by the writer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ralph.core import events as ev
from ralph.effects.output.system_events import system_fields

if TYPE_CHECKING:
    from collections.abc import Iterable

# Readers warn about a version below "2."; the object also says who really writes.
_READERS_WANT_VERSION = "2.0.0"


def stream_objects(event: ev.Event, *, ralph_version: str, include_partial: bool) -> Iterable[dict[str, Any]]:
    """The objects that one event becomes: none, one, or one per content block. The result is not among them."""
    match event:
        case ev.RunStarted():
            return [_init(event, ralph_version)]
        case ev.StreamReceived():
            if not include_partial:
                return []
            return [{"type": "stream_event", "event": event.event, "parent_tool_use_id": None}]
        case ev.AnswerAccepted():
            return _assistant(event)
        case ev.UserMessageCommitted():
            return [
                {
                    "type": "user",
                    "message": {"role": "user", "content": list(event.content)},
                    "parent_tool_use_id": None,
                }
            ]
        case _:
            fields = system_fields(event)
            return [{"type": "system", **fields}] if fields else []


def _init(event: ev.RunStarted, ralph_version: str) -> dict[str, Any]:
    return {
        "type": "system",
        "subtype": "init",
        "cwd": event.cwd,
        "tools": list(event.tools),
        "mcp_servers": [],
        "model": event.model,
        **({"targets": list(event.targets)} if event.targets else {}),
        "permissionMode": event.permission_mode,
        "slash_commands": [],
        "apiKeySource": event.api_key_source,
        "output_style": "default",
        "skills": [],
        "plugins": [],
        "claude_code_version": _READERS_WANT_VERSION,
        "ralph_version": ralph_version,
        "sandbox": "none",
    }


def _assistant(event: ev.AnswerAccepted) -> list[dict[str, Any]]:
    """One object per content block, sharing the message's id, as known producers do."""
    shared = {
        name: event.message.get(name)
        for name in ("id", "type", "role", "model", "stop_reason", "stop_sequence", "usage")
    }
    request = {"request_id": event.request_id} if event.request_id else {}
    return [
        {
            "type": "assistant",
            "message": {**shared, "content": [block]},
            "parent_tool_use_id": None,
            **request,
        }
        for block in event.message["content"]
    ]
