"""The API's rules for `messages`: the roles, the content, and the rule that each tool call has a result. No I/O
happens here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_Message = dict[str, Any]

_PATTERNS = {"id": "^[a-zA-Z0-9_-]+$", "tool_use_id": "^[a-zA-Z0-9_-]+$", "name": "^[a-zA-Z0-9_-]{1,128}$"}


def blocks_of(holder: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The content blocks of `holder`, a message or a tool result. Empty if the content is a string."""
    content = holder.get("content")
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def message_violations(messages: Any, *, continues_turn: bool) -> Iterator[str]:
    """Yields the API's error messages for a list of messages, in the order in which the API would find the errors.
    `continues_turn` is True if the last message may be the assistant's.
    """
    if not isinstance(messages, list):
        yield "messages: Input should be a valid list"
        return
    if not messages:
        yield "messages: at least one message is required"
        return
    yield from _shapes(messages)
    if messages[0]["role"] != "user":
        yield 'messages: first message must use the "user" role'
    yield from _system_places(messages)
    yield from _calls_without_result(messages)
    yield from _results_without_call(messages)
    yield from _repeated_ids(messages)
    if messages[-1]["role"] == "assistant" and not continues_turn:
        yield "This model does not support assistant message prefill. The conversation must end with a user message."


def text_violation(block: Mapping[str, Any], where: str) -> Iterator[str]:
    text = block.get("text")
    if not isinstance(text, str):
        yield f"{where}: text: Field required"
    elif not text:
        yield f"{where}: text content blocks must be non-empty"
    elif not text.strip():
        yield f"{where}: text content blocks must contain non-whitespace text"


def _shapes(messages: Sequence[Any]) -> Iterator[str]:
    for number, message in enumerate(messages):
        where = f"messages.{number}"
        if not isinstance(message, dict):
            yield f"{where}: Input should be an object"
            return
        if message.get("role") not in {"user", "assistant", "system"}:
            yield f"{where}.role: Input should be 'user' or 'assistant'"
        content = message.get("content")
        if not isinstance(content, (str, list)):
            yield f"{where}.content: Input should be a valid string or list"
            return
        is_last_answer = number == len(messages) - 1 and message["role"] == "assistant"
        if not content and not is_last_answer:
            yield f"{where}: all messages must have non-empty content except for the optional final assistant message"
        if isinstance(content, str):
            if content:
                yield from text_violation({"text": content}, "messages")
            continue
        for position, block in enumerate(content):
            yield from _block_shape(block, f"{where}.content.{position}", message["role"])


def _block_shape(block: Any, where: str, role: str) -> Iterator[str]:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        yield f"{where}.type: Field required"
        return
    kind = block["type"]
    if kind in {"tool_use", "thinking"} and role != "assistant":
        yield f"{where}: `{kind}` blocks can only be in `assistant` messages"
    if kind == "tool_result" and role != "user":
        yield f"{where}: `tool_result` blocks can only be in `user` messages"
    required = {
        "tool_use": ("id", "name"),
        "tool_result": ("tool_use_id",),
        "thinking": ("thinking", "signature"),
    }
    for name in required.get(kind, ()):
        if not isinstance(block.get(name), str):
            yield f"{where}.{kind}.{name}: Field required"
            return
        pattern = _PATTERNS.get(name)
        if pattern is not None and not re.fullmatch(pattern.strip("^$"), block[name]):
            yield f"{where}.{kind}.{name}: String should match pattern '{pattern}'"
    if kind == "text":
        yield from text_violation(block, "messages")
    if kind == "tool_use" and not isinstance(block.get("input"), dict):
        yield f"{where}.tool_use.input: Input should be a valid dictionary"
    if kind == "thinking" and "cache_control" in block:
        yield f"{where}.thinking.cache_control: Extra inputs are not permitted"
    if kind == "tool_result":
        yield from _result_content(block, where)


def _result_content(block: Mapping[str, Any], where: str) -> Iterator[str]:
    if not isinstance(block.get("content", ""), (str, list)):
        yield f"{where}.tool_result.content: Input should be a valid string or list"
    for inner in blocks_of(block):
        if inner.get("type") == "text":
            yield from text_violation(inner, "messages")


def _system_places(messages: Sequence[_Message]) -> Iterator[str]:
    """Yields errors about the positions of system messages.

    The message before a system message must be a user message, or an assistant message that ends with the result of a
    server tool. The message after a system message must not be a user message. The first message is not checked here,
    because another rule requires that its role is `user`.
    """
    for number, message in enumerate(messages):
        if message["role"] != "system" or number == 0:
            continue
        before, after = messages[number - 1], messages[number + 1 : number + 2]
        follows_server_result = any(
            block["type"].endswith("_tool_result") for block in blocks_of(before)[-1:]
        )
        if before["role"] == "assistant" and not follows_server_result:
            yield f"messages.{number}: a system message must follow a user message"
        if after and after[0]["role"] == "user":
            yield f"messages.{number}: a system message must be last or come before an assistant message"


def _call_ids(message: _Message) -> list[str]:
    return [block["id"] for block in blocks_of(message) if block["type"] == "tool_use"]


def _leading_result_ids(message: _Message) -> set[str]:
    """The ids of the tool results at the beginning of a message. A result after other content is not included."""
    ids = set()
    for block in blocks_of(message):
        if block["type"] != "tool_result":
            break
        ids.add(block["tool_use_id"])
    return ids


def _calls_without_result(messages: Sequence[_Message]) -> Iterator[str]:
    for number, message in enumerate(messages):
        answered = _leading_result_ids(messages[number + 1]) if number + 1 < len(messages) else set()
        missing = [call_id for call_id in _call_ids(message) if call_id not in answered]
        if missing:
            yield (
                f"messages.{number}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in the "
                "next message."
            )


def _results_without_call(messages: Sequence[_Message]) -> Iterator[str]:
    for number, message in enumerate(messages):
        asked = set(_call_ids(messages[number - 1])) if number else set()
        answered = set()
        for position, block in enumerate(blocks_of(message)):
            if block["type"] != "tool_result":
                continue
            call_id = block["tool_use_id"]
            if call_id not in asked:
                yield (
                    f"messages.{number}.content.{position}: unexpected `tool_use_id` found in `tool_result` blocks: "
                    f"{call_id}. Each `tool_result` block must have a corresponding `tool_use` block in the previous "
                    "message."
                )
            if call_id in answered:
                yield (
                    f"messages.{number}.content.{position}: each tool_use must have a single result. "
                    f"Found multiple `tool_result` blocks with id: {call_id}"
                )
            answered.add(call_id)


def _repeated_ids(messages: Sequence[_Message]) -> Iterator[str]:
    seen = set()
    for number, message in enumerate(messages):
        for call_id in _call_ids(message):
            if call_id in seen:
                yield f"messages.{number}: `tool_use` ids must be unique"
            seen.add(call_id)
