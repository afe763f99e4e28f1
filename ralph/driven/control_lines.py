"""Decodes the lines that a driver sends, of any bytes, and makes the responses to its requests.

A line may be the response to a request of ralph's (`questions.py`). An invalid one becomes a `Malformed` that says
what is wrong and which values are allowed.
"""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from msgspec import Meta, Struct, ValidationError, convert, field, to_builtins

from ralph.values.strict_json import strict_json, unambiguous_json, with_whole_keys

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ralph.values.answer import Block

LONGEST_REQUEST_ID = 200
LONGEST_MODEL_NAME = 200
IMAGE_TYPES = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF.{4}WEBP", re.DOTALL),
}
"""The image types that the API accepts, each with a pattern for its first bytes."""
# Lines of these types are ignored. Drivers that were written for other programs send them, and expect no response.
_IGNORED_TYPES = ("control_cancel_request", "keep_alive")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LONGEST_SHOWN = 60
# A decoder's message may repeat a number as long as the line.
_LONGEST_REASON = 200

_Text = Annotated[str, Meta(pattern=r"\S")]


class TextBlock(Struct, frozen=True, tag_field="type", tag="text"):
    text: _Text


class ImageSource(Struct, frozen=True, tag_field="type", tag="base64"):
    media_type: Literal["image/png", "image/jpeg", "image/gif", "image/webp"]
    data: str

    def __post_init__(self) -> None:
        try:
            image = base64.b64decode(self.data, validate=True)
        except ValueError:
            image = b""
        if not image:
            # The error message does not contain the data, because nobody could read it.
            raise ValueError("data must be the image in base64, without line breaks")
        if not IMAGE_TYPES[self.media_type].match(image):
            # The API would refuse this image, and each later request that contains it.
            raise ValueError(f"data is not {self.media_type}")


class ImageBlock(Struct, frozen=True, tag_field="type", tag="image"):
    source: ImageSource


class DriverMessage(Struct, frozen=True):
    """The `message` of a user's line. Other keys are dropped, so that a driver cannot add cache markers to ralph's."""

    role: Literal["user"]
    content: _Text | Annotated[tuple[TextBlock | ImageBlock, ...], Meta(min_length=1)]


class UserLine(Struct, frozen=True, tag_field="type", tag="user"):
    message: DriverMessage
    uuid: Any = None
    client_composed: Any = False


class Initialize(Struct, frozen=True, tag_field="subtype", tag="initialize"):
    """Its keys are read from `ControlRequest.fields`."""


class Interrupt(Struct, frozen=True, tag_field="subtype", tag="interrupt"):
    pass


class SetModel(Struct, frozen=True, tag_field="subtype", tag="set_model"):
    model: str | None = None
    """None and "default" are the first model. A missing key is None: JavaScript leaves out a key that is undefined."""

    def __post_init__(self) -> None:
        name = self.model
        if name is None or (len(name) <= LONGEST_MODEL_NAME and name.isprintable() and name.strip()):
            return
        raise ValueError(f"model must be {_MUST_BE['request.model']}, not {in_short(name)}")


class SetPermissionMode(Struct, frozen=True, tag_field="subtype", tag="set_permission_mode"):
    mode: str


class SetAutoRetry(Struct, frozen=True, tag_field="subtype", tag="set_auto_retry"):
    enabled: bool


class AbortRetry(Struct, frozen=True, tag_field="subtype", tag="abort_retry"):
    pass


class GetStatus(Struct, frozen=True, tag_field="subtype", tag="get_status"):
    pass


class SetMaxThinkingTokens(Struct, frozen=True, tag_field="subtype", tag="set_max_thinking_tokens"):
    max_thinking_tokens: int | None = None


class GetContextUsage(Struct, frozen=True, tag_field="subtype", tag="get_context_usage"):
    pass


class McpMessage(Struct, frozen=True, tag_field="subtype", tag="mcp_message"):
    """A message that an MCP server of the driver sends without a request from ralph."""

    message: dict[str, Any] = {}


class McpStatus(Struct, frozen=True, tag_field="subtype", tag="mcp_status"):
    pass


Request = (
    Initialize
    | Interrupt
    | SetModel
    | SetPermissionMode
    | SetMaxThinkingTokens
    | GetContextUsage
    | McpStatus
    | McpMessage
    | SetAutoRetry
    | AbortRetry
    | GetStatus
)


class RequestLine(Struct, frozen=True, tag_field="type", tag="control_request"):
    request_id: Annotated[str, Meta(min_length=1, max_length=LONGEST_REQUEST_ID)]
    request: Request


class Response(Struct, frozen=True):
    """The driver's response to a request that ralph sent."""

    request_id: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The content of the response. Empty if the driver answered with an error."""
    error: str | None = None
    """The driver's error text, or the reason why the response cannot be used. None if there is no error."""


class UserMessage(Struct, frozen=True):
    content: str | tuple[Block, ...]
    """A text, or blocks with only the keys that the API knows. No text is empty."""
    uuid: str | None = None
    """The driver's own id of the message, or None."""
    is_verbatim: bool = False
    """True if a program composed the text. Then nothing in the text calls a command."""


class ControlRequest(Struct, frozen=True):
    request_id: str
    request: Request
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The keys of the request as the driver sent them, including `subtype`."""


class Ignored(Struct, frozen=True):
    """An empty line, or a line that needs no response."""


class Malformed(Struct, frozen=True):
    reason: str
    request_id: str | None = None
    """The id of the request. None if the line has no id, or an id that cannot be sent back."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The keys of an invalid control request, which may have asked for a safeguard."""


ControlLine = UserMessage | ControlRequest | Response | Ignored | Malformed

_KNOWN_TYPES = ("user", "control_request", "control_response", *_IGNORED_TYPES)
_KNOWN_REQUESTS = tuple(kind.__struct_config__.tag for kind in get_args(Request))
_MUST_BE = {
    "message": 'an object with "role" and "content"',
    "message.role": '"user"',
    "message.content": "a text or a list of blocks",
    "message.content[]": "a block of type text or image",
    "message.content[].type": '"text" or "image"',
    "message.content[].text": "a text",
    "message.content[].source": "an object with type, media_type and data",
    "message.content[].source.type": '"base64"',
    "message.content[].source.media_type": f"one of {', '.join(IMAGE_TYPES)}",
    "message.content[].source.data": "the image in base64, without line breaks",
    "request_id": f"a text of 1 to {LONGEST_REQUEST_ID} characters",
    "request": 'an object with a "subtype"',
    "request.model": f'a model\'s name of at most {LONGEST_MODEL_NAME} characters, "default" or null',
    "request.mode": "the name of a permission mode",
    "request.enabled": "true or false",
}
"""The allowed values for each path, in words that follow "must be". `[]` in a path stands for an index."""
_LACKING = {
    "rewind_files": "File rewinding is not enabled: ralph keeps no checkpoints of files; commit with git, and go back with it",
    "mcp_reconnect": "ralph cannot connect to a server again during a run: start it again with --mcp-config",
    "mcp_toggle": "the tools of a run are fixed at its start: name the servers by --mcp-config",
    "mcp_set_servers": "the tools of a run are fixed at its start: name the servers by --mcp-config",
    "stop_task": "ralph has no background tasks; interrupt stops what runs",
}
"""Requests that drivers may send and ralph does not support: what is missing, and what to do instead."""
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_EMPTY = re.compile(r"Expected `str` matching regex|Expected `array` of length >= 1")


def parse_control_line(line: bytes) -> ControlLine:
    if not line.strip():
        return Ignored()
    try:
        text = line.removeprefix(_BYTE_ORDER_MARK).decode()
        value = strict_json(text)
    except (ValueError, RecursionError) as error:
        return Malformed(f"the line is not JSON: {str(error)[:_LONGEST_REASON]}")
    if not isinstance(value, dict):
        return Malformed(f"the line must be a JSON object, not {in_short(value)}")
    if value.get("type") in _IGNORED_TYPES:
        return Ignored()
    if value.get("type") == "control_response":
        return _response(value.get("response"), text)
    request = value.get("request") if value.get("type") == "control_request" else None
    fields = request if isinstance(request, dict) else {}
    try:
        decoded = _decoded(value)
    except ValidationError as error:
        return Malformed(_reason(error, value), _request_id(value), fields)
    except UnicodeEncodeError:  # the decoder compares names as UTF-8
        return Malformed("a name in the line is half a surrogate pair", _request_id(value), fields)
    if isinstance(decoded, RequestLine):
        return ControlRequest(decoded.request_id, decoded.request, fields)
    uuid = (
        decoded.uuid
        if isinstance(decoded.uuid, str) and 0 < len(decoded.uuid) <= LONGEST_REQUEST_ID
        else None
    )
    return UserMessage(to_builtins(decoded.message.content), uuid, is_verbatim=bool(decoded.client_composed))


def _decoded(value: dict[str, Any]) -> UserLine | RequestLine:
    try:
        return convert(value, UserLine | RequestLine)
    except UnicodeEncodeError:
        return convert(with_whole_keys(value), UserLine | RequestLine)


def _response(value: object, line: str) -> Response | Ignored:
    fields = value if isinstance(value, dict) else {}
    request_id, answer = fields.get("request_id"), fields.get("response")
    if not isinstance(request_id, str):
        return Ignored()
    try:
        unambiguous_json(line)
    except ValueError as fault:
        return Response(request_id, error=f"the response is not valid: {fault}")
    if fields.get("subtype") == "success" and isinstance(answer, dict | None):
        return Response(request_id, answer or {})
    error = fields.get("error")
    return Response(
        request_id, error=error if isinstance(error, str) else "the response does not have a valid form"
    )


def request_line(request_id: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """The line that sends a request from ralph to the driver."""
    return {"type": "control_request", "request_id": request_id, "request": dict(request)}


def cancel_line(request_id: str) -> dict[str, Any]:
    """The line that tells the driver that ralph no longer waits for the response to a request."""
    return {"type": "control_cancel_request", "request_id": request_id}


def success(request_id: str, response: Mapping[str, Any]) -> dict[str, Any]:
    answer = {"subtype": "success", "request_id": request_id, "response": dict(response)}
    return {"type": "control_response", "response": answer}


def failure(request_id: str | None, error: str) -> dict[str, Any]:
    """The error response to a control request. `request_id` is None if the line had no usable id."""
    answer = {"subtype": "error", "request_id": request_id, "error": error}
    return {"type": "control_response", "response": answer}


def in_short(value: object) -> str:
    """A JSON value as short text. Long values, objects and lists are described and not cut, because a redactor does not
    recognise half a secret.
    """
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    shown = json.dumps(value)
    if len(shown) <= _LONGEST_SHOWN:
        return shown
    return f"a text of {len(value):,} characters" if isinstance(value, str) else "a very long number"


def _request_id(line: Mapping[str, Any]) -> str | None:
    value = line.get("request_id")
    return value if isinstance(value, str) and 0 < len(value) <= LONGEST_REQUEST_ID else None


def _reason(error: ValidationError, line: Mapping[str, Any]) -> str:
    text, _, path = str(error).rpartition(" - at `$") if " - at `$" in str(error) else (str(error), "", "")
    path = path.strip(".`")
    if error.__cause__ is not None:  # our own check: its message begins with the field's name
        name, _, rest = text.partition(" ")
        return f'"{path}.{name}" {rest}'
    missing = _MISSING.match(text)
    if missing is not None:
        path = f"{path}.{missing[1]}".lstrip(".")
    return _fault(path, text, line)


def _fault(path: str, text: str, line: Mapping[str, Any]) -> str:
    given = in_short(_value_at(line, path))
    if path == "type":
        return f"unknown type {given}; known are {', '.join(_KNOWN_TYPES)}"
    if path == "request.subtype":
        lacking = _LACKING.get(str(_value_at(line, path)))
        if lacking is not None:
            return lacking
        return f"unknown control request {given}; known are {', '.join(map(str, _KNOWN_REQUESTS))}"
    if _EMPTY.match(text):
        return f'"{path}" is empty'
    allowed = _MUST_BE.get(re.sub(r"\d+", "", path), "something else")
    return f'"{path}" must be {allowed}' + ("" if path.endswith(".data") else f", not {given}")


def _value_at(line: Any, path: str) -> Any:
    """None if the line has no such path."""
    for key in re.findall(r"\w+", path):
        line = line[int(key)] if isinstance(line, list) else line.get(key)
    return line
