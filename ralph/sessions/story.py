"""A session's story as values, in order: prompts, answers, calls with their results, events. Pure.

Nothing is shortened or formatted here: `story_text.py` does that for a terminal, `document.py` for a
document.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct, ValidationError

from ralph.conversation.open_answer import NonsenseError, open_answer
from ralph.conversation.records import AssistantRecord, EventRecord, ResultRecord, SessionError, UserRecord
from ralph.output.system_events import event_of
from ralph.sessions.history import calls_of, prompt_text
from ralph.values.tool_calls import ToolCall, ToolResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ralph.conversation.open_answer import OpenAnswer
    from ralph.conversation.records import Record
    from ralph.sessions.history import RunHistory, SessionHistory
    from ralph.values.events import Event
    from ralph.values.tool_calls import Block


class Prompted(Struct, frozen=True):
    text: str
    is_automatic: bool = False
    """Whether the message is ralph's own, in the middle of a run."""


class Said(Struct, frozen=True):
    text: str


class OtherBlock(Struct, frozen=True):
    """Any other block of an answer, such as thinking."""

    block: Block


class Called(Struct, frozen=True):
    call: ToolCall
    result: ToolResult | None = None
    """The result of the call; None: the run ended before there was a result."""
    was_started: bool = True


class Happened(Struct, frozen=True):
    """An event outside the conversation."""

    fields: Mapping[str, Any]
    event: Event | None
    """The event; None: this ralph does not know its kind."""


Happening = Prompted | Said | OtherBlock | Called | Happened


def story_of(history: SessionHistory) -> Iterator[tuple[RunHistory, list[Happening]]]:
    """The story, run by run. A call stands in the place of its result. A call without a result stands at the end of its
    run.

    Raises SessionError for the first record that no run would write in that place.
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
    """The calls as the model wrote them, malformed ones included."""
    for block in calls_of(record):
        raw = record.malformed.get(block["id"])
        yield ToolCall(block["id"], block["name"], {"INVALID_JSON": raw[0]} if raw else block["input"])
