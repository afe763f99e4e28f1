"""Formats a session for `ralph sessions show`, in the same style as the lines that a run prints. Results and prompts
are shortened here, but not by `document.py`. No I/O happens here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ralph.output.narration import LONGEST_SUMMARY, Narration, describe_call, one_line
from ralph.sessions.history import DAMAGED, KILLED, RUNNING
from ralph.sessions.story import Called, Happened, OtherBlock, Prompted, Said, story_of
from ralph.sessions.words import attempts_line, cost_text, ending, local_time
from ralph.values.outcome import Outcome
from ralph.values.screen_text import counted, foreign_lines, visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ralph.sessions.history import RunHistory, SessionHistory
    from ralph.sessions.story import Happening
    from ralph.values.events import Event
    from ralph.values.tool_calls import ToolResult

_PROMPT_LINES = 24
_FIRST_RESULT_LINES = 3
_LAST_RESULT_LINES = 2


class SessionText:
    def __init__(self, *, has_color: bool) -> None:
        self._narration = Narration(is_quiet=False, has_color=has_color)
        self._color = self._narration.color

    def header(
        self, session_id: str, outcome: str, history: SessionHistory, written_at: str
    ) -> Iterator[str]:
        opening = history.opening
        made = "?, by ralph ?"
        if opening is not None:
            made = f"{local_time(opening.created_at)}, by ralph {opening.ralph}"
        forked_from = None if opening is None else opening.forked_from
        rows = {
            "session": f"{session_id} ({outcome})",
            "title": history.title or "",
            "directory": "?" if opening is None else opening.cwd,
            "model": history.runs[-1].opening.model if history.runs else "?",
            "made": made,
            "written": f"last {local_time(written_at)}",
            "forked": "" if forked_from is None else f"from {forked_from}",
            "total": f"{counted(len(history.own_runs), 'run')}, {counted(history.turns, 'turn')}, "
            f"{cost_text(history.cost_usd)}",
        }
        for name, value in rows.items():
            if value:
                yield f"{self._color('dim', f'{name:9}')} {one_line(str(value))}"

    def story(self, outcome: str, history: SessionHistory) -> Iterator[str]:
        for run, happenings in story_of(history):
            yield ""
            yield from self._run_opening(run)
            end = outcome if run is history.runs[-1] else KILLED
            for happening in happenings:
                yield from self._lines(happening, end)
            yield from self._run_end(run, end)

    def damage(self, problem: str) -> str:
        return self._color("red", f"[damaged] {one_line(problem)}; what follows cannot be read")

    def resume_line(self, command: str) -> str:
        return self._color("dim", f"[ralph] go on with: {command}")

    def _run_opening(self, run: RunHistory) -> Iterator[str]:
        copied = ", copied from the session that this one was forked from" if run.is_copied else ""
        line = (
            f"[run {run.number}] {local_time(run.opening.started_at)}, {one_line(run.opening.model)}{copied}"
        )
        yield self._color("dim", line)

    def _run_end(self, run: RunHistory, outcome: str) -> Iterator[str]:
        if run.ended is not None:
            is_good = run.ended.outcome == Outcome.COMPLETED.value
            yield self._color("green" if is_good else "red", f"[ralph] {ending(run.ended)}")
            if run.undelivered is not None and outcome != RUNNING:
                yield self._color("red", f"[ralph] {one_line(run.undelivered)}")
        elif outcome == RUNNING:
            so_far = f"{counted(run.turns, 'turn')}, {cost_text(run.cost_usd)} so far"
            yield self._color("blue", f"[running] process {run.opening.pid} is at it [{so_far}]")
        elif outcome != DAMAGED:
            at_least = f"{counted(run.turns, 'turn')}, {cost_text(run.cost_usd)} at least"
            yield self._color("red", f"[killed] here: this run has no end [{at_least}]")

    def _lines(self, happening: Happening, outcome: str) -> Iterator[str]:
        match happening:
            case Prompted():
                yield from self._prompt(happening)
            case Said():
                yield from foreign_lines(happening.text)
            case Called():
                yield self._color("blue", f"[tool] {describe_call(happening.call)}")
                if happening.result is not None:
                    yield from self._result(happening.result)
                else:
                    yield self._color("yellow", f"  {no_result(happening, outcome)}")
            case Happened():
                yield from self._event(happening.fields, happening.event)
            case OtherBlock():
                pass  # the thinking of a model is not part of the story

    def _prompt(self, prompt: Prompted) -> Iterator[str]:
        if prompt.is_automatic:
            yield self._color("dim", f"[ralph] to the model: {one_line(prompt.text)}")
            return
        lines = visible(prompt.text).strip("\n").split("\n")
        yield from (f"> {line}" for line in lines[:_PROMPT_LINES])
        if len(lines) > _PROMPT_LINES:
            yield self._color("dim", f"> … {counted(len(lines) - _PROMPT_LINES, 'line')} more")

    def _result(self, result: ToolResult) -> Iterator[str]:
        if result.output.is_error:
            yield self._color("yellow", "  failed:")
        for line in _gist(result_text(result)):
            yield self._color("dim", f"  | {line}")

    def _event(self, fields: Mapping[str, Any], event: Event | None) -> Iterator[str]:
        about_attempts = attempts_line(fields)
        if about_attempts is not None:
            error = fields.get("error") if fields.get("kind") != "interrupted" else None
            yield self._color("red" if error else "dim", about_attempts)
            return
        if fields.get("subtype") == "response_discarded":
            yield self._color("yellow", "[discarded] an answer does not count")
            return
        if event is not None:
            yield from self._narration.lines(event)


def result_text(result: ToolResult) -> str:
    """The text of a result. For a block that is not text, shows the block's type."""
    content = result.output.content
    if isinstance(content, str):
        return content
    return "\n".join(
        block["text"] if block.get("type") == "text" else f"({block.get('type')} {_media(block)})"
        for block in content
    )


def no_result(called: Called, outcome: str) -> str:
    """The reason why a call has no result. `outcome` is the outcome of the run that made the call."""
    if outcome == RUNNING:
        return "under way" if called.was_started else "not started yet"
    if outcome == DAMAGED:
        return "what came of it cannot be read"
    return "killed while it ran: its effects are unknown" if called.was_started else "not run"


def _media(block: Mapping[str, Any]) -> str:
    source = block.get("source")
    return str(source.get("media_type", "")) if isinstance(source, dict) else ""


def _gist(text: str) -> Iterator[str]:
    """Yields the first and last lines of a text. The first lines show how a file begins. The last lines show whether
    a command succeeded.
    """
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
