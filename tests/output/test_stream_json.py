"""Events as the objects that readers of headless agents know, field by field."""

from __future__ import annotations

from typing import Any

from ralph.output.stream_json import result_object, stream_objects
from ralph.values import events as ev
from ralph.values.errors import FailureKind
from ralph.values.outcome import Outcome
from ralph.values.usage import RunUsage, TokenUsage
from tests.output.ended import ended
from tests.rows import every_row


def objects(event: ev.Event, *, include_partial: bool = False) -> list[dict[str, Any]]:
    return list(stream_objects(event, ralph_version="1.2.3", include_partial=include_partial))


def one(event: ev.Event) -> dict[str, Any]:
    (single,) = objects(event)
    return single


@every_row(
    ("kind", "name"),
    [
        (FailureKind.RATE_LIMIT, "rate_limit"),
        (FailureKind.USAGE_LIMIT, "billing_error"),
        (FailureKind.OVERLOADED, "overloaded"),
        (FailureKind.SERVER, "server_error"),
        (FailureKind.TIMEOUT, "server_error"),
        (FailureKind.AUTH, "authentication_failed"),
        (FailureKind.NOT_FOUND, "model_not_found"),
        (FailureKind.INVALID_REQUEST, "invalid_request"),
        (FailureKind.NETWORK, "unknown"),
        (FailureKind.STREAM, "unknown"),
        (FailureKind.PROTOCOL, "unknown"),
    ],
)
def test_api_retry_names_the_error_as_readers_do(kind, name) -> None:
    event = ev.RetryScheduled(2, 4, 1.5, 529, "HttpError", kind.value, "words", turn=3, target="main")
    assert one(event) == {
        "type": "system",
        "subtype": "api_retry",
        "turn": 3,
        "attempt": 2,
        "max_retries": 4,
        "retry_delay_ms": 1500,
        "error_status": 529,
        "error": name,
        "kind": kind.value,
        "target": "main",
        "message": "words",
    }


BASH = {"task_id": "bash_1", "tool_use_id": "toolu_1"}


@every_row(
    ("event", "subtype", "fields"),
    [
        (ev.PermissionModeChanged("plan"), "status", {"status": None, "permissionMode": "plan"}),
        (
            ev.HookStarted("h1", "PreToolUse:Bash", "PreToolUse"),
            "hook_started",
            {"hook_id": "h1", "hook_name": "PreToolUse:Bash", "hook_event": "PreToolUse"},
        ),
        (
            ev.RetryRecovered(2, 6.0, turn=5, attempt=3),
            "retry_recovered",
            {"turn": 5, "attempt": 3, "retries": 2, "total_wait_s": 6.0},
        ),
        (
            ev.RetryExhausted(4, 30.0, "e", turn=5, attempt=5),
            "retry_exhausted",
            {"turn": 5, "attempt": 5, "retries": 4, "total_wait_s": 30.0, "error": "e"},
        ),
        (
            ev.ModelFallback("main", "spare", "overloaded", 5, 1),
            "model_fallback",
            {"turn": 5, "attempt": 1, "from": "main", "to": "spare", "reason": "overloaded"},
        ),
        (
            ev.ModelFallbackSucceeded("spare", 5, 2),
            "model_fallback_succeeded",
            {"turn": 5, "attempt": 2, "target": "spare"},
        ),
        (
            ev.ModelFallbackRecovered("main", 6, 1),
            "model_fallback_recovered",
            {"turn": 6, "attempt": 1, "target": "main"},
        ),
        (ev.ResponseDiscarded("m1"), "response_discarded", {"message_id": "m1"}),
        (ev.ClockFired("connect", 10.0), "clock_fired", {"clock": "connect", "after_s": 10.0}),
        (
            ev.BackgroundStarted("bash_1", "npm run dev", "toolu_1"),
            "task_started",
            {**BASH, "task_type": "local_bash", "is_backgrounded": True, "description": "npm run dev"},
        ),
        (
            ev.BackgroundEnded("bash_1", "npm run dev", "toolu_1", 3, "", 1.5),
            "task_notification",
            {**BASH, "output_file": "", "status": "failed", "summary": "npm run dev", "exit_code": 3}
            | {"stopped_by": "", "took_s": 1.5},
        ),
        (ev.Heartbeat("x", 30.04), "heartbeat", {"waiting_for": "x", "since_s": 30.0}),
        (ev.Notice("n"), "notice", {"text": "n"}),
    ],
)
def test_own_additions_are_system_objects(event, subtype, fields) -> None:
    assert one(event) == {"type": "system", "subtype": subtype, **fields}


def test_the_result_object_has_the_fields_that_readers_want() -> None:
    usage = RunUsage().plus("unheard-of", TokenUsage(1, 2, 3, 0, 4), None)
    result = result_object(ended(result="done", usage=usage, num_turns=3, duration_s=2.5), "s1")
    assert result == {
        "type": "result",
        "subtype": "success",
        "is_error": False,
        "terminal_reason": "completed",
        "exit_code": 0,
        "duration_ms": 2500,
        "duration_api_ms": 1000,
        "num_turns": 3,
        "stop_reason": "end_turn",
        "session_id": "s1",
        "total_cost_usd": None,
        "result": "done",
        "usage": {
            "input_tokens": 1,
            "output_tokens": 2,
            "cache_creation_input_tokens": 3,
            "cache_read_input_tokens": 4,
            "server_tool_use": {"web_search_requests": 0, "web_fetch_requests": 0},
            "cache_creation": {"ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 3},
        },
        "modelUsage": {
            "unheard-of": {
                "inputTokens": 1,
                "outputTokens": 2,
                "cacheReadInputTokens": 4,
                "cacheCreationInputTokens": 3,
                "costUSD": None,
                "contextWindow": None,
                "maxOutputTokens": None,
            }
        },
        "permission_denials": [],
        "retries": 0,
        "waited_s": 0.0,
        "session_num_turns": 0,
        "session_cost_usd": 0.0,
    }


def test_what_only_some_runs_know_is_left_out_elsewhere() -> None:
    bare = result_object(ended(), "s1")
    assert not {"result", "errors", "hints", "api_error_status", "retry_after_s"} & bare.keys()
    fields: dict[str, Any] = {"api_error_status": 529, "retry_after_s": 7.0, "hints": ("h",)}
    known = result_object(ended(Outcome.API_UNAVAILABLE, **fields), "s1")
    assert (known["api_error_status"], known["retry_after_s"], known["hints"]) == (529, 7.0, ["h"])
