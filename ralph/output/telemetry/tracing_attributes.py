"""The event fields that traces contain, with the name of the attribute for each field. No I/O happens here.

Names, numbers and kinds are exported. Fields that may contain text are not exported: prompts, answers, arguments,
outputs and error messages. If a value is unknown (None), its attribute is left out.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ralph.output.system_events import named_fields
from ralph.values import events as ev
from ralph.values.endpoint import ANTHROPIC
from ralph.values.usage import TokenUsage, cost_usd

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ralph.values.tool_calls import ToolCall

    Attributes = Mapping[str, Any]


def _named(words: str) -> dict[str, str]:
    """As `named_fields`. A name without a dot is one of ralph's own attributes."""
    return {key if "." in key else f"ralph.{key}": field for key, field in named_fields(words).items()}


# The names of the GenAI conventions, as text. The package no longer has constants for them.
_SPAN_EVENTS: dict[type, tuple[str, dict[str, str]]] = {
    ev.RetryScheduled: (
        "api_retry",
        _named("retry=attempt max_retries wait_s target error.type=kind http.response.status_code=status"),
    ),
    ev.RetryRecovered: ("retry_recovered", _named("attempt retries waited_s=total_wait_s")),
    ev.RetryExhausted: ("retry_exhausted", _named("attempt retries waited_s=total_wait_s")),
    ev.ModelFallback: ("model_fallback", _named("attempt from=from_target to=to_target reason")),
    ev.ModelFallbackSucceeded: ("model_fallback_succeeded", _named("attempt target")),
    ev.ModelFallbackRecovered: ("model_fallback_recovered", _named("attempt target")),
    ev.SyntheticRetry: ("synthetic_retry", _named("retry=number reason")),
    ev.MalformedCallRefused: ("malformed_call", _named("gen_ai.tool.name=tool")),
    ev.GuardTripped: ("guard", _named("guard refusals gen_ai.tool.name=call.name")),
    ev.FinalTurnEntered: ("final_turn", _named("reason")),
    ev.TurnsCollapsed: ("turns_collapsed", _named("reason old_max_turns new_max_turns")),
    ev.ReportAccepted: ("report_accepted", _named("source status attempts reason=forced_reason")),
    ev.ContextCompacted: ("compact_boundary", _named("trigger source pre_tokens post_tokens")),
}
"""The events that become span events. Maps each type of event to its name in ralph's own output, and to a table that
gives the event's field for each attribute."""


def span_event_of(event: ev.Event) -> tuple[str, Attributes] | None:
    """The name and the attributes of the span event for an event. None if the event does not become a span event."""
    if (found := _SPAN_EVENTS.get(type(event))) is None:
        return None
    name, fields = found
    return name, {key: attrgetter(field)(event) for key, field in fields.items()}


def provider_of(api: str) -> Attributes:
    """The provider as the conventions name it: the vendor whose API is spoken, whoever serves it."""
    return {"gen_ai.provider.name": "anthropic" if api == ANTHROPIC else "openai"}


def of_run(session_id: str) -> Attributes:
    return {
        **provider_of(ANTHROPIC),
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "ralph",
        "gen_ai.conversation.id": session_id,
    }


def of_result(event: ev.RunEnded) -> Attributes:
    return {
        **_usage(event.usage.tokens),
        "ralph.outcome": event.outcome.value,
        "ralph.exit_code": event.exit_code,
        "ralph.turns": event.num_turns,
        "ralph.retries": event.retries,
        "ralph.waited_s": event.waited_s,
        "ralph.api_s": event.api_s,
        "ralph.cost_usd": event.usage.cost_usd,
    }


def of_attempt(event: ev.AttemptEnded, session_id: str) -> Attributes:
    return {
        **provider_of(event.api),
        "gen_ai.operation.name": "chat",
        "gen_ai.conversation.id": session_id,
        "gen_ai.request.model": event.model,
        **_usage(event.tokens),
        "http.response.status_code": event.status,
        "ralph.attempt": event.attempt,
        "ralph.target": event.target,
        "ralph.turn": event.turn,
        "ralph.cost_usd": cost_usd(event.facts, event.tokens),
    }


def of_tool(call: ToolCall) -> Attributes:
    return {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": call.name,
        "gen_ai.tool.call.id": call.id,
        "gen_ai.tool.type": "function",
    }


def of_stream(event: Mapping[str, Any]) -> Attributes:
    """The attributes that can be read from one event of the API's stream. Values of a wrong type are ignored, because
    a server may send anything.
    """
    match event:
        case {"type": "message_start", "message": {**message}}:
            return {
                "gen_ai.response.id": _text(message.get("id")),
                "gen_ai.response.model": _text(message.get("model")),
            }
        case {"type": "message_delta", "delta": {"stop_reason": str(reason)}}:
            return {"gen_ai.response.finish_reasons": (reason,)}
        case _:
            return {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _usage(tokens: TokenUsage) -> dict[str, int]:
    if tokens == TokenUsage():
        return {}
    return {
        # by the conventions, cached tokens are a part of the input
        "gen_ai.usage.input_tokens": tokens.prompt,
        "gen_ai.usage.output_tokens": tokens.output,
        "gen_ai.usage.cache_creation.input_tokens": tokens.cache_write,
        "gen_ai.usage.cache_read.input_tokens": tokens.cache_read,
    }
