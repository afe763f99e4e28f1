"""Selects the part of a conversation that one model can read. This matters if several models have contributed to the
conversation. No I/O happens here.

A model accepts no thinking blocks of another model, because thinking is signed for the model that wrote it. Such
blocks are left out of the request, but stay in the journal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.conversation.messages import THINKING, Author, Conversation, Message, RequestShape, make_message

if TYPE_CHECKING:
    from ralph.values.tool_calls import Block


class Reading:
    """Selects the part of a conversation that is sent to one model. It stores its last result, so that only new
    messages need time.
    """

    def __init__(self, shape: RequestShape) -> None:
        self._shape = shape
        self._forget()

    def _forget(self) -> None:
        self._read: tuple[Message, ...] = ()
        """The messages from which `_view` was made."""
        self._view = Conversation.start(self._shape)

    def of(self, conversation: Conversation) -> Conversation:
        """The conversation with the model's own request head, and without the blocks that the model cannot read."""
        shape = self._shape
        if all(_is_read_whole(author, shape.author) for author in conversation.thinkers):
            self._forget()  # the remembered messages may belong to an earlier context
            return conversation if conversation.is_under(shape) else conversation.under(shape)
        known = len(self._read)
        if conversation.messages[:known] != self._read:
            self._forget()  # the end of the conversation was repaired, or its last message was replaced
            known = 0
        for message in conversation.messages[known:]:
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
