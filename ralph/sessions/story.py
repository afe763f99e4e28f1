"""The events of a session, in their order, as values: prompts, answers, calls with their results, events.
Pure.

It does not shorten and does not decorate: `story_text.py` and `document.py` make a story for a terminal and a
document of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct, ValidationError

from ralph.conversation.decoding import SessionError
from ralph.conversation.open_answer import NonsenseError, open_answer
from ralph.conversation.records import AssistantRecord, EventRecord, ResultRecord, UserRecord
from ralph.output.system_events import event_of
from ralph.sessions.history import calls_of, said_by_user
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
    """Ralph's own words to the model, in the middle of a run."""


class Said(Struct, frozen=True):
    text: str


class OtherBlock(Struct, frozen=True):
    """Thinking, and whatever else an answer may hold."""

    block: Block


class Called(Struct, frozen=True):
    call: ToolCall
    result: ToolResult | None = None
    """The result of the call; None: the run was over before there was one."""
    was_started: bool = True


class Happened(Struct, frozen=True):
    """An event that is no part of the conversation."""

    fields: Mapping[str, Any]
    event: Event | None
    """None: this ralph does not know it."""


Happening = Prompted | Said | OtherBlock | Called | Happened


def story_of(history: SessionHistory) -> Iterator[tuple[RunHistory, list[Happening]]]:
    """Run by run. A call stands where its result came, or at the end of a run that has none for it.

    Raises SessionError for the first record that no run writes where it stands.
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
            yield Prompted(said_by_user(record), is_automatic if record.task is None else not record.task)
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
    """The calls as the model wrote them, including unusable ones."""
    for block in calls_of(record):
        raw = record.malformed.get(block["id"])
        yield ToolCall(block["id"], block["name"], {"INVALID_JSON": raw[0]} if raw else block["input"])
