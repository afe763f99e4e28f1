"""The type of the open answer: the last answer of a conversation, until another message follows it. It includes the
results of the answer's calls so far.

No I/O happens here. `conversation/session.py` and the history in `sessions/` both use this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from ralph.conversation.records import (
    AssistantRecord,
    CompactedRecord,
    IntentRecord,
    ResultRecord,
    UserRecord,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ralph.conversation.records import Record
    from ralph.values.answer import Answer
    from ralph.values.tool_calls import Block, FileChange, ToolResult


class NonsenseError(Exception):
    """A record is impossible at its position in the journal. The error's message is one line."""


class OpenAnswer(Struct, frozen=True):
    answer: Answer
    results: Mapping[str, ToolResult] = field(default_factory=dict)
    """The results so far, by the id of the call."""
    intents: Mapping[str, FileChange | None] = field(default_factory=dict)
    """The calls that were recorded as about to run, by call id. The value is the planned change of a file, or None if
    no change was planned."""

    @property
    def open_calls(self) -> tuple[Block, ...]:
        """The calls of the answer that have no result yet. Malformed calls are included."""
        return tuple(
            block
            for block in self.answer.content
            if block.get("type") == "tool_use" and block["id"] not in self.results
        )

    @property
    def is_over(self) -> bool:
        """Whether the answer has tool calls and all these calls have results. If so, the results form the next
        message.
        """
        return bool(self.results) and all(call_id in self.results for call_id in self.answer.call_ids)


_COUNTS = frozenset({AssistantRecord, IntentRecord, ResultRecord, UserRecord, CompactedRecord})


def open_answer(before: OpenAnswer | None, record: Record) -> OpenAnswer | None:
    """The open answer after `record`, or None if there is none. `before` is the open answer before the record, or
    None. Raises NonsenseError if the record is a tool result that belongs to no call of the open answer.
    """
    if type(record) not in _COUNTS:
        return before
    match record:
        case AssistantRecord():
            return OpenAnswer(record.answer)
        case IntentRecord() if before is not None:
            return replace(before, intents={**before.intents, record.id: record.change})
        case ResultRecord():
            if before is None or before.is_over or record.tool_use_id not in before.answer.call_ids:
                raise NonsenseError("the result of no call")
            return replace(before, results={**before.results, record.tool_use_id: record.result})
        case UserRecord() | CompactedRecord():
            return None
    return before
