"""Turns events into the objects of `stream-json`. Names are those that existing readers know. No I/O happens here.
The writer adds `uuid` and `session_id` to every object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ralph.output.result_object import api_error_text, usage_object
from ralph.output.system_events import error_name, system_fields
from ralph.values import events as ev
from ralph.values.usage import TokenUsage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ralph.values.answer import Block

# Readers warn about a version below "2.". The object also names ralph and its version.
READERS_WANT_VERSION = "2.0.0"
OUTPUT_STYLE = "default"
# It tells readers that no model wrote the message.
_NO_MODEL = "<synthetic>"


def stream_objects(event: ev.Event, *, ralph_version: str, include_partial: bool) -> Iterable[dict[str, Any]]:
    """Returns the objects for one event: none, one, or one per content block. Does not return the `result` object,
    which `result_object.py` makes.
    """
    match event:
        case ev.RunStarted():
            return [_init(event, ralph_version)]
        case ev.StreamReceived():
            if not include_partial:
                return []
            return [{"type": "stream_event", "event": event.event, "parent_tool_use_id": None}]
        case ev.AnswerAccepted():
            return _assistant(event)
        case ev.MessageTaken():
            own_id = {} if event.uuid is None else {"uuid": event.uuid}
            message = {"role": "user", "content": event.content}
            return [
                {"type": "user", "message": message, "parent_tool_use_id": None, "isReplay": True, **own_id}
            ]
        case ev.UserMessageCommitted():
            return [
                {
                    "type": "user",
                    "message": {"role": "user", "content": [_shown(block) for block in event.content]},
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
        "mcp_servers": [{"name": name, "status": "connected"} for name in event.mcp_servers],
        "model": event.model,
        **({"targets": list(event.targets)} if event.targets else {}),
        "permissionMode": event.permission_mode,
        "slash_commands": list(event.commands),
        "apiKeySource": event.api_key_source,
        "output_style": OUTPUT_STYLE,
        "skills": list(event.skills),
        "plugins": [],
        **({"memory_paths": list(event.memory)} if event.memory else {}),
        "claude_code_version": READERS_WANT_VERSION,
        "ralph_version": ralph_version,
        "sandbox": event.sandbox,
        "sandbox_protections": dict(event.protections),
        **({"sandbox_gpus": list(event.gpus)} if event.gpus else {}),
    }


def failure_message(ended: ev.RunEnded, message_id: str) -> dict[str, Any] | None:
    """The assistant message that tells readers about a failure of the API. None if no such failure ended the run."""
    text = api_error_text(ended)
    if text is None or ended.api_failure is None:
        return None
    message = {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": _NO_MODEL,
        "stop_reason": "stop_sequence",
        "stop_sequence": "",
        "usage": usage_object(TokenUsage()),
        "content": [{"type": "text", "text": text}],
    }
    error = error_name(ended.api_failure)
    return {"type": "assistant", "message": message, "parent_tool_use_id": None, "error": error}


def _shown(block: Block) -> Block:
    """The content block as readers expect it: a tool result without `is_error` gets `is_error: false`."""
    return {"is_error": False, **block} if block.get("type") == "tool_result" else block


def _assistant(event: ev.AnswerAccepted) -> list[dict[str, Any]]:
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
