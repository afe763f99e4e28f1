"""Selects the part of a conversation that one model can read. It gets no thinking of another model, which has signed
it for itself, nor thinking that its server has refused. The journal keeps both.

The open answer is the last answer until a message follows it, with the results of its calls so far.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.conversation.growing import GrowingMapping, GrowingSequence
from ralph.conversation.messages import (
    THINKING,
    Author,
    Conversation,
    LeftOutThinking,
    Message,
    RequestShape,
    make_message,
)
from ralph.conversation.records import (
    AssistantRecord,
    CompactedRecord,
    IntentRecord,
    Record,
    ResultRecord,
    UserRecord,
)

if TYPE_CHECKING:
    from ralph.values.answer import Answer, Block, FileChange, ToolResult


class Reading:
    """Keeps the last conversation that it made for the model, so that only new messages need time."""

    def __init__(self, shape: RequestShape) -> None:
        self._shape = shape
        self._forget()

    def _forget(self) -> None:
        self._read = GrowingSequence[Message]()
        """The messages from which `_view` was made."""
        self._view = Conversation.start(self._shape)
        self._left_out = 0
        """The number of messages whose thinking `_view` lacks, because the server has refused it."""

    def of(self, conversation: Conversation) -> Conversation:
        """The conversation with the model's own head, and without the blocks that it cannot read."""
        shape = self._shape
        left = conversation.left_out.get(shape.author, _NOTHING)
        is_whole = all(_reads_thinking_of(author, shape.author) for author in conversation.thinkers)
        if is_whole and not left.messages:
            self._forget()  # the remembered messages may belong to an earlier context
            return conversation if conversation.is_under(shape) else conversation.under(shape)
        if not conversation.messages.begins_with(self._read) or self._left_out != left.messages:
            self._forget()  # the end of the conversation was repaired, its last message was replaced, or more is left out
        self._left_out = left.messages
        for index in range(len(self._read), len(conversation.messages)):
            readable = _readable_part(
                conversation.messages[index], shape.author, is_left_out=index < left.messages
            )
            if readable is not None:
                self._view = self._view.plus(readable)
        self._read = conversation.messages
        return replace(self._view, head=shape.head().thinking_off()) if left.is_off else self._view


_NOTHING = LeftOutThinking(0)


def _readable_part(message: Message, reader: Author, *, is_left_out: bool) -> Message | None:
    """The message without the thinking that `reader` cannot read, or without any. None if nothing remains."""
    author = message.author
    if not message.thinks or not (is_left_out or (author and not _reads_thinking_of(author, reader))):
        return message
    kept = [block for block in message.content if block.get("type") not in THINKING]
    return make_message(message.role, kept, author) if kept else None


def _reads_thinking_of(author: Author, reader: Author) -> bool:
    """Whether `reader` and `author` are the same model on the same server, as far as the servers are known."""
    is_one_place = None in (author.endpoint, reader.endpoint) or author.endpoint == reader.endpoint
    return author.model == reader.model and is_one_place


class NonsenseError(Exception):
    """A record is impossible at its position. The message is one line."""


class OpenAnswer(Struct, frozen=True):
    answer: Answer
    ids: frozenset[str]
    """Those of all its calls."""
    results: GrowingMapping[ToolResult] = GrowingMapping()
    """By call id."""
    closed: int = 0
    """The number of calls with results."""
    intents: GrowingMapping[FileChange | None] = GrowingMapping()
    """By call id, each with the planned change of a file, or None."""

    @property
    def open_calls(self) -> tuple[Block, ...]:
        """The calls without a result, malformed ones too."""
        return tuple(
            block
            for block in self.answer.content
            if block.get("type") == "tool_use" and block["id"] not in self.results
        )

    @property
    def is_over(self) -> bool:
        """Whether all calls have results, which then form the next message."""
        return 0 < len(self.ids) == self.closed


_COUNTS = frozenset({AssistantRecord, IntentRecord, ResultRecord, UserRecord, CompactedRecord})


def open_answer(before: OpenAnswer | None, record: Record) -> OpenAnswer | None:
    """The open answer after `record`, or None. Raises NonsenseError for a result that belongs to no call of it."""
    if type(record) not in _COUNTS:
        return before
    match record:
        case AssistantRecord():
            return OpenAnswer(record.answer, frozenset(record.answer.call_ids))
        case IntentRecord() if before is not None:
            return replace(before, intents=before.intents.plus({record.id: record.change}))
        case ResultRecord():
            if before is None or before.is_over or record.tool_use_id not in before.ids:
                raise NonsenseError("the result of no call")
            results = before.results.plus({record.tool_use_id: record.result})
            return replace(
                before, results=results, closed=before.closed + (record.tool_use_id not in before.results)
            )
        case UserRecord() | CompactedRecord():
            return None
    return before
