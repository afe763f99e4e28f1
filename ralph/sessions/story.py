"""A session as a sequence of values: prompts, answers, tool calls with their results, and events. No I/O happens
here.

Nothing is shortened or formatted here. `story_text.py` formats the values for a terminal, and `document.py` formats
them for export.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct, ValidationError

from ralph.conversation.reading import NonsenseError, open_answer
from ralph.conversation.records import AssistantRecord, EventRecord, ResultRecord, SessionError, UserRecord
from ralph.output.system_events import event_of
from ralph.sessions.history import calls_of, prompt_text
from ralph.values.tool_calls import ToolCall, ToolResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ralph.conversation.reading import OpenAnswer
    from ralph.conversation.records import Record
    from ralph.sessions.history import RunHistory, SessionHistory
    from ralph.values.events import Event
    from ralph.values.tool_calls import Block


class Prompted(Struct, frozen=True):
    text: str
    is_automatic: bool = False
    """True if ralph itself wrote the message during a run."""


class Said(Struct, frozen=True):
    text: str


class OtherBlock(Struct, frozen=True):
    """A block of an answer that is neither text nor a tool call. Thinking is an example."""

    block: Block


class Called(Struct, frozen=True):
    call: ToolCall
    result: ToolResult | None = None
    """The result of the call, or None if the call has no result yet."""
    was_started: bool = True


class Happened(Struct, frozen=True):
    """An event that is not part of the conversation."""

    fields: Mapping[str, Any]
    event: Event | None
    """The decoded event, or None if this version of ralph does not know its kind."""


Happening = Prompted | Said | OtherBlock | Called | Happened


def story_of(history: SessionHistory) -> Iterator[tuple[RunHistory, list[Happening]]]:
    """Yields each run with its prompts, answers, calls and events, in order. A call comes at the position of its
    result. A call without a result comes at the end of its run. Raises SessionError if a record is impossible at its
    position.
    """
    calls: dict[str, ToolCall] = {}
    pending: OpenAnswer | None = None
    for run in history.runs:
        happenings: list[Happening] = []
        has_answer = False
        for line, record in run.lines:
            try:
                pending = open_answer(pending, record)
                happenings += _happenings(record, calls, is_automatic=has_answer)
            except (NonsenseError, ValidationError) as error:
                raise SessionError(f"line {line} makes no sense: {error}") from error
            has_answer = has_answer or isinstance(record, AssistantRecord)
        happenings += [
            Called(calls[block["id"]], None, block["id"] in run.announced) for block in run.open_calls
        ]
        yield run, happenings


def _happenings(record: Record, calls: dict[str, ToolCall], *, is_automatic: bool) -> Iterator[Happening]:
    match record:
        case UserRecord():
            yield Prompted(prompt_text(record), is_automatic if record.task is None else not record.task)
        case AssistantRecord():
            calls.update((call.id, call) for call in _calls(record))
            for block in record.blocks:
                if block.get("type") == "text":
                    yield Said(block["text"])
                elif block.get("type") != "tool_use":
                    yield OtherBlock(block)
        case ResultRecord():
            yield Called(calls[record.tool_use_id], record.result)
        case EventRecord():
            yield Happened(record.event, event_of(record.event))


def _calls(record: AssistantRecord) -> Iterator[ToolCall]:
    """The calls as the model wrote them. Malformed calls are included."""
    for block in calls_of(record):
        raw = record.malformed.get(block["id"])
        yield ToolCall(block["id"], block["name"], {"INVALID_JSON": raw[0]} if raw else block["input"])
