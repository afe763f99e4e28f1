"""The conversation of a session and its journal: what is added to the one stands in the other, in one write.

It decides nothing: the loop says what is added and when.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.conversation.messages import (
    Conversation,
    assistant_message,
    recover_conversation,
    text_blocks,
    user_message,
)
from ralph.conversation.records import (
    assistant_entry,
    compacted_entry,
    queued_entry,
    result_entry,
    tasks_after,
    user_entry,
    users_own,
)
from ralph.values.answer import with_sendable_calls
from ralph.values.events import AnswerAccepted, ContextCompacted, Notice, UserMessageCommitted
from ralph.values.outcome import Outcome
from ralph.values.tool_calls import ToolResult

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ralph.agent.ports import Journal
    from ralph.conversation.messages import Author, Message, RequestShape
    from ralph.conversation.records import Entry
    from ralph.conversation.session import Session
    from ralph.values.answer import Answer
    from ralph.values.ports import Events
    from ralph.values.tool_calls import Block


class Transcript:
    def __init__(
        self, shape: RequestShape, journal: Journal, events: Events, session: Session | None = None
    ) -> None:
        self._journal = journal
        self._events = events
        self.conversation = session.conversation.under(shape) if session else Conversation.start(shape)
        self.answer = session.answer if session else None
        """The last message, where the model has it and nothing has followed it yet."""
        self.queued: tuple[Block, ...] = session.queued if session else ()
        """Messages that the user sent while calls were pending, and the model has not received yet."""
        self.tasks: list[tuple[Block, ...]] = list(session.tasks) if session else []
        """Every prompt of the user's, word for word."""
        self.changed_files: dict[str, None] = dict.fromkeys(session.changed_files if session else ())
        """The files that file tools changed, absolute, in the order of their first change."""
        self.summary = session.summary if session else ""
        """The model's own summary of the work before this context; empty: there is none."""
        self.is_afresh = session is not None and session.is_afresh
        """This context has followed another one."""
        self.was_refused = session is not None and session.has_ended_as(Outcome.API_REJECTED)
        """The last request was: perhaps for an image that it held."""
        self._call_ids = set(session.call_ids) if session else set()

    def write(self, *entries: Entry) -> None:
        """Records that change nothing here."""
        if entries:
            self._journal.append(*entries)

    def queue(self, blocks: Sequence[Block], *opening: Entry) -> None:
        """Nothing that was said may be lost while calls still run."""
        self.queued = tuple(blocks)
        self._journal.append(*opening, queued_entry(self.queued))

    def turn_to(self, shape: RequestShape) -> None:
        """Another target is asked from here on."""
        self.conversation = self.conversation.under(shape)

    def take_task(self, blocks: Sequence[Block], *opening: Entry) -> None:
        """A prompt of the user's. A message that nothing has answered yet grows by it: roles alternate."""
        self._leave_out_refused_images()
        message = self._grown(blocks)
        entry = user_entry(message, amends=self._is_unanswered, task=len(blocks))
        self._journal.append(*opening, entry)
        self.conversation = self._with(message)
        if own := users_own(blocks):
            self.tasks.append(own)
        self.queued = ()
        self.answer = None

    def say(self, *words: str) -> None:
        """A user message of ralph's own."""
        blocks = _texts(words)
        message = self._grown(blocks)
        self._journal.append(user_entry(message, amends=self._is_unanswered))
        self.conversation = self._with(message)
        self._events.emit(UserMessageCommitted(tuple(blocks)))

    def with_notices(self, notices: Sequence[str]) -> Conversation:
        """The conversation with notices, before it is known whether an answer to them will be accepted."""
        return self._with(self._grown(_texts(notices))) if notices else self.conversation

    def commit(self, answer: Answer, author: Author, notices: Sequence[str] = ()) -> Answer:
        """An accepted answer, with the notices that led to it. Returns it as it stands in the conversation."""
        answer = with_sendable_calls(answer, self._call_ids)
        self._call_ids.update(answer.call_ids)
        entries: list[Entry] = []
        if notices:
            message = self._grown(_texts(notices))
            entries.append(user_entry(message, amends=self._is_unanswered))
            self.conversation = self._with(message)
        self._journal.append(*entries, assistant_entry(answer))
        committed = assistant_message(answer.content, author)
        if committed is not None:
            self.conversation = self.conversation.plus(committed)
        if notices:
            self._events.emit(UserMessageCommitted(tuple(_texts(notices))))
        self._events.emit(AnswerAccepted(answer.message, answer.request_id))
        for warning in answer.warnings:
            self._events.emit(Notice(warning))
        return answer

    def take_results(self, results: Iterable[ToolResult], changed_files: Iterable[str]) -> None:
        """Adds the results of all calls of the last answer, in order; each already has its own record."""
        self.changed_files.update(dict.fromkeys(changed_files))
        message = user_message(result.as_block() for result in results)
        self.conversation = self.conversation.plus(message)
        self.answer = None
        self._events.emit(UserMessageCommitted(message.content))

    def recover(
        self,
        finished: Mapping[str, ToolResult],
        written: Collection[str],
        changed_files: Iterable[str] = (),
    ) -> None:
        """Leave a conversation that can be resumed, and tell readers of the results that this adds.

        `finished`: results that are known, and of them `written` those that have a record.
        """
        self.changed_files.update(dict.fromkeys(changed_files))
        before = len(self.conversation.messages)
        self.conversation = recover_conversation(self.conversation, finished)
        for message in self.conversation.messages[before:]:
            results = [block for block in message.content if block["tool_use_id"] not in written]
            self._journal.append(*(result_entry(ToolResult.of_block(block)) for block in results))
            self._events.emit(UserMessageCommitted(message.content))

    def fresh(self, content: Sequence[Block]) -> Conversation:
        """The conversation that a fresh context would have."""
        return self.conversation.emptied().plus(user_message(content))

    def start_afresh(self, content: Sequence[Block], summary: str, event: ContextCompacted) -> None:
        """A fresh context takes the place of the old one; the journal keeps both."""
        self._journal.append(compacted_entry(user_message(content), summary, event))
        self.conversation = self.fresh(content)
        self.summary = summary
        self.is_afresh = True
        self.answer = None
        self._events.emit(event)

    @property
    def _is_unanswered(self) -> bool:
        messages = self.conversation.messages
        return bool(messages) and messages[-1].role == "user"

    def _grown(self, blocks: Sequence[Block]) -> Message:
        last = self.conversation.messages[-1].content if self._is_unanswered else ()
        return user_message([*last, *blocks])

    def _with(self, message: Message) -> Conversation:
        return self.conversation.amended(message) if self._is_unanswered else self.conversation.plus(message)

    def _leave_out_refused_images(self) -> None:
        """A request that was refused may have been so for an image of the user's: every further one would be too."""
        if not self.was_refused or not self._is_unanswered:
            return
        unanswered = self.conversation.messages[-1].content
        kept = _without_images(unanswered)
        if len(kept) == len(unanswered):
            return
        self._events.emit(Notice("the API refused the last message: its images are left out from here on"))
        self.conversation = self.conversation.amended(user_message(kept))
        self.tasks = tasks_after(self.tasks, unanswered, kept)


def _texts(words: Sequence[str]) -> list[Block]:
    return [block for each in words for block in text_blocks(each)]


def _without_images(blocks: Sequence[Block]) -> tuple[Block, ...]:
    return tuple(block for block in blocks if block.get("type") != "image")
