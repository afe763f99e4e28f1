"""The response to `get_context_usage`: how much of the model's window each part of the context fills. No I/O happens
here. Sizes are estimates from bytes, scaled so that they add up to the last estimate of the whole request.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.conversation.context_size import BYTES_PER_TOKEN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ralph.conversation.context_size import ContextMeter
    from ralph.conversation.messages import Conversation
    from ralph.retry.roster import Roster


class ContextSizes(Struct, frozen=True):
    model: str
    window_tokens: int | None
    """The context window of the model, or None if it is unknown."""
    total_tokens: int
    """The estimated number of tokens of the next request."""
    part_bytes: Mapping[str, int]
    """The size in bytes of each part of the request. The key is the part's name for people."""


def sizes_of_next(roster: Roster, conversation: Conversation, meter: ContextMeter) -> ContextSizes:
    """The sizes of the parts of the next request in this conversation."""
    head = roster.shape.head()
    tools = len(json.dumps(head.fields.get("tools", [])))
    in_messages = max(conversation.size * BYTES_PER_TOKEN - len(head.body), 0)
    return ContextSizes(
        model=roster.target.model,
        window_tokens=roster.window,
        total_tokens=roster.estimate(conversation, meter),
        part_bytes={
            "System prompt": max(len(head.body) - tools, 0),
            "System tools": tools,
            "Messages": in_messages,
        },
    )


# Drivers that draw the parts expect a color for each of them.
_COLORS = ("blue", "yellow", "green")


def context_usage(sizes: ContextSizes) -> dict[str, Any]:
    window = sizes.window_tokens or sizes.total_tokens
    all_bytes = sum(sizes.part_bytes.values()) or 1
    used = [
        {
            "name": name,
            "tokens": round(sizes.total_tokens * size / all_bytes),
            "color": color,
            "kind": "used",
        }
        for (name, size), color in zip(sizes.part_bytes.items(), _COLORS, strict=True)
    ]
    free = {
        "name": "Free space",
        "tokens": max(window - sizes.total_tokens, 0),
        "color": "gray",
        "kind": "free",
    }
    return {
        "categories": [*used, free],
        "totalTokens": sizes.total_tokens,
        "maxTokens": window,
        "rawMaxTokens": window,
        "percentage": round(100 * sizes.total_tokens / window) if window else 0,
        "gridRows": [],
        "model": sizes.model,
        "memoryFiles": [],
        "mcpTools": [],
        "agents": [],
        "isAutoCompactEnabled": True,
        "apiUsage": None,
    }
