"""Formats a session for `ralph sessions export`, as Markdown for people or as one JSON object for programs. No I/O
happens here. In Markdown, text from a model or a tool is quoted or fenced so that it cannot end the quotation or the
fence.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from ralph.conversation.records import EventRecord
from ralph.output.narration import Narration
from ralph.sessions.history import DAMAGED, KILLED, RUNNING, messages_of
from ralph.sessions.story import Called, Happened, OtherBlock, Prompted, Said, story_of
from ralph.sessions.story_text import no_result, result_text
from ralph.sessions.words import attempts_line, cost_text, ending
from ralph.values.screen_text import counted, in_one_line, json_for_terminal, visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ralph.conversation.records import Record
    from ralph.sessions.history import RunHistory, SessionHistory
    from ralph.sessions.story import Happening
    from ralph.values.events import Event

EXPORT_VERSION = 1
"""The version of the JSON export. It increases when the meaning of a field changes."""


def markdown(session_id: str, outcome: str, history: SessionHistory, problem: str | None) -> Iterator[str]:
    opening = history.opening
    yield f"# Session {session_id}"
    yield ""
    for name in ("cwd", "created_at", "ralph", "forked_from"):
        value = getattr(opening, name, None)
        if value is not None:
            yield f"- {name}: {_inline(value)}"
    yield f"- outcome: {outcome}"
    yield f"- total: {counted(history.turns, 'turn')}, {cost_text(history.cost_usd)}"
    for run, happenings in story_of(history):
        copied = " (copied from the session this one was forked from)" if run.is_copied else ""
        yield from (
            "",
            f"## Run {run.number}{copied}",
            "",
            f"{run.opening.started_at}, {_inline(run.opening.model)}",
        )
        end = outcome if run is history.runs[-1] else KILLED
        for happening in happenings:
            yield from _block(happening, end)
        yield from ("", f"**{_end_of(run, end)}**")
    if problem is not None:
        yield from ("", f"**Damaged: {_inline(problem)}; what follows cannot be read.**")


def session_export(
    session_id: str, outcome: str, history: SessionHistory, records: Sequence[Record], problem: str | None
) -> dict[str, Any]:
    """The session as an object for JSON. Raises SessionError if the records do not form a conversation."""
    opening = history.opening
    runs = [_run_object(run) for run in history.runs]
    return {
        "version": EXPORT_VERSION,
        "id": session_id,
        "title": history.title,
        "cwd": getattr(opening, "cwd", None),
        "created_at": getattr(opening, "created_at", None),
        "ralph": getattr(opening, "ralph", None),
        "forked_from": getattr(opening, "forked_from", None),
        "outcome": outcome,
        "damage": problem,
        "runs": runs,
        "messages": messages_of(records),
        "events": [
            {"run": run.number, "seq": line - 1, **record.event}
            for run in history.runs
            for line, record in run.lines
            if isinstance(record, EventRecord)
        ],
        "totals": {
            "runs": len(history.own_runs),
            "turns": history.turns,
            "cost_usd": history.cost_usd,
            "duration_s": round(sum(run["duration_s"] or 0 for run in runs if not run["is_copied"]), 3),
        },
    }


def said_in(history: SessionHistory) -> Iterator[str]:
    """The texts of the session that a search looks through: title, prompts, the model's text, calls and results."""
    yield history.title or ""
    for _, happenings in story_of(history):
        for happening in happenings:
            match happening:
                case Prompted() | Said():
                    yield happening.text
                case Called(call=call, result=result):
                    yield from (
                        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                        for value in call.arguments.values()
                    )
                    yield "" if result is None else result_text(result)


def as_json(value: object) -> str:
    return json_for_terminal(json.dumps(value, ensure_ascii=False, indent=1))


def _run_object(run: RunHistory) -> dict[str, Any]:
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


def _block(happening: Happening, outcome: str) -> Iterator[str]:
    yield ""
    match happening:
        case Prompted():
            who = "ralph, to the model" if happening.is_automatic else "Prompt"
            yield from (f"### {who}", "", *_quoted(happening.text))
        case Said():
            yield from ("### Model", "", *_quoted(happening.text))
        case OtherBlock():
            block = dict(happening.block)
            text = block.get("thinking") if block.get("type") == "thinking" else None
            shown = text if isinstance(text, str) else json.dumps(block, ensure_ascii=False, indent=1)
            yield from (f"### Model: {_inline(str(block.get('type')))}", "", *_fenced(shown))
        case Called():
            yield from _call(happening, outcome)
        case Happened():
            yield from _event(happening.fields, happening.event)


def _call(called: Called, outcome: str) -> Iterator[str]:
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


def _event(fields: Mapping[str, Any], event: Event | None) -> Iterator[str]:
    if fields.get("subtype") == "turn_asked" and attempts_line(fields) is None:
        return  # there was only one attempt, which is shown already
    lines = [] if event is None else list(Narration(is_quiet=False, has_color=False).lines(event))
    about_attempts = attempts_line(fields)
    if about_attempts is not None:
        lines.insert(0, about_attempts)
    yield from _fenced("\n".join(lines) or json.dumps(dict(fields), ensure_ascii=False))


def _end_of(run: RunHistory, outcome: str) -> str:
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
