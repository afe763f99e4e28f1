"""The view that one model gets of a conversation to which several models have contributed. Pure.

Thinking is signed for the model that wrote it. What another model cannot read is left out of its requests, never
out of the journal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.conversation.messages import THINKING, Author, Conversation, Message, RequestShape, make_message

if TYPE_CHECKING:
    from ralph.values.tool_calls import Block


class Reading:
    """One model's view. It caches its messages, so that a growing conversation costs only its new ones."""

    def __init__(self, shape: RequestShape) -> None:
        self._shape = shape
        self._forget()

    def _forget(self) -> None:
        self._read: tuple[Message, ...] = ()
        """The messages of the conversation that `_view` was made from."""
        self._view = Conversation.start(self._shape)

    def of(self, conversation: Conversation) -> Conversation:
        shape = self._shape
        if all(_is_read_whole(author, shape.author) for author in conversation.thinkers):
            self._forget()  # what was read belongs to a context that is over
            return conversation if conversation.is_under(shape) else conversation.under(shape)
        known = len(self._read)
        if conversation.messages[:known] != self._read:
            self._forget()  # its end was repaired or amended
            known = 0
        for message in conversation.messages[known:]:
            readable = readable_part(message, shape.author)
            if readable is not None:
                self._view = self._view.plus(readable)
        self._read = conversation.messages
        return self._view


def readable_part(message: Message, reader: Author) -> Message | None:
    """The part of a message that this model can read; None: it can read no part."""
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
    """Whether the reader accepts the block. It never accepts another model's thinking. It accepts unsigned thinking
    only on the server that wrote it.
    """
    if block.get("type") not in THINKING:
        return True
    if author.model != reader.model:
        return False
    return _may_be_one_place(author, reader) or bool(block.get("signature") or block.get("data"))


def _may_be_one_place(author: Author, reader: Author) -> bool:
    return None in (author.endpoint, reader.endpoint) or author.endpoint == reader.endpoint
