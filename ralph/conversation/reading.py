"""Selects the part of a conversation that one model can read. This matters if several models have contributed to the
conversation. No I/O happens here.

A model accepts no thinking blocks of another model, because thinking is signed for the model that wrote it. Such
blocks are left out of the request, but stay in the journal.

The open answer is the last answer of a conversation, until another message follows it. It includes the results of the
answer's calls so far.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from ralph.conversation.growing import GrowingSequence
from ralph.conversation.messages import THINKING, Author, Conversation, Message, RequestShape, make_message
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


class Reading:
    """Selects the part of a conversation that is sent to one model. It stores its last result, so that only new
    messages need time.
    """

    def __init__(self, shape: RequestShape) -> None:
        self._shape = shape
        self._forget()

    def _forget(self) -> None:
        self._read = GrowingSequence[Message]()
        """The messages from which `_view` was made."""
        self._view = Conversation.start(self._shape)

    def of(self, conversation: Conversation) -> Conversation:
        """The conversation with the model's own request head, and without the blocks that the model cannot read."""
        shape = self._shape
        if all(_is_read_whole(author, shape.author) for author in conversation.thinkers):
            self._forget()  # the remembered messages may belong to an earlier context
            return conversation if conversation.is_under(shape) else conversation.under(shape)
        if not conversation.messages.begins_with(self._read):
            self._forget()  # the end of the conversation was repaired, or its last message was replaced
        for message in conversation.messages[len(self._read) :]:
            readable = readable_part(message, shape.author)
            if readable is not None:
                self._view = self._view.plus(readable)
        self._read = conversation.messages
        return self._view


def readable_part(message: Message, reader: Author) -> Message | None:
    """The message without the blocks that the model `reader` cannot read. None if no block remains."""
    author = message.author
    if author is None or author == reader or not message.thinks:
        return message
    kept = [block for block in message.content if _can_read(block, author, reader)]
    if len(kept) == len(message.content):
        return message
    return make_message(message.role, kept, author) if kept else None


def _is_read_whole(author: Author, reader: Author) -> bool:
    return author.model == reader.model and _may_be_one_place(author, reader)


def _can_read(block: Block, author: Author, reader: Author) -> bool:
    """Whether the model `reader` accepts a block that the model `author` wrote. A model never accepts another model's
    thinking. It accepts its own thinking if the thinking has a signature, or if it was produced on the same server.
    """
    if block.get("type") not in THINKING:
        return True
    if author.model != reader.model:
        return False
    return _may_be_one_place(author, reader) or bool(block.get("signature") or block.get("data"))


def _may_be_one_place(author: Author, reader: Author) -> bool:
    return None in (author.endpoint, reader.endpoint) or author.endpoint == reader.endpoint


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
