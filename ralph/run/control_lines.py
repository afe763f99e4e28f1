"""Reads control lines from standard input, and makes the answers to requests. Pure.

Whatever the bytes hold, reading them gives a value. A line that cannot be taken is `Malformed`, with what is
allowed.
"""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from ralph.values.strict_json import strict_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ralph.values.tool_calls import Block

LONGEST_REQUEST_ID = 200
IMAGE_TYPES = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF.{4}WEBP", re.DOTALL),
}
"""The image types that the API takes, and how each begins."""
# What a driver of another program may send too; it asks nothing of ralph, which sends no requests of its own.
_IGNORED_TYPES = ("control_response", "control_cancel_request", "keep_alive")
_KNOWN_TYPES = ("user", "control_request", *_IGNORED_TYPES)
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LONGEST_SHOWN = 60
# A decoder's message may repeat a number as long as the line.
_LONGEST_REASON = 200


class UserMessage(Struct, frozen=True):
    content: str | tuple[Block, ...]
    """Text and image blocks hold the API's keys and nothing else; at least one, and no text is empty."""


class ControlRequest(Struct, frozen=True):
    request_id: str
    subtype: str
    fields: Mapping[str, Any]
    """The request's other keys, unchecked."""


class Ignored(Struct, frozen=True):
    """An empty line, or one that asks for nothing."""


class Malformed(Struct, frozen=True):
    reason: str
    request_id: str | None = None
    """The id of the request; None: the line has none, or one that cannot be sent back."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The fields of a line that was meant as a control request, `subtype` included: it may have asked for a
    guard.
    """


class _LineError(Exception):
    """A fault of a line, as a sentence for its sender."""


ControlLine = UserMessage | ControlRequest | Ignored | Malformed


def parse_control_line(line: bytes) -> ControlLine:
    if not line.strip():
        return Ignored()
    try:
        value = strict_json(line.removeprefix(_BYTE_ORDER_MARK).decode())
    except (ValueError, RecursionError) as error:
        return Malformed(f"the line is no JSON: {str(error)[:_LONGEST_REASON]}")
    if not isinstance(value, dict):
        return Malformed(f"the line must be a JSON object, not {in_short(value)}")
    try:
        return _meaning(value)
    except _LineError as flaw:
        request = value.get("request") if value.get("type") == "control_request" else None
        return Malformed(str(flaw), _request_id(value), request if isinstance(request, dict) else {})


def success(request_id: str, response: Mapping[str, Any]) -> dict[str, Any]:
    answer = {"subtype": "success", "request_id": request_id, "response": dict(response)}
    return {"type": "control_response", "response": answer}


def failure(request_id: str | None, error: str) -> dict[str, Any]:
    """`request_id` None: the line that failed had none to give back."""
    answer = {"subtype": "error", "request_id": request_id, "error": error}
    return {"type": "control_response", "response": answer}


def in_short(value: object) -> str:
    """A JSON value as a message names it: whole or not at all, for no redactor knows the half of a secret."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    shown = json.dumps(value)
    if len(shown) <= _LONGEST_SHOWN:
        return shown
    return f"a text of {len(value):,} characters" if isinstance(value, str) else "a very long number"


def _meaning(line: dict[str, Any]) -> ControlLine:
    """Raises _LineError with what is wrong."""
    kind = line.get("type")
    if kind == "user":
        return _user_message(line)
    if kind == "control_request":
        return _control_request(line)
    if kind in _IGNORED_TYPES:
        return Ignored()
    known = ", ".join(_KNOWN_TYPES)
    if "type" not in line:
        raise _LineError(f'"type" is missing; known are {known}')
    raise _LineError(f"unknown type {in_short(kind)}; known are {known}")


def _control_request(line: dict[str, Any]) -> ControlRequest:
    request_id = _request_id(line)
    if request_id is None:
        given = in_short(line.get("request_id"))
        raise _LineError(f'"request_id" must be a text of 1 to {LONGEST_REQUEST_ID} characters, not {given}')
    request = line.get("request")
    if not isinstance(request, dict):
        raise _LineError(f'"request" must be an object with a "subtype", not {in_short(request)}')
    fields = dict(request)
    subtype = fields.pop("subtype", None)
    if not isinstance(subtype, str) or not subtype:
        raise _LineError(f'"request.subtype" must name what is asked for, not {in_short(subtype)}')
    return ControlRequest(request_id, subtype, fields)


def _request_id(line: dict[str, Any]) -> str | None:
    value = line.get("request_id")
    return value if isinstance(value, str) and 0 < len(value) <= LONGEST_REQUEST_ID else None


def _user_message(line: dict[str, Any]) -> UserMessage:
    message = line.get("message")
    if not isinstance(message, dict):
        raise _LineError(f'"message" must be an object with "role" and "content", not {in_short(message)}')
    if message.get("role") != "user":
        raise _LineError(f'"message.role" must be "user", not {in_short(message.get("role"))}')
    content = message.get("content")
    if isinstance(content, str):
        return UserMessage(_some_text(content, "message.content"))
    if not isinstance(content, list):
        raise _LineError(f'"message.content" must be a text or a list of blocks, not {in_short(content)}')
    if not content:
        raise _LineError('"message.content" is empty; it needs a text or image block')
    return UserMessage(
        tuple(_block(block, f"message.content[{index}]") for index, block in enumerate(content))
    )


def _block(block: object, where: str) -> Block:
    """Only what the API needs of it: a cache marker of the driver's would come on top of ralph's own."""
    kind = block.get("type") if isinstance(block, dict) else block
    if isinstance(block, dict) and kind == "text":
        return {"type": "text", "text": _some_text(block.get("text"), f"{where}.text")}
    if isinstance(block, dict) and kind == "image":
        return {"type": "image", "source": _image_source(block.get("source"), f"{where}.source")}
    raise _LineError(f'"{where}" must be a block of type text or image, not {in_short(kind)}')


def _some_text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise _LineError(f'"{where}" must be a text, not {in_short(value)}')
    if not value.strip():
        raise _LineError(f'"{where}" is empty')
    return value


def _image_source(source: object, where: str) -> Block:
    if not isinstance(source, dict):
        raise _LineError(
            f'"{where}" must be an object with type, media_type and data, not {in_short(source)}'
        )
    kind, media_type, data = source.get("type"), source.get("media_type"), source.get("data")
    if kind != "base64":
        raise _LineError(f'"{where}.type" must be "base64", not {in_short(kind)}')
    if not isinstance(media_type, str) or media_type not in IMAGE_TYPES:
        raise _LineError(
            f'"{where}.media_type" must be one of {", ".join(IMAGE_TYPES)}, not {in_short(media_type)}'
        )
    image = _decoded(data) if isinstance(data, str) else b""
    if not image:
        # The data itself is nothing that a message could show.
        raise _LineError(f'"{where}.data" must be the image in base64, without line breaks')
    if not IMAGE_TYPES[media_type].match(image):
        # Sent, it would be refused, and with it every request after it.
        raise _LineError(f'"{where}.data" is no {media_type}')
    return {"type": "base64", "media_type": media_type, "data": data}


def _decoded(data: str) -> bytes:
    """Empty: it is no base64."""
    try:
        return base64.b64decode(data, validate=True)
    except ValueError:
        return b""
