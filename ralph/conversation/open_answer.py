"""An answer that no message follows yet, and the state of its calls. Pure: the answer and a record in, the answer
out.

Used by the session's state and by the history of a session.
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
    """A record that no run would write after the records before it. The error's text is one line."""


class OpenAnswer(Struct, frozen=True):
    answer: Answer
    results: Mapping[str, ToolResult] = field(default_factory=dict)
    """The results of the answer's calls so far, by call id."""
    intents: Mapping[str, FileChange | None] = field(default_factory=dict)
    """The calls that were about to run, by id, with their planned change to a file."""

    @property
    def open_calls(self) -> tuple[Block, ...]:
        """The answer's calls without a result, malformed calls included."""
        return tuple(
            block
            for block in self.answer.content
            if block.get("type") == "tool_use" and block["id"] not in self.results
        )

    @property
    def is_over(self) -> bool:
        """Whether the answer has calls and each of them has a result. The results are then the next message."""
        return bool(self.results) and all(call_id in self.results for call_id in self.answer.call_ids)


_COUNTS = frozenset({AssistantRecord, IntentRecord, ResultRecord, UserRecord, CompactedRecord})


def open_answer(before: OpenAnswer | None, record: Record) -> OpenAnswer | None:
    """The open answer after one more record; None: there is none. Raises NonsenseError."""
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
