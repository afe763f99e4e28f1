"""The only writer of a session: adds messages to its conversation by writing records, and emits events about them. Its
caller decides which messages.

A record is written before it is applied to the state, so a failed write leaves the state as it was. Without a journal,
records are applied too.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from ralph.conversation.messages import Conversation, not_run, recover_conversation, text_blocks, user_message
from ralph.conversation.records import (
    Record,
    assistant_record,
    compacted_record,
    result_record,
    user_record,
)
from ralph.conversation.session import Session, apply
from ralph.values.answer import Answer, Block, ToolResult, with_sendable_calls
from ralph.values.events import (
    AnswerAccepted,
    ContextCompacted,
    Event,
    Notice,
    ToolFinished,
    ToolStarted,
    TurnAsked,
    TurnStarted,
    UserMessageCommitted,
)
from ralph.values.outcome import Outcome
from ralph.values.ports import Events, JournalError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


NOTHING_FINISHED: Mapping[str, ToolResult] = MappingProxyType({})
# Events about an answer, about its calls, and about the beginning of the next turn. They can wait for a sync that
# comes at once.
_MAY_WAIT = (AnswerAccepted, ToolStarted, ToolFinished, UserMessageCommitted, TurnAsked, TurnStarted, Notice)


class Journal(Protocol):
    def append(self, *records: Record, sync: bool = True) -> None:
        """Writes all of the records or none. With `sync`, they survive a power failure. Raises JournalError."""
        ...


class SessionLog:
    """An event about an answer or a result is passed on when its record is on the disk, or when the disk has failed
    and the run ends for that reason.
    """

    def __init__(self, journal: Journal, session: Session, sink: Events | None = None) -> None:
        """`session` is the state after all records of the journal."""
        self._journal = journal
        self._sink = sink
        self._held: list[Event] | None = None
        """Events that wait for a sync. None if all records that must last are on the disk."""
        self.session = session
        self.pending = session.answer
        """The last answer of an earlier process, until a message follows it or the task has taken it."""
        self.was_refused = session.has_ended_as(Outcome.API_REJECTED)
        """Whether the API refused the last request, perhaps because of an image."""

    @property
    def conversation(self) -> Conversation:
        return self.session.conversation

    def emit(self, event: Event) -> None:
        """Passes the event on. After `record_ahead`, the event waits for the sync if it can; otherwise this method
        syncs first. Raises JournalError.
        """
        if self._held is not None:
            if isinstance(event, _MAY_WAIT):
                self._held.append(event)
                return
            self.settle()
        if self._sink is not None:
            self._sink.emit(event)

    def settle(self) -> None:
        """Syncs what was recorded ahead, and passes on the events that waited. Must be called before a wait that begins
        with no event. Raises JournalError.
        """
        if self._held is not None:
            self._append(sync=True)
            self._pass_on()

    def record(self, *records: Record, sync: bool = True) -> None:
        """Writes all of the records and applies them, or none. With `sync`, they and all earlier ones survive a power
        failure. Raises JournalError.
        """
        if not records:
            return
        self._append(*records, sync=sync)
        for record in records:
            self.session = apply(self.session, record)
        if sync:
            self._pass_on()

    def record_ahead(self, *records: Record) -> None:
        """As `record`, but without a sync: the next synced record, the next event that cannot wait, or `settle` does
        that. One of them must follow before anything is waited for.
        """
        self.record(*records, sync=False)
        self._held = self._held or []

    def recover_conversation(self, finished: Mapping[str, ToolResult] = NOTHING_FINISHED) -> None:
        """Adds a result for each call that has none in the conversation: that in `finished`, recorded or not, or else
        an error. Raises JournalError.
        """
        before = self.session
        recovered = recover_conversation(before.conversation, {**before.results, **finished})
        for message in recovered.messages[len(before.conversation.messages) :]:
            missing = [call_id for call_id in message.tool_result_ids if call_id not in before.results]
            results = (finished.get(call_id) or not_run(call_id) for call_id in missing)
            self.record(*map(result_record, results))
            self.emit(UserMessageCommitted(message.content))

    def _append(self, *records: Record, sync: bool) -> None:
        try:
            self._journal.append(*records, sync=sync)
        except JournalError:
            self._pass_on()  # what they tell is true, and no later sync can succeed
            raise

    def _pass_on(self) -> None:
        """Emits all held events, even if the journal fails meanwhile. Raises JournalError after that."""
        held, self._held = self._held, None
        failed = None
        for event in held or ():
            try:
                if self._sink is not None:
                    self._sink.emit(event)
            except JournalError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    # --- Messages

    def take_task(self, blocks: Sequence[Block], *opening: Record) -> None:
        """Adds a prompt of the user, to the last message if that is a user's: user and assistant must alternate."""
        unanswered = self._unanswered()
        kept = _without_images(unanswered) if self.was_refused else unanswered
        if kept != unanswered:
            self.emit(Notice("the API refused the last message: ralph leaves out its images from here on"))
        message = user_message([*kept, *blocks])
        self.record(*opening, user_record(message, amends=self._is_unanswered, task=len(blocks)))
        self.pending = None

    def say(self, *words: str) -> None:
        """Adds a user message that ralph wrote."""
        blocks = _texts(words)
        self.record(self._grown_record(blocks))
        self.emit(UserMessageCommitted(tuple(blocks)))

    def with_notices(self, notices: Sequence[str]) -> Conversation:
        """The conversation with notices for the model at its end. The session does not change."""
        if not notices:
            return self.conversation
        message = user_message([*self._unanswered(), *_texts(notices)])
        return self.conversation.amended(message) if self._is_unanswered else self.conversation.plus(message)

    def commit(self, answer: Answer, notices: Sequence[str] = (), *, is_ahead: bool = False) -> Answer:
        """Adds the notices and an answer, and returns the answer as it was added: with other ids and names of calls if
        the API would refuse them. With `is_ahead`, the next record follows at once, and one sync serves both.
        """
        answer = with_sendable_calls(answer, self.session.call_ids)
        told = _texts(notices)
        grown = [self._grown_record(told)] if told else []
        record = self.record_ahead if is_ahead else self.record
        record(*grown, assistant_record(answer))
        if told:
            self.emit(UserMessageCommitted(tuple(told)))
        self.emit(AnswerAccepted(answer.message, answer.request_id))
        for warning in answer.warnings:
            self.emit(Notice(warning))
        return answer

    def fresh(self, content: Sequence[Block]) -> Conversation:
        """A conversation with the same head and `content` as its only message. The session does not change."""
        return self.conversation.emptied().plus(user_message(content))

    def start_afresh(self, content: Sequence[Block], summary: str, event: ContextCompacted) -> None:
        """Replaces the context. The journal keeps the records of the old one."""
        self.record(compacted_record(user_message(content), summary, event))
        self.emit(event)

    @property
    def _is_unanswered(self) -> bool:
        messages = self.conversation.messages
        return bool(messages) and messages[-1].role == "user"

    def _unanswered(self) -> tuple[Block, ...]:
        return self.conversation.messages[-1].content if self._is_unanswered else ()

    def _grown_record(self, blocks: Sequence[Block]) -> Record:
        return user_record(user_message([*self._unanswered(), *blocks]), amends=self._is_unanswered)


_REFUSED: Block = {"type": "text", "text": "(an image, which the API refused)"}


def _texts(words: Sequence[str]) -> list[Block]:
    return [block for each in words for block in text_blocks(each)]


def _without_images(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """The blocks without images. In a tool result, which must not become empty, a text replaces each image."""
    return tuple(
        {**block, "content": [_REFUSED if one.get("type") == "image" else one for one in block["content"]]}
        if isinstance(block.get("content"), list)
        else block
        for block in blocks
        if block.get("type") != "image"
    )
