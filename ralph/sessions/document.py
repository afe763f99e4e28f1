"""Formats a session for `ralph sessions export`, as Markdown for people or as one JSON object for programs. No I/O
happens here. In Markdown, text from a model or a tool is quoted or fenced so that it cannot end the quotation or the
fence.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from ralph.conversation.reading import Reading
from ralph.conversation.session import replay
from ralph.output.narration import Narration
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
from ralph.sessions.story_text import cost_text, ending, event_lines, no_result, result_text
from ralph.values.screen_text import counted, in_one_line, json_for_terminal, visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ralph.sessions.looking import SessionLook
    from ralph.sessions.story import RunStory, SessionStory, Step

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
