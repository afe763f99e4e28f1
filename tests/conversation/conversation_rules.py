"""Checks conversations by the rules of the API. The code shares nothing with the code in ralph that repairs
conversations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ralph.conversation.messages import Message


def conversation_problems(messages: Sequence[Message]) -> list[str]:
    """The reasons for which the API would refuse these messages, as sentences. Empty if the messages are valid."""
    problems = []
    if messages and messages[0].role != "user":
        problems.append("the first message is not the user's")
    seen: set[str] = set()
    for i, message in enumerate(messages):
        if not message.content:
            problems.append(f"message {i} is empty")
        asked = messages[i - 1].tool_use_ids if i and messages[i - 1].role == "assistant" else ()
        if message.role == "user" and sorted(message.tool_result_ids) != sorted(asked):
            problems.append(f"message {i} does not answer exactly the calls before it")
        kinds = [block.get("type") == "tool_result" for block in message.content]
        if kinds != sorted(kinds, reverse=True):
            problems.append(f"message {i} has other blocks before its tool results")
        follower = messages[i + 1].role if i + 1 < len(messages) else None
        if message.role == "assistant" and message.tool_use_ids and follower != "user":
            problems.append(f"message {i} has calls that nothing answers")
        repeated = [call_id for call_id in message.tool_use_ids if call_id in seen]
        problems += [f"tool_use id {call_id} is not unique" for call_id in repeated]
        seen.update(message.tool_use_ids)
    return problems
