"""Events as `stream-json` objects, under the names that readers know. Pure: it builds, it does not write.

`type`, `uuid` and `session_id` of every object are added by the writer.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ralph.core import events as ev
from ralph.core.classify import FailureKind
from ralph.core.usage import cost_usd

if TYPE_CHECKING:
    from collections.abc import Iterable

# Readers warn about a version below "2."; the object also says who really writes.
_READERS_WANT_VERSION = "2.0.0"

_ERROR_NAMES = {
    FailureKind.RATE_LIMIT: "rate_limit",
    FailureKind.USAGE_LIMIT: "billing_error",
    FailureKind.OVERLOADED: "overloaded",
    FailureKind.SERVER: "server_error",
    FailureKind.TIMEOUT: "server_error",
    FailureKind.AUTH: "authentication_failed",
    FailureKind.BILLING: "billing_error",
    FailureKind.INVALID_REQUEST: "invalid_request",
    FailureKind.NOT_FOUND: "model_not_found",
    FailureKind.CONTEXT_OVERFLOW: "invalid_request",
}


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


def journal_fields(event: ev.Event) -> dict[str, Any] | None:
    """What the journal keeps of an event: what readers see of a run, and every attempt. Signs of life are none."""
    match event:
        case ev.Heartbeat():
            return None
        case ev.AttemptEnded():
            return {
                "subtype": "attempt",
                "turn": event.turn,
                "attempt": event.attempt,
                "target": event.target,
                "model": event.model,
                "status": event.status,
                "kind": event.kind,
                "error": event.error,
                "latency_s": round(event.latency_s, 3),
                "tokens": asdict(event.tokens),
                "cost_usd": cost_usd(event.facts, event.tokens),
                "wait_s": event.wait_s,
            }
        case ev.TurnAsked():
            took_s = round(event.took_s, 3)
            return {
                "subtype": "turn_asked",
                "turn": event.turn,
                "attempts": event.attempts,
                "took_s": took_s,
            }
        case _:
            return system_fields(event)


def system_fields(event: ev.Event) -> dict[str, Any] | None:
    """Of events that are no part of the conversation; None for those that are."""
    match event:
        case ev.RetryScheduled():
            return {
                "subtype": "api_retry",
                "turn": event.turn,
                "attempt": event.attempt,
                "max_retries": event.max_retries,
                "retry_delay_ms": round(event.wait_s * 1000),
                "error_status": event.status,
                "error": _ERROR_NAMES.get(FailureKind(event.kind), "unknown"),
                "kind": event.kind,
                "target": event.target,
                "message": event.message,
            }
        case ev.RetryRecovered():
            return {
                "subtype": "retry_recovered",
                "turn": event.turn,
                "attempt": event.attempt,
                "retries": event.retries,
                "total_wait_s": event.total_wait_s,
            }
        case ev.RetryExhausted():
            return {
                "subtype": "retry_exhausted",
                "turn": event.turn,
                "attempt": event.attempt,
                "retries": event.retries,
                "total_wait_s": event.total_wait_s,
                "error": event.error,
            }
        case ev.ModelFallback():
            return {
                "subtype": "model_fallback",
                "turn": event.turn,
                "attempt": event.attempt,
                "from": event.from_target,
                "to": event.to_target,
                "reason": event.reason,
            }
        case ev.ModelFallbackSucceeded() | ev.ModelFallbackRecovered():
            is_back = isinstance(event, ev.ModelFallbackRecovered)
            return {
                "subtype": "model_fallback_recovered" if is_back else "model_fallback_succeeded",
                "turn": event.turn,
                "attempt": event.attempt,
                "target": event.target,
            }
        case ev.ResponseDiscarded():
            return {"subtype": "response_discarded", "message_id": event.message_id}
        case ev.ClockFired():
            return {"subtype": "clock_fired", "clock": event.clock, "after_s": event.after_s}
        case ev.Heartbeat():
            since_s = round(event.since_s, 1)
            return {"subtype": "heartbeat", "waiting_for": event.waiting_for, "since_s": since_s}
        case ev.Notice():
            return {"subtype": "notice", "text": event.text}
        case _:
            return None


def _init(event: ev.RunStarted, ralph_version: str) -> dict[str, Any]:
    return {
        "type": "system",
        "subtype": "init",
        "cwd": event.cwd,
        "tools": list(event.tools),
        "mcp_servers": [],
        "model": event.model,
        **({"targets": list(event.targets)} if event.targets else {}),
        "permissionMode": "bypassPermissions",
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
