"""Keeps what servers of Chat Completions want back: their reasoning, and what they have added to calls. No I/O happens here.

Reasoning is a `thinking` block of the Messages API, whose `signature` is a JSON object. That says in which field the
text came. What has no text stands in a block of its own behind the answer.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ralph.conversation.messages import to_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ralph.values.tool_calls import Block

FIELDS = ("reasoning_content", "reasoning")
"""The fields in which servers put the text of their reasoning: DeepSeek, Kimi and older vLLM the first, Groq, Ollama and newer
vLLM the second, OpenRouter both."""
_FIELD, _DETAILS, _CALLS = "field", "reasoning_details", "extra_content"
_PLACE, _JOINED = ("type", "index"), ("text", "summary", "data")


def signature_of(field: str) -> str:
    return to_json({_FIELD: field}).decode()


class Details:
    """Collects OpenRouter's `reasoning_details` of one answer."""

    def __init__(self) -> None:
        self._kept: list[dict[str, Any]] = []

    def add(self, details: object) -> None:
        """Adds the details of a piece of the answer. A part of a detail that has begun is joined to it."""
        for one in details if isinstance(details, list) else ():
            if not isinstance(one, dict):
                continue
            last = self._kept[-1] if self._kept else {}
            if [last.get(name) for name in _PLACE] != [one.get(name) for name in _PLACE]:
                self._kept.append(dict(one))
                continue
            for name, value in one.items():
                before = last.get(name)
                if name in _JOINED and isinstance(before, str) and isinstance(value, str):
                    last[name] = before + value
                elif value is not None:
                    last[name] = value

    def signature_with(self, calls: Sequence[Any]) -> str | None:
        """The signature of a block with these details, and with what the server has added to each call, or None for a call to
        which it added nothing. None if there is neither.
        """
        kept: dict[str, Any] = {_DETAILS: self._kept} if self._kept else {}
        if any(extra is not None for extra in calls):
            kept[_CALLS] = calls
        return to_json(kept).decode() if kept else None


def given_back(thinking: Iterable[Block]) -> tuple[dict[str, Any], Sequence[Any]]:
    """The fields of an assistant message with the reasoning of these blocks, and what belongs to each of its calls. Blocks of
    another API are left out.
    """
    texts: dict[str, str] = {}
    details: list[Any] = []
    calls: list[Any] = []
    for block in thinking:
        kept = _signed(block.get("signature"))
        if (field := kept.get(_FIELD)) in FIELDS:
            texts[field] = texts.get(field, "") + str(block.get("thinking") or "")
        details += _listed(kept.get(_DETAILS))
        calls += _listed(kept.get(_CALLS))
    return ({_DETAILS: details} if details else texts), calls


def _signed(signature: object) -> dict[str, Any]:
    try:
        kept = json.loads(signature) if isinstance(signature, str) else None
    except (ValueError, RecursionError):  # a signature of the Messages API
        return {}
    return kept if isinstance(kept, dict) else {}


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
