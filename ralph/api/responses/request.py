"""Converts requests of the Messages API to requests of the Responses API. No I/O happens here.

The server stores nothing: it sends its reasoning encrypted, and the next request repeats it from the signature of the
thinking block.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from ralph.api.openai_requests import as_result, call_id_within, function_of, image_url, system_text
from ralph.conversation.messages import THINKING, RequestHead, to_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ralph.values.answer import Block

_FEWEST_TOKENS = 16
"""The API refuses a smaller `max_output_tokens`."""
_LONGEST_CALL_ID = 64
_NEVER_REASONS = r"(?:.*/)?(?:gpt-3|gpt-4|chatgpt|gpt-5[^/]*-chat)"
"""The models of OpenAI that refuse every field about reasoning (OpenHands/software-agent-sdk#1208)."""


def request_fields(head: RequestHead) -> dict[str, Any]:
    """The fields of a request, without its input."""
    asked = head.fields
    model = str(asked.get("model", ""))
    fields: dict[str, Any] = {
        "model": model,
        "max_output_tokens": max(head.max_tokens, _FEWEST_TOKENS),
        "stream": asked.get("stream", False),
        "store": False,
    }
    if not re.match(_NEVER_REASONS, model):
        fields["include"] = ["reasoning.encrypted_content"]
        if reasoning := _reasoning(asked):
            fields["reasoning"] = reasoning
    if tools := asked.get("tools"):
        # The API takes a missing `strict` for true.
        fields["tools"] = [{"type": "function", **function_of(tool)} for tool in tools]
    if choice := asked.get("tool_choice"):
        fields |= _tool_choice(choice)
    if instructions := system_text(asked):
        fields["instructions"] = instructions
    return fields


def _reasoning(asked: Mapping[str, Any]) -> dict[str, str]:
    """The effort and the summary of the reasoning. A summary is asked for only if the user asks for thinking, because OpenAI
    gives it only to organizations that have identified themselves (BerriAI/litellm#16032).
    """
    thinking = (asked.get("thinking") or {}).get("type")
    effort = (asked.get("output_config") or {}).get("effort")
    if thinking == "disabled":
        return {"effort": "none"}
    summary = {"summary": "auto"} if thinking in {"adaptive", "enabled"} else {}
    return {"effort": effort, **summary} if effort else summary


def _tool_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    kind = str(choice.get("type"))
    named = {"type": "function", "name": choice.get("name")}
    fields: dict[str, Any] = {"tool_choice": named if kind == "tool" else {"any": "required"}.get(kind, kind)}
    if choice.get("disable_parallel_tool_use"):
        fields["parallel_tool_calls"] = False
    return fields


def input_items(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The items that a message of the Messages API becomes."""
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return _user_items(blocks) if message["role"] == "user" else _assistant_items(blocks)


def _user_items(blocks: Iterable[Block]) -> Iterator[dict[str, Any]]:
    parts = []
    for block in blocks:
        if block.get("type") == "tool_result":
            content = block.get("content") or ""
            if isinstance(content, str):
                output: str | list[dict[str, Any]] = as_result(block, content)
            else:
                output = [_part(inner) for inner in content]
            call_id = call_id_within(block["tool_use_id"], _LONGEST_CALL_ID)
            yield {"type": "function_call_output", "call_id": call_id, "output": output}
        else:
            parts.append(_part(block))
    if parts:
        yield {"type": "message", "role": "user", "content": parts}


def _part(block: Block) -> dict[str, Any]:
    """A block of a user message or of a result. A block that the Responses API does not have becomes text."""
    match block.get("type"):
        case "text":
            return {"type": "input_text", "text": block["text"]}
        case "image":
            return {"type": "input_image", "image_url": image_url(block), "detail": "auto"}
        case _:
            return {"type": "input_text", "text": json.dumps(block, ensure_ascii=False)}


def _assistant_items(blocks: Iterable[Block]) -> Iterator[dict[str, Any]]:
    """The items of an answer. Blocks that only another API has are left out, and so is reasoning at the end of the answer,
    because the API refuses reasoning without the item that follows it.
    """
    waiting: list[dict[str, Any]] = []
    phase: dict[str, Any] = {}
    for block in blocks:
        kind = block.get("type")
        if kind in THINKING:
            kept = _kept_item(block)
            phase = {"phase": kept["phase"]} if kept.get("phase") else {}
            if kept.get("type") == "reasoning":
                waiting.append(kept)
        elif kind == "text":
            yield from waiting
            yield {"type": "message", "role": "assistant", "content": block["text"], **phase}
            waiting = []
        elif kind == "tool_use":
            yield from waiting
            yield {
                "type": "function_call",
                "call_id": call_id_within(block["id"], _LONGEST_CALL_ID),
                "name": block["name"],
                "arguments": to_json(block["input"]).decode(),
            }
            waiting, phase = [], {}


def _kept_item(block: Block) -> dict[str, Any]:
    signature = block.get("signature")
    if not isinstance(signature, str) or not signature.startswith("{"):
        return {}
    try:
        item = json.loads(signature)
    except (ValueError, RecursionError):
        return {}
    return item if item.get("type") in ("reasoning", "message") else {}
