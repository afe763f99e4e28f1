"""Turns events into the objects of `stream-json`. Names are those that existing readers know (specs/output.md). No I/O happens here.
The writer adds `uuid` and `session_id` to every object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ralph.output.system_events import error_name, system_fields
from ralph.values import events as ev
from ralph.values.outcome import Outcome
from ralph.values.usage import TokenUsage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ralph.values.answer import Block
    from ralph.values.events import RunEnded
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
