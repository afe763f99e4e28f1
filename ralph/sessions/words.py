"""Formats times, costs and ends of runs for the user. No I/O happens here. Times are shown in the local time zone."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import ValidationError

from ralph.output.narration import one_line
from ralph.output.system_events import event_of
from ralph.values.screen_text import counted, dollars, duration
from ralph.values.usage import TokenUsage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ralph.conversation.records import EndedRecord
    from ralph.output.narration import Narration


def cost_text(cost_usd: float | None) -> str:
    return "?" if cost_usd is None else dollars(cost_usd)


def local_time(written: str) -> str:
    """An ISO 8601 time as local time. A text that is not a valid time is returned unchanged."""
    try:
        return f"{datetime.fromisoformat(written).astimezone():%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError):  # the time zone may move it out of the years 1 to 9999
        return written


def event_lines(fields: Mapping[str, Any], narration: Narration) -> list[str]:
    """The lines about an event of a journal, in the words of a run. Empty if there is nothing to say, and for an event
    that only a newer ralph knows.
    """
    if fields.get("subtype") == "response_discarded":
        return [narration.color("yellow", "[discarded] an answer does not count")]
    try:
        event = event_of(fields)
        about_attempts = _attempts_line(fields)
    except (ValidationError, KeyError, TypeError, ValueError):
        return []
    lines = [] if event is None else list(narration.lines(event))
    if about_attempts is not None:
        has_failed = fields.get("error") and fields.get("kind") != "interrupted"
        lines.insert(0, narration.color("red" if has_failed else "dim", about_attempts))
    return lines


def _attempts_line(fields: Mapping[str, Any]) -> str | None:
    match fields.get("subtype"):
        case "attempt" if fields["kind"] == "interrupted":
            took = f"{duration(fields['latency_s'])}{_counts(fields)}"
            return f"[turn {fields['turn']}] {fields['target']} was interrupted after {took}"
        case "attempt" if fields["error"] is not None:
            took = f"{fields['target']}, {duration(fields['latency_s'])}{_counts(fields)}"
            return f"[error] {one_line(fields['error'])} ({took})"
        case "attempt":
            took = f"{duration(fields['latency_s'])}{_counts(fields)}"
            return f"[turn {fields['turn']}] {fields['target']} answered in {took}"
        case "turn_asked" if fields["attempts"] > 1:
            return f"[turn {fields['turn']}] {fields['attempts']} attempts in {duration(fields['took_s'])}"
        case "api_retry" if "turn" not in fields:  # journals of format 1 have no records of attempts
            return f"[error] {one_line(fields['message'])}"
    return None


def _counts(fields: Mapping[str, Any]) -> str:
    """The tokens and the cost of an attempt, as text. Empty if the server counted no tokens. An attempt is billed
    even if its answer is incomplete.
    """
    tokens = TokenUsage(**fields["tokens"])
    if tokens == TokenUsage():
        return ""
    return f": {tokens.prompt:,} tokens in, {tokens.output:,} out, {cost_text(fields['cost_usd'])}"


def ending(ended: EndedRecord) -> str:
    """One line about the end of a run. It is similar to the last line that the run printed."""
    code = f" (exit {ended.exit_code})" if ended.exit_code else ""
    why = f": {one_line(ended.errors[-1])}" if ended.errors else ""
    took = f"{counted(ended.num_turns, 'turn')}, {duration(ended.duration_s)}, {cost_text(ended.cost_usd)}"
    return f"{ended.outcome}{code}{why} [{took}]"
