"""Finds requests that the API would refuse with status 400, and returns the API's message. No I/O happens here.

This module does not check whether a model exists. The API merges consecutive messages with the same role before it
checks them. This module does not merge them, because other servers do not.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from ralph.mock_api.fault import Fault
from ralph.mock_api.message_rules import blocks_of, message_violations, text_violation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# The API's documented limit for this endpoint. A larger request gets status 413.
MAX_REQUEST_BYTES = 32 * 1024 * 1024
_MAX_CACHE_MARKERS = 4
_VERSIONS = ("2026-10-21", "2023-06-01")
_SAMPLING = frozenset({"temperature", "top_p", "top_k"})
_FIELDS = frozenset(
    {
        "model",
        "max_tokens",
        "messages",
        "system",
        "stream",
        "stop_sequences",
        "tools",
        "tool_choice",
        "thinking",
    }
    | {"output_config", "cache_control", "metadata", "service_tier", "speed", "inference_geo", "container"}
    | {"diagnostics", "context_management", "compaction", "thread", "mcp_servers", "fallbacks"}
    | {"fallback_credit_token", "billing_policy"}
)
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_PROPERTY_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_UNIONS = ("oneOf", "allOf", "anyOf")
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


class InvalidBodyError(Exception):
    """The body of a request is not a JSON object. The message is the one that the API would send."""


def parse_body(body: bytes) -> dict[str, Any]:
    """Parses the request body as a JSON object. Raises `InvalidBodyError`."""
    try:
        payload = json.loads(body.decode())
        if _SURROGATE_ESCAPE.search(body):
            json.dumps(payload, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise InvalidBodyError(f"The request body is not valid JSON: {error}") from None
    if not isinstance(payload, dict):
        raise InvalidBodyError("Input should be an object")
    return payload


def find_violation(
    payload: Mapping[str, Any], headers: Mapping[str, str], *, continues_turn: bool = False
) -> str | None:
    """The API's message about the first error in the request, or None if the request is valid. `continues_turn` is
    True if the previous answer ended with `pause_turn`. The last message may then be the assistant's.
    """
    return next(_violations(payload, headers, continues_turn=continues_turn), None)


def find_refusal(
    payload: Mapping[str, Any], headers: Mapping[str, str], continues_turn: bool
) -> Fault | None:
    """The answer that refuses the request, or None if the request is valid."""
    violation = find_violation(payload, headers, continues_turn=continues_turn)
    return None if violation is None else Fault(status=400, message=violation)


def _violations(
    payload: Mapping[str, Any], headers: Mapping[str, str], *, continues_turn: bool
) -> Iterator[str]:
    version = headers.get("anthropic-version")
    if version is None:
        yield "anthropic-version: header is required"
    elif version not in _VERSIONS:
        yield f'anthropic-version: "{version}" is not a valid version'
    allowed = _FIELDS | _SAMPLING if version == _VERSIONS[1] else _FIELDS
    yield from (f"{name}: Extra inputs are not permitted" for name in payload if name not in allowed)
    yield from (
        f"{name}: Field required" for name in ("model", "max_tokens", "messages") if name not in payload
    )
    if not isinstance(payload["model"], str) or not payload["model"]:
        yield "model: Input should be a valid string"
    yield from _max_tokens(payload)
    yield from _system(payload.get("system"))
    yield from _tools(payload.get("tools", []))
    yield from message_violations(payload["messages"], continues_turn=continues_turn)
    markers = _count_markers(payload)
    if markers > _MAX_CACHE_MARKERS:
        yield f"A maximum of 4 blocks with cache_control may be provided. Found {markers}."


def _max_tokens(payload: Mapping[str, Any]) -> Iterator[str]:
    value = payload["max_tokens"]
    # 0 asks to warm the cache without output, which makes no sense as a stream.
    least = 1 if payload.get("stream") else 0
    if not isinstance(value, int) or isinstance(value, bool):
        yield "max_tokens: Input should be a valid integer"
    elif value < least:
        yield f"max_tokens: Input should be greater than or equal to {least}"


def _system(system: Any) -> Iterator[str]:
    if system is None or isinstance(system, str):
        return
    if not isinstance(system, list):
        yield "system: Input should be a valid list"
        return
    for number, block in enumerate(system):
        if not isinstance(block, dict) or block.get("type") != "text":
            yield f"system.{number}: Input should be a text block"
            return
        yield from text_violation(block, "system")


def _tools(tools: Any) -> Iterator[str]:
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        yield "tools: Input should be a valid list"
        return
    names = [tool.get("name") for tool in tools if "name" in tool]
    if len(set(map(str, names))) < len(names):
        yield "tools: Tool names must be unique."
    for number, tool in enumerate(tools):
        if tool.get("type", "custom") != "custom":
            continue
        if not _TOOL_NAME.fullmatch(str(tool.get("name", ""))):
            yield f"tools.{number}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'"
        schema = tool.get("input_schema")
        if not isinstance(schema, dict):
            yield f"tools.{number}.custom.input_schema: Field required"
        elif schema.get("type") != "object":
            yield f"tools.{number}.custom.input_schema.type: Input should be 'object'"
        elif not schema.keys().isdisjoint(_UNIONS):
            yield f"tools.{number}.custom.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level"
        elif not all(map(_PROPERTY_NAME.fullmatch, schema.get("properties", {}))):
            pattern = f"^{_PROPERTY_NAME.pattern}$"
            yield f"tools.{number}.custom.input_schema.properties: Property keys should match pattern '{pattern}'"


def _count_markers(payload: Mapping[str, Any]) -> int:
    """The number of cache markers in a request: on the request itself, on its blocks, and on the blocks inside tool
    results.
    """
    tools, system = payload.get("tools", []), payload.get("system")
    blocks = [payload, *tools, *(system if isinstance(system, list) else [])]
    for message in payload["messages"]:
        for block in blocks_of(message):
            blocks += [block, *blocks_of(block)]
    return sum(block.get("cache_control") is not None for block in blocks)
