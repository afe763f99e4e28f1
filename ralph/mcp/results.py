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

_RESOURCE = "[resource "
EMPTY = "(no output)"
EMPTY_FAILURE = "(the server says that the call failed, and nothing else)"
SAME_TEXT, SAME_IMAGE = "(the same text as above)", "[the same image as above]"
AS_ABOVE = "(as above)"
_WORTH_CHARS = 100
"""A shorter text may be sent twice: that costs less than the question what was meant."""
# The only key around a result that texts repeat: of the SDK for Python, and of the reference server for files.
_WRAPPERS = ({"result"}, {"content"})


class ReceivedImage(Struct, frozen=True):
    data: bytes
    described: str
    """A text that replaces the image if the image cannot be shown."""


Part = str | ReceivedImage


def parts_of(result: Mapping[str, Any]) -> list[Part]:
    """The texts and images of a result, in order, without blank texts and without what it says twice. The list has at least one
    item. A result may have its content, its structured content, or both; neither of them says whether the call failed.
    """
    content = result.get("content")
    blocks = content if isinstance(content, list) else []
    seen: set[str | bytes] = set()
    found = (_once(part, seen) for block in blocks for part in _parts(block))
    parts = [part for part in found if not isinstance(part, str) or part.strip()]
    structured = result.get("structuredContent")
    texts = [part for part in parts if isinstance(part, str)]
    if structured is not None and (rest := _rest_of(structured, texts, blocks)) is not None:
        parts.append(json.dumps(rest, ensure_ascii=False))
    return parts or [EMPTY_FAILURE if is_error(result) else EMPTY]


def is_error(result: Mapping[str, Any]) -> bool:
    return result.get("isError") is True


def _once(part: Part, seen: set[str | bytes]) -> Part:
    """The part, or a note if what it shows is in `seen`, to which it is added."""
    head, text = "", part if isinstance(part, str) else part.data
    if isinstance(text, str) and text.startswith(_RESOURCE):
        head, line_end, text = text.partition("\n")
        head += line_end
    if text in seen:
        return f"{head}{SAME_TEXT}" if isinstance(text, str) else SAME_IMAGE
    if len(text) >= _WORTH_CHARS:
        seen.add(text)
    return part


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
        yield f"{_RESOURCE}{uri}]\n{resource['text']}"
        return
    yield f"{_RESOURCE}{uri}]"
    yield _data(resource.get("blob"), resource.get("mimeType"), "data")


def _data(text: Any, media_type: Any, word: str) -> Part:
    """The image that a Base64 text contains. If the text is not a valid image, a description of the data."""
    if not str(media_type).lower().startswith("image/"):
        return _named(_size(text), media_type, word)
    try:
        data = base64.b64decode(str(text), validate=True)
    except (binascii.Error, ValueError):
        return f"[an image that is not valid Base64 ({media_type})]"
    return ReceivedImage(data, f"{media_type}, {len(data):,} bytes")


def _size(text: Any) -> int:
    return len(str(text or "")) * 3 // 4


def _named(size_bytes: int, media_type: Any, word: str) -> str:
    return f"[{word} that cannot be shown: {media_type or 'no type'}, {size_bytes:,} bytes]"


def _rest_of(structured: Any, texts: Sequence[str], blocks: Sequence[Any]) -> Any:
    """The structured content without what the texts or the blocks say too. None if nothing is left."""
    is_wrapped = isinstance(structured, dict) and structured.keys() in _WRAPPERS
    value = next(iter(structured.values())) if is_wrapped else structured
    if _is_said(structured, texts, blocks) or _is_said(value, texts, blocks):
        return None
    if not isinstance(structured, dict):
        return structured
    said = [
        key
        for key, one in structured.items()
        if len(json.dumps(one)) >= _WORTH_CHARS and _is_said(one, texts, blocks)
    ]
    if said and len(said) == len(structured):
        return None
    return {key: AS_ABOVE if key in said else one for key, one in structured.items()}


def _is_said(value: Any, texts: Sequence[str], blocks: Sequence[Any]) -> bool:
    """Whether a text says the same, or the texts the same as the items, or a block or all of them are the same."""
    if any(_is_same(text, value) for text in texts):
        return True
    if isinstance(value, list) and 0 < len(value) == len(texts) and all(map(_is_same, texts, value)):
        return True
    return bool(blocks) and (value == blocks or value in blocks)


def _is_same(text: str, value: Any) -> bool:
    if text == value:
        return True
    try:
        # As texts, because 1 equals true in Python.
        return json.dumps(json.loads(text), sort_keys=True) == json.dumps(value, sort_keys=True)
    except (ValueError, RecursionError):
        return False
