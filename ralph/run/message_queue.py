"""The user messages that wait to be worked on, in the order they came; bounded in number and in bytes."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ralph.run.control_lines import UserMessage

MOST_QUEUED_MESSAGES = 100
# Images included. One message is taken whatever its size.
MOST_QUEUED_BYTES = 64 * 1024 * 1024


class MessageQueue:
    def __init__(self) -> None:
        self._messages: deque[tuple[UserMessage, int]] = deque()
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, message: UserMessage, size_bytes: int) -> str | None:
        """The reason why there is no room for the message; None: it was taken."""
        if len(self._messages) >= MOST_QUEUED_MESSAGES:
            return f"{len(self._messages)} messages are waiting already"
        if self._messages and self._size_bytes + size_bytes > MOST_QUEUED_BYTES:
            return f"{self._size_bytes:,} bytes of messages are waiting already"
        self._messages.append((message, size_bytes))
        self._size_bytes += size_bytes
        return None

    def take(self) -> UserMessage:
        message, size_bytes = self._messages.popleft()
        self._size_bytes -= size_bytes
        return message
