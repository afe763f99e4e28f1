"""Converts events to `system` objects for the output and to records for the journal, and converts them back. Events
that are part of the conversation are not converted here. No I/O happens here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct, convert, to_builtins

from ralph.values import events as ev
from ralph.values.answer import ToolCall
from ralph.values.classify import FailureKind
from ralph.values.usage import cost_usd

if TYPE_CHECKING:
    from collections.abc import Mapping

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


def named_fields(words: str) -> dict[str, str]:
    """The event's field for each key: `key=field`, or `key` where both have one name."""
    pairs = (word.partition("=") for word in words.split())
    return {key: field or key for key, _, field in pairs}


_PLAIN: dict[type, tuple[str, dict[str, str]]] = {
    ev.RetryRecovered: ("retry_recovered", named_fields("turn attempt retries total_wait_s")),
    ev.RetryExhausted: ("retry_exhausted", named_fields("turn attempt retries total_wait_s error")),
    ev.ModelFallback: ("model_fallback", named_fields("turn attempt from=from_target to=to_target reason")),
    ev.ModelFallbackSucceeded: ("model_fallback_succeeded", named_fields("turn attempt target")),
    ev.ModelFallbackRecovered: ("model_fallback_recovered", named_fields("turn attempt target")),
    ev.ResponseDiscarded: ("response_discarded", named_fields("message_id")),
    ev.ClockFired: ("clock_fired", named_fields("clock after_s")),
    ev.SyntheticRetry: ("synthetic_retry", named_fields("turn number reason")),
    ev.MalformedCallRefused: ("malformed_call", named_fields("turn tool why")),
    ev.FinalTurnEntered: ("final_turn", named_fields("turn reason")),
    ev.TurnsCollapsed: ("turns_collapsed", named_fields("turn reason old_max_turns new_max_turns")),
    ev.ReportAccepted: (
        "report_accepted",
        named_fields("source status turn attempts forced_final_reason=forced_reason"),
    ),
    ev.BackgroundStarted: (
        "task_started",
        named_fields("task_id=id tool_use_id=call_id description=command"),
    ),
    ev.BackgroundEnded: (
        "task_notification",
        named_fields("task_id=id tool_use_id=call_id status summary=command exit_code stopped_by took_s"),
    ),
    ev.PromptCalled: ("prompt_call", named_fields("command tool argument")),
    ev.PromptCallEnded: ("prompt_result", named_fields("command tool argument is_error took_s")),
    ev.Notice: ("notice", named_fields("text")),
    ev.PermissionModeChanged: ("status", named_fields("permissionMode=mode")),
    ev.HookStarted: ("hook_started", named_fields("hook_id hook_name=name hook_event=event")),
}
"""Events whose values go into objects unchanged. Maps each type of event to the subtype of the object, and to a
table that gives the event's field for each key of the object."""
# The parts of an answer are the first, because they come by the thousand. The journal has the whole answer.
_NOT_IN_THE_JOURNAL = (ev.StreamReceived, ev.Heartbeat, ev.SessionStateChanged, ev.HookStarted, ev.HookEnded)
_CONSTANT: dict[str, dict[str, Any]] = {
    "task_started": {"task_type": "local_bash", "is_backgrounded": True},
    "task_notification": {"output_file": ""},
    "status": {"status": None},
}
"""By subtype, what readers expect of Claude Code's objects and is always the same in ralph."""
_OF_ATTEMPT = ("turn", "attempt", "target", "model", "status", "kind", "error")
_EVENTS = {subtype: (kind, names) for kind, (subtype, names) in _PLAIN.items()}


def journal_fields(event: ev.Event) -> dict[str, Any] | None:
    """The keys and values of the journal's record for an event, or None if it is not recorded. The keys are the
    same as in the output. Unlike the output, the journal contains every attempt, but no heartbeats.
    """
    if isinstance(event, _NOT_IN_THE_JOURNAL):
        return None
    match event:
        case ev.AttemptEnded():
            return {
                "subtype": "attempt",
                **{name: getattr(event, name) for name in _OF_ATTEMPT},
                "latency_s": round(event.latency_s, 3),
                "tokens": to_builtins(event.tokens),
                "cost_usd": cost_usd(event.facts, event.tokens),
                "wait_s": event.wait_s,
            }
        case ev.TurnAsked():
            took_s = round(event.took_s, 3)
            return {"subtype": "turn_asked", "turn": event.turn, "attempts": event.attempts, "took_s": took_s}
        case _:
            return system_fields(event)


def error_name(kind: str) -> str:
    """The name that the output uses for the kind of failure `kind`."""
    return _ERROR_NAMES.get(FailureKind(kind), "unknown")


def system_fields(event: ev.Event) -> dict[str, Any] | None:
    """The keys and values of the `system` object for an event. None if the output shows the event in another form
    or not at all.
    """
    if (plain := _PLAIN.get(type(event))) is not None:
        subtype, names = plain
        values = {key: getattr(event, name) for key, name in names.items()}
        return {"subtype": subtype, **_CONSTANT.get(subtype, {}), **values}
    match event:
        case ev.RetryScheduled():
            return _about_retry(event)
        case ev.GuardTripped():
            return {
                "subtype": "guard",
                "turn": event.turn,
                "guard": event.guard,
                "tool": event.call.name,
                "input": event.call.arguments,
                "refusals": event.refusals,
            }
        case ev.ContextCompacted():
            sizes = {"pre_tokens": event.pre_tokens, "post_tokens": event.post_tokens}
            return {
                "subtype": "compact_boundary",
                "compact_metadata": {
                    "trigger": "auto",
                    **sizes,
                    "cause": event.trigger,
                    "source": event.source,
                },
            }
        case ev.HookEnded():
            return _about_ended_hook(event)
        case ev.SessionStateChanged():
            return {"subtype": "session_state_changed", "state": event.state, "sdk_host_only": True}
        case ev.Heartbeat():
            since_s = round(event.since_s, 1)
            return {"subtype": "heartbeat", "waiting_for": event.waiting_for, "since_s": since_s}
        case _:
            return None


def _about_retry(event: ev.RetryScheduled) -> dict[str, Any]:
    return {
        "subtype": "api_retry",
        "turn": event.turn,
        "attempt": event.attempt,
        "max_retries": event.max_retries,
        "retry_delay_ms": round(event.wait_s * 1000),
        "error_status": event.status,
        "error": error_name(event.kind),
        "kind": event.kind,
        "target": event.target,
        "message": event.message,
    }


def _about_ended_hook(event: ev.HookEnded) -> dict[str, Any]:
    known = {} if event.status is None else {"exit_code": event.status}
    return {
        "subtype": "hook_response",
        "hook_id": event.hook_id,
        "hook_name": event.name,
        "hook_event": event.event,
        "output": event.output + event.errors,
        "stdout": event.output,
        "stderr": event.errors,
        **known,
        "outcome": "success" if event.status == 0 else "error",
    }


def event_of(fields: Mapping[str, Any]) -> ev.Event | None:
    """The event from which `system_fields` made these keys and values. None if events with this subtype cannot be
    converted back.

    A missing key, as in journals of format 1, gets its default. Raises ValidationError for values that no run
    writes.
    """
    subtype = fields.get("subtype")
    if subtype == "api_retry":
        retry = convert(fields, _Retry)
        return ev.RetryScheduled(
            attempt=retry.attempt,
            max_retries=retry.max_retries,
            wait_s=retry.retry_delay_ms / 1000,
            status=retry.error_status,
            error_class=retry.kind,
            kind=retry.kind,
            message=retry.message,
        )
    if subtype == "guard":
        guard = convert(fields, _Guard)
        return ev.GuardTripped(guard.turn, guard.guard, ToolCall("", guard.tool, guard.input), guard.refusals)
    if subtype == "compact_boundary":
        about = convert(fields, _Boundary).compact_metadata
        return ev.ContextCompacted(about.cause, about.source, about.pre_tokens, about.post_tokens)
    if subtype not in _EVENTS:
        return None
    kind, names = _EVENTS[subtype]
    event: ev.Event = convert({name: fields[key] for key, name in names.items() if key in fields}, kind)
    return event


class _Retry(Struct, frozen=True):
    attempt: int
    max_retries: int
    retry_delay_ms: int
    error_status: int | None
    kind: str
    message: str


class _Guard(Struct, frozen=True):
    turn: int
    guard: str
    tool: str
    input: dict[str, Any]
    refusals: int


class _Sizes(Struct, frozen=True):
    cause: str
    source: str
    pre_tokens: int
    post_tokens: int


class _Boundary(Struct, frozen=True):
    compact_metadata: _Sizes
