"""Translates requests of the Messages API to Chat Completions. No I/O happens here.

Each message is translated by itself, so a request begins with the same bytes as the one before it. `_SERVERS` says what
servers want differently.

What servers want back is kept: their reasoning, and what they have added to calls. Reasoning is a `thinking` block of
the Messages API, whose `signature` is a JSON object that says in which field the text came. What has no text is a block
of its own behind the answer.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.api.openai_requests import (
    ConvertedMessages,
    as_result,
    function_of,
    image_url,
    is_openai,
    system_text,
)
from ralph.conversation.messages import THINKING, RequestBody, to_json
from ralph.values.answer import FINAL_REPORT, Block
from ralph.values.servers import host_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


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


class Server(Struct, frozen=True):
    """The wishes of a server of Chat Completions, as far as they differ from OpenAI's."""

    limit: str = "max_completion_tokens"
    """The field for the longest answer."""
    counts_when_asked: bool = True
    """False if the server sends token counts unasked, and refuses `stream_options`."""
    ids: str = ".{1,40}"
    """The ids of calls that the server takes, as a regular expression."""
    is_openai: bool = False
    """Whether the server has OpenAI's further fields: `prompt_cache_key` and strict functions."""
    has_developer: bool = False
    """Whether OpenAI's models that reason get the system prompt in the role `developer`."""
    has_thinking: bool = False
    """Whether the server has a field `thinking`, as the Messages API has."""
    may_omit_reasoning: bool = True
    """False if the server refuses an assistant message without `reasoning_content`, even one of another model."""
    signs_calls: bool = False
    """Whether the server refuses calls without its signature. It documents a text for calls that others have made."""
    user_after_results: bool = True
    """False if the server refuses a user message right behind results of tools."""


_SERVERS = {
    r"(^|\.)openai\.com$": Server(is_openai=True, has_developer=True),
    r"(^|\.)mistral\.ai$": Server(
        "max_tokens", counts_when_asked=False, ids="[a-zA-Z0-9]{9}", user_after_results=False
    ),
    r"(^|\.)deepseek\.com$": Server("max_tokens", has_thinking=True, may_omit_reasoning=False),
    r"(^|\.)(moonshot|kimi)\.(ai|cn|com)$": Server("max_tokens", has_thinking=True, may_omit_reasoning=False),
    r"(^|\.)(z\.ai|bigmodel\.cn)$": Server("max_tokens", has_thinking=True),
    r"(^|\.)(together\.(ai|xyz)|perplexity\.ai)$": Server("max_tokens"),
    r"(^|\.)googleapis\.com$": Server(signs_calls=True),
}
"""The servers by their hosts. The fields are from the vendors' pages and from reports of refused requests."""
_SELF_HOSTED = Server("max_tokens")
"""A server without TLS. Ollama and LM Studio know the older name of the limit alone; vLLM and SGLang know both."""

_WANTS_REASONING = re.compile(r"deepseek|kimi")
"""Models of these families are served elsewhere with their vendors' rule for `reasoning_content`."""
_OF_MISTRAL = re.compile(r"(mi|mini|dev|code|magi)stral|pixtral")
"""Models whose templates refuse a user message behind results, at whichever server (NousResearch/hermes-agent#20154)."""
_SEES_NOT = re.compile(r"deepseek(?!.*(vl|ocr|vision))")
_UNSEEN: Block = {"type": "text", "text": "(an image, which this model cannot see)"}
_BETWEEN = {"role": "assistant", "content": "I have the results."}
"""Stands between results of tools and a user message where that order is refused."""
_OF_OPENAI = re.compile(r"(^|/)(gpt-(?!oss)|o\d|chatgpt-|codex)")
_REASONS_NOT = re.compile(r"^(gpt-[34]|chatgpt-)")
_UNSIGNED = {"google": {"thought_signature": "skip_thought_signature_validator"}}
"""For a call without a signature (ai.google.dev/gemini-api/docs/thought-signatures)."""


def server_at(base_url: str) -> Server:
    if base_url.startswith("http:"):
        return _SELF_HOSTED
    host = host_in(base_url)
    other = Server(is_openai=is_openai(base_url))
    return next((server for end, server in _SERVERS.items() if re.search(end, host)), other)


class ChatRequests:
    """Makes the requests to one server."""

    def __init__(self, base_url: str) -> None:
        self._server = server_at(base_url)
        self._messages: dict[str, ConvertedMessages] = {}
        """The messages of the last request to each model."""
        self._head = (b"", b"", b"")
        """The last request head, and its converted form: the fields without the closing brace, and the system prompt."""

    def body(self, request: RequestBody) -> tuple[bytes, ...]:
        asked = request.head.fields
        model = str(asked.get("model"))
        if self._head[0] != request.head.body:
            fields = to_json(self._fields(asked, model))[:-1]
            self._head = (request.head.body, fields, self._system(system_text(asked), model))
        if model not in self._messages:
            self._messages[model] = ConvertedMessages(lambda message: self._messages_of(message, model))
        _, fields, system = self._head
        is_openais = self._server.is_openai
        return self._messages[model].body(request, fields, b',"messages":[' + system, is_openais=is_openais)

    def _system(self, text: str, model: str) -> bytes:
        role = "developer" if self._server.has_developer and not _REASONS_NOT.match(model) else "system"
        return to_json({"role": role, "content": text}) + b"," if text else b""

    def _fields(self, asked: Mapping[str, Any], model: str) -> dict[str, Any]:
        server = self._server
        fields: dict[str, Any] = {"model": model}
        if "max_tokens" in asked:
            # OpenAI's newer models refuse the older name, at whichever server.
            limit = "max_completion_tokens" if _OF_OPENAI.search(model) else server.limit
            fields[limit] = asked["max_tokens"]
        fields["stream"] = asked.get("stream", True)
        if fields["stream"] and server.counts_when_asked:
            fields["stream_options"] = {"include_usage": True}
        fields.update(_thinking(asked, server))
        if asked.get("tools"):
            fields["tools"] = [
                {"type": "function", "function": self._function(tool)} for tool in asked["tools"]
            ]
        if "tool_choice" in asked:
            fields["tool_choice"] = _tool_choice(asked["tool_choice"])
        return fields

    def _function(self, tool: dict[str, Any]) -> dict[str, Any]:
        """The tool as a function. That of the report has a strict schema where the server has such schemas."""
        function = function_of(tool)
        if function["strict"] and self._server.is_openai and tool["name"] == FINAL_REPORT:
            return function
        # A schema of an object without `properties` is refused.
        parameters = {"type": "object", "properties": {}, **tool["input_schema"]}
        return {name: function[name] for name in ("name", "description")} | {"parameters": parameters}

    def _messages_of(self, message: Mapping[str, Any], model: str) -> Iterator[dict[str, Any]]:
        content = message["content"]
        blocks: list[Block] = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if message["role"] == "assistant":
            said = self._assistant(blocks, model)
            if said["content"] or "tool_calls" in said:  # else it has only what another API knows
                yield said
            return
        pictures: list[Block] = []
        if _SEES_NOT.search(model.lower()):
            blocks = _in_words(blocks)
        for block in blocks:
            if block.get("type") == "tool_result":
                inner = block.get("content")
                pictures += (
                    [one for one in inner if one.get("type") == "image"] if isinstance(inner, list) else ()
                )
                text = as_result(block, _text(inner or ""))
                yield {"role": "tool", "tool_call_id": self._id(block["tool_use_id"]), "content": text}
        rest = [*pictures, *(block for block in blocks if block.get("type") != "tool_result")]
        takes_order = self._server.user_after_results and not _OF_MISTRAL.search(model.lower())
        if rest and blocks[0].get("type") == "tool_result" and not takes_order:
            yield _BETWEEN
        if rest:
            yield {"role": "user", "content": _user_content(rest)}

    def _assistant(self, blocks: list[Block], model: str) -> dict[str, Any]:
        calls = [
            {
                "id": self._id(block["id"]),
                "type": "function",
                "function": {"name": block["name"], "arguments": to_json(block.get("input") or {}).decode()},
            }
            for block in blocks
            if block.get("type") == "tool_use"
        ]
        texts = [block for block in blocks if block.get("type") == "text"]
        said: dict[str, Any] = {"role": "assistant", "content": _text(texts) or None}
        reasoning, signatures = given_back([block for block in blocks if block.get("type") in THINKING])
        said.update(reasoning)
        wants = not self._server.may_omit_reasoning or _WANTS_REASONING.search(model.lower())
        if wants and not reasoning:
            said["reasoning_content"] = ""
        for call, signature in zip(calls, signatures, strict=False):
            if signature is not None:
                call["extra_content"] = signature
        if calls and self._server.signs_calls:
            calls[0].setdefault("extra_content", _UNSIGNED)
        if calls:
            said["tool_calls"] = calls
        return said

    def _id(self, call_id: str) -> str:
        """The id of a call in a form that the server takes: a hash, if it refuses the id itself."""
        if re.fullmatch(self._server.ids, call_id):
            return call_id
        digits = hashlib.sha256(call_id.encode()).hexdigest()
        return next(digits[:length] for length in (32, 9) if re.fullmatch(self._server.ids, digits[:length]))


def _thinking(asked: Mapping[str, Any], server: Server) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    effort = (asked.get("output_config") or {}).get("effort")
    if (asked.get("thinking") or {}).get("type") == "disabled":
        if server.has_thinking:
            return {"thinking": {"type": "disabled"}}
        effort = "none"
    if effort is not None:
        fields["reasoning_effort"] = effort
    return fields


def _tool_choice(choice: Mapping[str, Any]) -> Any:
    if choice.get("type") == "tool":
        return {"type": "function", "function": {"name": choice["name"]}}
    return "required" if choice.get("type") == "any" else choice.get("type")


def _in_words(blocks: list[Block]) -> list[Block]:
    """The blocks of a user message, with a text in place of each image, also of those in results of tools."""
    return [
        _UNSEEN
        if block.get("type") == "image"
        else {**block, "content": _in_words(block["content"])}
        if isinstance(block.get("content"), list)
        else block
        for block in blocks
    ]


def _user_content(blocks: list[Block]) -> str | list[dict[str, Any]]:
    if not any(block.get("type") == "image" for block in blocks):
        return _text(blocks)
    return [
        {"type": "image_url", "image_url": {"url": image_url(block)}}
        if block.get("type") == "image"
        else {"type": "text", "text": _text([block])}
        for block in blocks
    ]


def _text(content: str | list[Block]) -> str:
    if isinstance(content, str):
        return content
    blocks = (block for block in content if block.get("type") not in {"image", "tool_use", *THINKING})
    return "\n".join(
        block["text"] if block.get("type") == "text" else to_json(block).decode() for block in blocks
    )
