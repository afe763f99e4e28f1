"""Formats a session. No I/O happens here.

For `ralph sessions show`, in the same style as the lines that a run prints, with shortened results and prompts. For `ralph
sessions export`, in full, as Markdown for people or as one JSON object for programs. In Markdown, text from a model or a
tool is quoted or fenced so that it cannot end the quotation or the fence.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from msgspec import ValidationError

from ralph.conversation.session import Reading, replay
from ralph.output.narration import LONGEST_SUMMARY, Narration, describe_call, one_line
from ralph.output.stream_json import event_of
from ralph.sessions.story import (
    DAMAGED,
    KILLED,
    RUNNING,
    CallOutcome,
    EventStep,
    ModelText,
    OtherBlock,
    Prompt,
)
from ralph.values.outcome import Outcome
from ralph.values.screen_text import (
    counted,
    dollars,
    duration,
    foreign_lines,
    in_one_line,
    json_for_terminal,
    visible,
)
from ralph.values.usage import TokenUsage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ralph.conversation.records import EndedRecord
    from ralph.sessions.looking import SessionLook
    from ralph.sessions.story import RunStory, SessionStory, Step
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


# --- The export

EXPORT_VERSION = 1
"""The version of the JSON export. It increases when the meaning of a field changes."""


def markdown(look: SessionLook) -> Iterator[str]:
    story = look.story
    yield f"# Session {look.id}"
    yield ""
    for name in ("cwd", "created_at", "ralph", "forked_from"):
        value = getattr(story.opening, name, None)
        if value is not None:
            yield f"- {name}: {_inline(value)}"
    yield f"- outcome: {look.outcome}"
    yield f"- total: {counted(story.turns, 'turn')}, {cost_text(story.cost_usd)}"
    for run in story.runs:
        copied = " (copied from the session this one was forked from)" if run.is_copied else ""
        began = f"{run.opening.started_at}, {_inline(run.opening.model)}"
        yield from ("", f"## Run {run.number}{copied}", "", began)
        outcome = look.outcome if run is story.runs[-1] else KILLED
        for step in (*run.steps, *run.open_calls()):
            yield from _block(step, outcome)
        yield from ("", f"**{_end_of(run, outcome)}**")
    if look.problem is not None:
        yield from ("", f"**Damaged: {_inline(look.problem)}; what follows cannot be read.**")


def session_export(look: SessionLook) -> dict[str, Any]:
    """The session as an object for JSON. Raises SessionError if the records do not form a conversation."""
    story = look.story
    runs = [_run_object(run) for run in story.runs]
    return {
        "version": EXPORT_VERSION,
        "id": look.id,
        "title": story.title,
        "cwd": getattr(story.opening, "cwd", None),
        "created_at": getattr(story.opening, "created_at", None),
        "ralph": getattr(story.opening, "ralph", None),
        "forked_from": getattr(story.opening, "forked_from", None),
        "outcome": look.outcome,
        "damage": look.problem,
        "runs": runs,
        "messages": _messages(look),
        "events": [
            {"run": run.number, "seq": step.seq, **step.fields}
            for run in story.runs
            for step in run.steps
            if isinstance(step, EventStep)
        ],
        "totals": {
            "runs": len(story.own_runs),
            "turns": story.turns,
            "cost_usd": story.cost_usd,
            "duration_s": round(sum(run["duration_s"] or 0 for run in runs if not run["is_copied"]), 3),
        },
    }


def _messages(look: SessionLook) -> list[dict[str, Any]]:
    if not look.story.has_message:
        return []
    session = replay(look.records)
    return [json.loads(message.body) for message in Reading(session.shape).of(session.conversation).messages]


def texts_in(story: SessionStory) -> Iterator[str]:
    """The texts of the session that a search looks through: title, prompts, the model's text, calls and results."""
    yield story.title or ""
    for step in (step for run in story.runs for step in (*run.steps, *run.open_calls())):
        match step:
            case Prompt() | ModelText():
                yield step.text
            case CallOutcome(call=call, result=result):
                yield from (
                    value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                    for value in call.arguments.values()
                )
                yield "" if result is None else result_text(result)


def as_json(value: object) -> str:
    return json_for_terminal(json.dumps(value, ensure_ascii=False, indent=1))


def _run_object(run: RunStory) -> dict[str, Any]:
    ended = run.ended
    return {
        "number": run.number,
        "is_copied": run.is_copied,
        "started_at": run.opening.started_at,
        "pid": run.opening.pid,
        "model": run.opening.model,
        "request": run.opening.head.fields,
        "outcome": None if ended is None else ended.outcome,
        "exit_code": None if ended is None else ended.exit_code,
        "result": None if ended is None else ended.result,
        "errors": [] if ended is None else ended.errors,
        "undelivered": run.undelivered,
        "turns": run.turns,
        "cost_usd": run.cost_usd,
        "duration_s": None if ended is None else ended.duration_s,
    }


def _block(step: Step, outcome: str) -> Iterator[str]:
    match step:
        case Prompt():
            who = "ralph, to the model" if step.is_automatic else "Prompt"
            yield from ("", f"### {who}", "", *_quoted(step.text))
        case ModelText():
            yield from ("", "### Model", "", *_quoted(step.text))
        case OtherBlock():
            block = dict(step.block)
            text = block.get("thinking") if block.get("type") == "thinking" else None
            shown = text if isinstance(text, str) else json.dumps(block, ensure_ascii=False, indent=1)
            yield from ("", f"### Model: {_inline(str(block.get('type')))}", "", *_fenced(shown))
        case CallOutcome():
            yield from ("", *_call(step, outcome))
        case EventStep():
            yield from ("", *_event(step.fields))


def _call(called: CallOutcome, outcome: str) -> Iterator[str]:
    yield f"### Call: {_inline(called.call.name)}"
    for name, value in called.call.arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
        yield from ("", f"{_inline(name)}:", "", *_fenced(text))
    yield ""
    if called.result is None:
        yield f"No result: {no_result(called, outcome)}."
    else:
        yield "Result, an error:" if called.result.output.is_error else "Result:"
        yield from ("", *_fenced(result_text(called.result)))


def _event(fields: Mapping[str, Any]) -> list[str]:
    lines = event_lines(fields, Narration(is_quiet=False, has_color=False))
    if not lines and fields.get("subtype") == "turn_asked":
        return []  # there was only one attempt, which is shown already
    return _fenced("\n".join(lines) or json.dumps(dict(fields), ensure_ascii=False))


def _end_of(run: RunStory, outcome: str) -> str:
    if run.ended is not None:
        undelivered = f"; {run.undelivered}" if run.undelivered is not None else ""
        return _inline(f"{ending(run.ended)}{undelivered}")
    return {RUNNING: "still running", DAMAGED: "how it ended cannot be read"}.get(
        outcome, "killed: it has no end"
    )


def _quoted(text: str) -> list[str]:
    return [f"> {line}".rstrip() for line in visible(text).strip("\n").split("\n")]


def _fenced(text: str) -> list[str]:
    body = visible(text)
    fence = "`" * max(3, _longest_run_of_backticks(body) + 1)
    return [fence, *body.rstrip("\n").split("\n"), fence]


def _inline(text: str) -> str:
    line = " ".join(in_one_line(text).split())
    mark = "`" * (_longest_run_of_backticks(line) + 1)
    gap = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{mark}{gap}{line}{gap}{mark}"


def _longest_run_of_backticks(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
