"""The most images that one conversation may hold: every request sends all of them again, and one that is too
large is refused for ever.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from ralph.values.error_text import ToolError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ralph.values.tool_calls import Block

# Base64 makes them a third larger, which leaves a third of the API's 32 MB for everything else.
MOST_BYTES = 16 * 1024 * 1024
# The most that models with the smallest window take in one request.
MOST_IMAGES = 100


class ImageBudget:
    """The budget of one session. Any thread may call."""

    def __init__(self) -> None:
        self._bytes = 0
        self._images = 0
        self._lock = Lock()

    def take(self, size_bytes: int) -> None:
        """Take room for one image. Raises ToolError when there is too little."""
        with self._lock:
            if self._images >= MOST_IMAGES:
                raise ToolError(
                    f"this conversation holds {self._images} images, and no more fit into a request. Work with "
                    "what you have seen, or look at the image with Bash"
                )
            if self._bytes + size_bytes > MOST_BYTES:
                raise ToolError(
                    f"the image has {size_bytes:,} bytes; the images of this conversation may have {MOST_BYTES:,} "
                    f"in all, and {MOST_BYTES - self._bytes:,} are left. Shrink it, or look at a part of it"
                )
            self._bytes += size_bytes
            self._images += 1

    def restore(self, blocks: Iterable[Block]) -> None:
        """Count the images that the conversation holds already. They may be too many: then there is no room for
        more.
        """
        with self._lock:
            for size_bytes in _sizes(blocks):
                self._bytes += size_bytes
                self._images += 1


def _sizes(blocks: Iterable[Block]) -> Iterable[int]:
    for block in blocks:
        if block.get("type") == "image":
            yield len(block.get("source", {}).get("data", "")) * 3 // 4
        elif isinstance(block.get("content"), (list, tuple)):
            yield from _sizes(block["content"])
