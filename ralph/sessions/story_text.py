"""Formats a session for `ralph sessions show`, in the same style as the lines that a run prints. Results and prompts
are shortened here, but not by `document.py`. No I/O happens here.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from msgspec import ValidationError

from ralph.output.narration import LONGEST_SUMMARY, Narration, describe_call, one_line
from ralph.output.system_events import event_of
from ralph.sessions.story import DAMAGED, KILLED, RUNNING, CallOutcome, EventStep, ModelText, Prompt
from ralph.values.outcome import Outcome
from ralph.values.screen_text import counted, dollars, duration, foreign_lines, visible
from ralph.values.usage import TokenUsage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ralph.conversation.records import EndedRecord
    from ralph.sessions.looking import SessionLook
    from ralph.sessions.story import RunStory, Step
    from ralph.values.answer import ToolResult

_PROMPT_LINES = 24
_FIRST_RESULT_LINES = 3
_LAST_RESULT_LINES = 2


class SessionText:
    def __init__(self, *, has_color: bool) -> None:
        self._narration = Narration(is_quiet=False, has_color=has_color)
        self._color = self._narration.color

    def lines(self, look: SessionLook) -> Iterator[str]:
        yield from self._header(look)
        for run in look.story.runs:
            yield ""
            copied = ", copied from the session that this one was forked from" if run.is_copied else ""
            began = f"{local_time(run.opening.started_at)}, {one_line(run.opening.model)}{copied}"
            yield self._color("dim", f"[run {run.number}] {began}")
            outcome = look.outcome if run is look.story.runs[-1] else KILLED
            for step in (*run.steps, *run.open_calls()):
                yield from self._step(step, outcome)
            yield from self._run_end(run, outcome)

    def _header(self, look: SessionLook) -> Iterator[str]:
        story, opening = look.story, look.story.opening
        made, forked_from = "?, by ralph ?", None
        if opening is not None:
            made = f"{local_time(opening.created_at)}, by ralph {opening.ralph}"
            forked_from = opening.forked_from
        written = local_time(datetime.fromtimestamp(look.written_at_s, tz=UTC).isoformat())
        rows = {
            "session": f"{look.id} ({look.outcome})",
            "title": story.title or "",
            "directory": "?" if opening is None else opening.cwd,
            "model": story.runs[-1].opening.model if story.runs else "?",
            "created": made,
            "updated": written,
            "forked": "" if forked_from is None else f"from {forked_from}",
            "total": f"{counted(len(story.own_runs), 'run')}, {counted(story.turns, 'turn')}, "
            f"{cost_text(story.cost_usd)}",
        }
        for name, value in rows.items():
            if value:
                yield f"{self._color('dim', f'{name:9}')} {one_line(str(value))}"

    def damage(self, problem: str) -> str:
        return self._color("red", f"[damaged] {one_line(problem)}; what follows cannot be read")

    def resume_line(self, command: str) -> str:
        return self._color("dim", f"[ralph] continue with: {command}")

    def _run_end(self, run: RunStory, outcome: str) -> Iterator[str]:
        if run.ended is not None:
            is_good = run.ended.outcome == Outcome.COMPLETED.value
            yield self._color("green" if is_good else "red", f"[ralph] {ending(run.ended)}")
            if run.undelivered is not None and outcome != RUNNING:
                yield self._color("red", f"[ralph] {one_line(run.undelivered)}")
        elif outcome == RUNNING:
            so_far = f"{counted(run.turns, 'turn')}, {cost_text(run.cost_usd)} so far"
            yield self._color("blue", f"[running] in process {run.opening.pid} [{so_far}]")
        elif outcome != DAMAGED:
            at_least = f"{counted(run.turns, 'turn')}, {cost_text(run.cost_usd)} at least"
            yield self._color("red", f"[killed] this run has no recorded end [{at_least}]")

    def _step(self, step: Step, outcome: str) -> Iterator[str]:
        match step:  # the thinking of a model is not shown
            case Prompt():
                yield from self._prompt(step)
            case ModelText():
                yield from foreign_lines(step.text)
            case CallOutcome():
                yield self._color("blue", f"[tool] {describe_call(step.call)}")
                if step.result is not None:
                    if step.result.output.is_error:
                        yield self._color("yellow", "  failed:")
                    for line in _gist(result_text(step.result)):
                        yield self._color("dim", f"  | {line}")
                else:
                    yield self._color("yellow", f"  {no_result(step, outcome)}")
            case EventStep():
                yield from event_lines(step.fields, self._narration)

    def _prompt(self, prompt: Prompt) -> Iterator[str]:
        if prompt.is_automatic:
            yield self._color("dim", f"[ralph] to the model: {one_line(prompt.text)}")
            return
        lines = visible(prompt.text).strip("\n").split("\n")
        yield from (f"> {line}" for line in lines[:_PROMPT_LINES])
        if len(lines) > _PROMPT_LINES:
            yield self._color("dim", f"> … {counted(len(lines) - _PROMPT_LINES, 'line')} more")


def result_text(result: ToolResult) -> str:
    """The text of a result. For a block that is not text, shows the block's type."""
    content = result.output.content
    if isinstance(content, str):
        return content
    return "\n".join(
        block["text"] if block.get("type") == "text" else f"({block.get('type')} {_media(block)})"
        for block in content
    )


def no_result(called: CallOutcome, outcome: str) -> str:
    """The reason why a call has no result. `outcome` is the outcome of the run that made the call."""
    if outcome == RUNNING:
        return "under way" if called.was_started else "not started yet"
    if outcome == DAMAGED:
        return "its result cannot be read"
    return "killed while it ran: its effects are unknown" if called.was_started else "not run"


def _media(block: Mapping[str, Any]) -> str:
    source = block.get("source")
    return str(source.get("media_type", "")) if isinstance(source, dict) else ""


def _gist(text: str) -> Iterator[str]:
    """Yields the first lines, which show how a file begins, and the last, which show whether a command succeeded."""
    lines = [line for line in visible(text).split("\n") if line.strip()] or ["(nothing)"]
    first, last = lines[:_FIRST_RESULT_LINES], lines[_FIRST_RESULT_LINES:]
    left_out = len(last) - _LAST_RESULT_LINES
    for line in first:
        yield _cut(line)
    if left_out > 0:
        yield f"… {counted(left_out, 'line')} more"
    for line in last[max(0, left_out) :]:
        yield _cut(line)


def _cut(line: str) -> str:
    return line if len(line) <= LONGEST_SUMMARY else line[:LONGEST_SUMMARY] + " …"


# --- Times, costs and ends
# Formats times, costs and ends of runs for the user. No I/O happens here. Times are shown in the local time zone.


def cost_text(cost_usd: float | None) -> str:
    return "?" if cost_usd is None else dollars(cost_usd)


def local_time(written: str) -> str:
    """An ISO 8601 time as local time. A text that is not a valid time is returned unchanged."""
    try:
        return f"{datetime.fromisoformat(written).astimezone():%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError):  # the time zone may move it out of the years 1 to 9999
        return written


def event_lines(fields: Mapping[str, Any], narration: Narration) -> list[str]:
    """The lines about an event of a journal, in the words of a run. Empty if there is nothing to say, and for an
    event that only a newer ralph knows.
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
