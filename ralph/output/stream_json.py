"""Turns events into the objects of `stream-json`. Names are those that existing readers know (specs/output.md).
No I/O happens here. The writer adds `uuid` and `session_id` to every object.

`system` objects are also records of the journal, and are converted back. Events that are part of the conversation have no
such record.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from msgspec import Struct, convert, to_builtins

from ralph.values import events as ev
from ralph.values.answer import ToolCall
from ralph.values.errors import FailureKind
from ralph.values.outcome import Outcome
from ralph.values.usage import TokenUsage, cost_usd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ralph.values.answer import Block
    from ralph.values.events import RunEnded
    from ralph.values.ports import Clock
    from ralph.values.usage import ModelUsage

# Readers warn about a version below "2.". The object also names ralph and its version.
READERS_WANT_VERSION = "2.0.0"
OUTPUT_STYLE = "default"
# It tells readers that no model wrote the message.
_NO_MODEL = "<synthetic>"


def stream_objects(event: ev.Event, *, ralph_version: str, include_partial: bool) -> Iterable[dict[str, Any]]:
    """The objects for one event: none, one, or one per content block. The `result` object is not among them:
    `result_object` makes it.
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


# --- The result object
# It has the same fields in `json`, in `stream-json` and in `--result-file`. These exist only in ralph: `terminal_reason`,
# `exit_code`, `retry_after_s`, `retries`, `waited_s`, `hints`, `notices`, `final_report`, `guard`, `session_num_turns`,
# `session_cost_usd`, `sandbox`, `sandbox_protections` and `background_stopped`.


def result_object(ended: RunEnded, session_id: str) -> dict[str, Any]:
    result: dict[str, Any] = {
        "type": "result",
        "subtype": _subtype(ended),
        "is_error": ended.outcome.is_error,
        "terminal_reason": ended.outcome.value,
        "exit_code": ended.exit_code,
        "duration_ms": round(ended.duration_s * 1000),
        "duration_api_ms": round(ended.api_s * 1000),
        "num_turns": ended.num_turns,
        "stop_reason": ended.stop_reason,
        "session_id": session_id,
        "total_cost_usd": _rounded(ended.usage.cost_usd),
        "usage": usage_object(ended.usage.tokens),
        "modelUsage": {model: _model_usage(used) for model, used in ended.usage.by_model.items()},
        "session_num_turns": ended.session_total.turns,
        "session_cost_usd": _rounded(ended.session_total.cost_usd),
        "permission_denials": [
            {"tool_name": call.name, "tool_use_id": call.id, "tool_input": call.arguments}
            for call in ended.denied
        ],
        "retries": ended.retries,
        "waited_s": ended.waited_s,
    }
    if ended.sandbox is not None:
        result["sandbox"] = ended.sandbox
        result["sandbox_protections"] = dict(ended.protections)
    answer = ended.result if ended.result is not None else api_error_text(ended)
    if answer is not None:
        result["result"] = answer
    if ended.report is not None:
        result["final_report"] = ended.report.as_object()
        if ended.report.payload is not None:
            result["structured_output"] = ended.report.payload
    if ended.dead_end is not None:
        call = ended.dead_end.call
        result["guard"] = {"name": ended.dead_end.name, "tool": call.name, "input": call.arguments}
    for name, texts in (("errors", ended.errors), ("hints", ended.hints), ("notices", ended.notices)):
        if texts:
            result[name] = list(texts)
    if ended.api_error_status is not None:
        result["api_error_status"] = ended.api_error_status
    if ended.retry_after_s is not None:
        result["retry_after_s"] = ended.retry_after_s
    if ended.background_stopped:
        result["background_stopped"] = ended.background_stopped
    if ended.is_short:
        result["is_short"] = True
    return result


def limit_named(subtype: object) -> str | None:
    """The limit that the `subtype` of a result names: `max_turns` or `max_budget_usd`. None if it names no limit."""
    return next((limit for limit, name in _SUBTYPE_OF_LIMIT.items() if name == subtype), None)


_SUBTYPE_OF_LIMIT = {"max_turns": "error_max_turns", "max_budget_usd": "error_max_budget_usd"}


def _subtype(ended: RunEnded) -> str:
    if ended.outcome is Outcome.COMPLETED:
        return "success"
    if ended.outcome is Outcome.LIMIT_REACHED and ended.limit in _SUBTYPE_OF_LIMIT:
        return _SUBTYPE_OF_LIMIT[ended.limit]
    never_fitted = ended.report is not None and ended.report.details.get("final_report_attempts")
    if ended.outcome is Outcome.TASK_FAILED and never_fitted:
        return "error_max_structured_output_retries"
    return "error_during_execution"


def _rounded(cost_usd: float | None) -> float | None:
    """The cost rounded to a millionth of a dollar, because a sum of floats can have a rounding error."""
    return None if cost_usd is None else round(cost_usd, 6)


def usage_object(tokens: TokenUsage) -> dict[str, Any]:
    """The token usage in the form of the API. The counts of server tools are 0, because ralph uses no tools that
    the API runs.
    """
    return {
        "input_tokens": tokens.input,
        "cache_creation_input_tokens": tokens.cache_write,
        "cache_read_input_tokens": tokens.cache_read,
        "output_tokens": tokens.output,
        "server_tool_use": {"web_search_requests": 0, "web_fetch_requests": 0},
        "cache_creation": {
            "ephemeral_1h_input_tokens": tokens.cache_write_1h,
            "ephemeral_5m_input_tokens": tokens.cache_write - tokens.cache_write_1h,
        },
    }


def api_error_text(ended: RunEnded) -> str | None:
    """The text that replaces the answer if a failure of the API ended the run. None if anything else ended the run."""
    return f"API Error: {ended.errors[-1]}" if ended.api_failure is not None and ended.errors else None


def _model_usage(used: ModelUsage) -> dict[str, Any]:
    facts = used.facts
    return {
        "inputTokens": used.tokens.input,
        "outputTokens": used.tokens.output,
        "cacheReadInputTokens": used.tokens.cache_read,
        "cacheCreationInputTokens": used.tokens.cache_write,
        "costUSD": _rounded(used.cost_usd),
        "contextWindow": facts.context_window if facts else None,
        "maxOutputTokens": facts.max_output if facts else None,
    }


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


# --- Lines for people who search for a fault
# They contain no text of models, tools and files. While an answer arrives, its pieces get no lines.

_DELTA = "content_block_delta"


class Diagnostics:
    """An `Events` sink that makes a line from each event and passes it to `write`. The line may contain secrets, so
    `write` must redact it.
    """

    def __init__(self, clock: Clock, started_s: float, write: Callable[[str], None]) -> None:
        self._clock = clock
        self._started_s = started_s
        self._write = write

    def emit(self, event: ev.Event) -> None:
        facts = _facts(event)
        if facts is None:
            return
        after_s = self._clock.now_s() - self._started_s
        shown = f" {json.dumps(facts, ensure_ascii=False, default=str)}" if facts else ""
        self._write(f"[debug] {after_s:.3f}s {type(event).__name__}{shown}")


def _facts(event: ev.Event) -> dict[str, Any] | None:
    match event:
        case ev.StreamReceived():
            kind = event.event.get("type")
            return None if kind == _DELTA else {"type": kind}
        case ev.RunStarted():
            return {"model": event.model, "cwd": event.cwd, "tools": event.tools, "sandbox": event.sandbox}
        case ev.AnswerAccepted():
            message = event.message
            facts = {name: message.get(name) for name in ("id", "model", "stop_reason", "usage")}
            return {**facts, "request_id": event.request_id}
        case ev.ToolStarted():
            return {"tool": event.call.name, "id": event.call.id}
        case ev.ToolFinished():
            is_error, took_s = event.result.output.is_error, round(event.took_s, 3)
            return {"tool": event.call.name, "id": event.call.id, "is_error": is_error, "took_s": took_s}
        case ev.Heartbeat():
            return {"waiting_for": event.waiting_for, "since_s": round(event.since_s, 1)}
        case ev.RunEnded():
            return {
                "outcome": event.outcome.value,
                "exit_code": event.exit_code,
                "num_turns": event.num_turns,
            }
        case _:
            return journal_fields(event) or {}
