"""Converts the result of an MCP tool call to texts and images. No I/O happens here.

The result comes from a server, and nothing about its form is certain. If the Messages API does not accept some
content, such as sound, a text with its type and size replaces it.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

EMPTY = "(no output)"
EMPTY_FAILURE = "(the server says that the call failed, and nothing else)"


class ReceivedImage(Struct, frozen=True):
    data: bytes
    described: str
    """A text that replaces the image if the image cannot be shown."""


Part = str | ReceivedImage


def parts_of(result: Mapping[str, Any]) -> list[Part]:
    """The texts and images of a result, in order, without blank texts. The list has at least one item. A result may have its
    content, its structured content, or both; neither of them says whether the call failed.
    """
    content = result.get("content")
    found = (part for block in content for part in _parts(block)) if isinstance(content, list) else ()
    parts = [part for part in found if not isinstance(part, str) or part.strip()]
    structured = result.get("structuredContent")
    if structured is not None and not _repeats([part for part in parts if isinstance(part, str)], structured):
        parts.append(json.dumps(structured, ensure_ascii=False))
    return parts or [EMPTY_FAILURE if is_error(result) else EMPTY]


def is_error(result: Mapping[str, Any]) -> bool:
    return result.get("isError") is True


def _parts(block: Any) -> Iterator[Part]:
    if not isinstance(block, dict):
        return
    match block.get("type"):
        case "text":
            yield text if isinstance(text := block.get("text"), str) else ""
        case "image":
            yield _data(block.get("data"), block.get("mimeType"), "image")
        case "audio":
            yield _named(_size(block.get("data")), block.get("mimeType"), "audio")
        case "resource":
            yield from _resource(block.get("resource"))
        case "resource_link":
            words = (block.get(key) for key in ("name", "uri", "mimeType", "description"))
            yield f"[resource link: {', '.join(str(word) for word in words if word)}]"
        case other:
            yield f"[content of the type {other!r}, which cannot be shown]"


def _resource(resource: Any) -> Iterator[Part]:
    if not isinstance(resource, dict):
        return
    uri = resource.get("uri")
    if isinstance(resource.get("text"), str):
        yield f"[resource {uri}]\n{resource['text']}"
        return
    yield f"[resource {uri}]"
    yield _data(resource.get("blob"), resource.get("mimeType"), "data")


def _data(text: Any, media_type: Any, word: str) -> Part:
    """The image that a Base64 text contains. If the text is not a valid image, a description of the data."""
    if not str(media_type).startswith("image/"):
        return _named(_size(text), media_type, word)
    try:
        data = base64.b64decode(str(text), validate=True)
    except (binascii.Error, ValueError):
        return f"[an image that is no valid Base64 ({media_type})]"
    return ReceivedImage(data, f"{media_type}, {len(data):,} bytes")


def _size(text: Any) -> int:
    return len(str(text or "")) * 3 // 4


def _named(size_bytes: int, media_type: Any, word: str) -> str:
    return f"[{word} that cannot be shown: {media_type or 'no type'}, {size_bytes:,} bytes]"


def _repeats(texts: Sequence[str], structured: Any) -> bool:
    """Whether texts say the same as the structured content."""
    is_wrapped = isinstance(structured, dict) and structured.keys() == {"result"}
    value = structured["result"] if is_wrapped else structured
    if any(_is_same(text, structured) or _is_same(text, value) for text in texts):
        return True
    are_items = isinstance(value, list) and 0 < len(value) == len(texts)
    return are_items and all(map(_is_same, texts, value))


def _is_same(text: str, value: Any) -> bool:
    if text == value:
        return True
    try:
        # As texts, because 1 equals true in Python.
        return json.dumps(json.loads(text), sort_keys=True) == json.dumps(value, sort_keys=True)
    except (ValueError, RecursionError):
        return False
