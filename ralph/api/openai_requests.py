"""The parts that requests of OpenAI's two APIs have in common: kept messages, tools as functions, images and the key of
the prompt cache. No I/O happens here.

The rules of strict mode are from developers.openai.com/api/docs/guides/structured-outputs, "Supported schemas".
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any

from ralph.conversation.messages import RequestBody, to_json
from ralph.values.answer import FINAL_REPORT, Block
from ralph.values.servers import host_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Convert = Callable[[dict[str, Any]], Iterable[dict[str, Any]]]

_OPENAI_HOSTS = (
    "api.openai.com",
    ".openai.azure.com",
    ".cognitiveservices.azure.com",
    ".services.ai.azure.com",
)
_NEXT_MESSAGE = b'{"role":"'
_LEFT_OUT = frozenset({"minLength", "maxLength", "default", "examples", "title", "$comment", "$schema"})
"""Keywords that strict mode refuses or ignores. Ralph checks the arguments itself."""
_TAKEN = frozenset(
    (
        *("type", "description", "enum", "const", "properties", "required", "additionalProperties"),
        *("items", "minItems", "maxItems", "anyOf", "pattern", "format"),
        *("multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    )
)


class ConvertedMessages:
    """Converts the messages of requests to one endpoint. Each message is converted once, so that its bytes are the
    same in all later requests: the server's prompt cache depends on them.
    """

    def __init__(self, convert: Convert) -> None:
        self._convert = convert
        self._kept: dict[bytes, bytes] = {}
        """The converted form of each piece and each message of the last request, by their bytes."""

    def pieces(self, request: RequestBody) -> tuple[bytes, ...]:
        """The JSON of all objects, separated by commas, in pieces. The large pieces are the objects of the last
        request, and each of them ends with a comma.
        """
        kept = self._kept
        packed = {
            piece: kept[piece] if piece in kept else self._json(piece.removesuffix(b","), b",")
            for piece in request.packed
        }
        loose = {
            message: kept[message] if message in kept else self._json(message) for message in request.loose
        }
        self._kept = packed | loose
        newest = b",".join(filter(None, map(loose.__getitem__, request.loose)))
        return (*filter(None, (packed[piece] for piece in request.packed)), newest)

    def body(
        self, request: RequestBody, fields: bytes, messages: bytes, *, is_openais: bool
    ) -> tuple[bytes, ...]:
        """The JSON of the request, in pieces. It begins with `fields`, which end without a comma, and `messages` is
        the text that opens the list of messages. For OpenAI's own servers (`is_openais`), a key for the prompt
        cache is added.
        """
        key = b',"prompt_cache_key":' + to_json(cache_key(request)) if is_openais else b""
        head = b"".join((fields, key, messages))
        *packed, newest = self.pieces(request)
        return (head, *packed, newest + b"]}") if packed else (head + newest + b"]}",)

    def _json(self, messages: bytes, end: bytes = b"") -> bytes:
        decoded = json.loads(b"[" + messages + b"]")
        objects = [to_json(one) for message in decoded for one in self._convert(message)]
        return b",".join(objects) + end if objects else b""


def is_openai(base_url: str) -> bool:
    """Whether the server is one of OpenAI's own or one of Azure's, so that it takes every field of OpenAI's API."""
    return f".{host_in(base_url)}".endswith(tuple(f".{host.removeprefix('.')}" for host in _OPENAI_HOSTS))


def cache_key(request: RequestBody) -> str:
    """A name for the conversation. It is made from the system prompt and the first message, so that it is the same in all
    requests until the conversation is compacted, also after a resume.
    """
    first = (*request.packed, *request.loose, b"")[0] + b"," + _NEXT_MESSAGE
    first = first.partition(b"]}," + _NEXT_MESSAGE)[0]
    return f"ralph-{zlib.crc32(first, zlib.crc32(system_text(request.head.fields).encode())):08x}"


def system_text(fields: dict[str, Any] | Any) -> str:
    """The system prompt of a request head as one text."""
    system = fields.get("system") or ""
    return system if isinstance(system, str) else "\n\n".join(str(block.get("text", "")) for block in system)


def as_result(block: Block, text: str) -> str:
    """The text of a tool's result. OpenAI's APIs have no field for a failure, so the text says so."""
    return f"Error: {text}" if block.get("is_error") and not text.lower().startswith("error") else text


def image_url(block: Block) -> str:
    """The URL of an image block, which may hold the image itself."""
    source = block["source"]
    return str(source.get("url") or f"data:{source.get('media_type')};base64,{source.get('data', '')}")


def call_id_within(call_id: str, longest: int) -> str:
    """The id of a call in at most `longest` characters. The call and its result get the same one."""
    return (
        call_id if len(call_id) <= longest else f"{call_id[: longest - 9]}_{zlib.crc32(call_id.encode()):08x}"
    )


def function_of(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool as a function. `strict` is True if the server may be asked to generate only arguments that fit the schema."""
    strict = strict_schema(
        _report(tool["input_schema"]) if tool["name"] == FINAL_REPORT else tool["input_schema"]
    )
    return {
        "name": tool["name"],
        "description": tool.get("description", ""),
        "parameters": strict or tool["input_schema"],
        "strict": strict is not None,
    }


def _report(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a report for strict mode. There the payload must be written, but may be null, as a report of failure has it."""
    properties = schema["properties"]
    if "payload" not in properties:
        return schema
    payload = {"anyOf": [properties["payload"], {"type": "null"}]}
    return {**schema, "properties": {**properties, "payload": payload}, "required": list(properties)}


def strict_schema(schema: dict[str, Any]) -> dict[str, Any] | None:
    """The schema in the form that strict mode takes. None if strict mode cannot express it, for example because an
    argument may be left out.
    """
    try:
        strict = _strict(schema)
    except ValueError:
        return None
    return strict if strict.get("type") == "object" else None


def _strict(schema: Any) -> dict[str, Any]:
    """The schema for strict mode, at any depth. Raises ValueError if strict mode cannot express it."""
    if not isinstance(schema, dict):
        raise ValueError("a schema that is not an object")  # noqa: TRY004 - caught above
    strict = {name: value for name, value in schema.items() if name not in _LEFT_OUT}
    kind = strict.get("type")
    is_typed = kind is not None or strict.keys() & {"enum", "const", "anyOf"}
    if not strict.keys() <= _TAKEN or not is_typed:
        raise ValueError("a keyword that strict mode does not take, or no type")
    if "properties" in strict or kind == "object" or (isinstance(kind, list) and "object" in kind):
        properties = strict.get("properties")
        if not isinstance(properties, dict) or strict.get("additionalProperties"):
            raise ValueError("an object with any properties")
        if set(properties) != set(strict.get("required") or ()):
            raise ValueError("a property that may be left out")
        strict["properties"] = {name: _strict(inner) for name, inner in properties.items()}
        strict["required"] = list(properties)
        strict["additionalProperties"] = False
    if "items" in strict:
        strict["items"] = _strict(strict["items"])
    if isinstance(strict.get("anyOf"), list):
        strict["anyOf"] = [_strict(inner) for inner in strict["anyOf"]]
    return strict
