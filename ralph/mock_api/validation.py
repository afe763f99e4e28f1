"""Finds requests that the API would refuse with status 400, and returns its message. Does not know which models exist.
The API merges consecutive messages of one role first; this module does not, because other servers do not.
"""

from __future__ import annotations

import json
import re
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType, ValidationError, convert, defstruct

from ralph.mock_api.scenario import Fault, openai_body

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_Message = dict[str, Any]

_PATTERNS = {"id": "^[a-zA-Z0-9_-]+$", "tool_use_id": "^[a-zA-Z0-9_-]+$", "name": "^[a-zA-Z0-9_-]{1,128}$"}


def blocks_of(holder: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The content blocks of `holder`, a message or a tool result. Empty if the content is a string."""
    content = holder.get("content")
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def message_violations(messages: Any, *, continues_turn: bool) -> Iterator[str]:
    """The API's messages, in its order. `continues_turn`: the last message may be the assistant's."""
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
    """A system message must follow a user message, or an assistant message that ends with the result of a server tool,
    and must not precede a user message. Another rule is about the first message.
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
    """A result after other content does not count."""
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
    """The API's message about the first error, or None. `continues_turn`: the last answer ended with `pause_turn`, so
    the last message may be the assistant's.
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
    """The number of cache markers on the request itself, on its blocks, and on the blocks inside tool results."""
    tools, system = payload.get("tools", []), payload.get("system")
    blocks = [payload, *tools, *(system if isinstance(system, list) else [])]
    for message in payload["messages"]:
        for block in blocks_of(message):
            blocks += [block, *blocks_of(block)]
    return sum(block.get("cache_control") is not None for block in blocks)


# The common rules of OpenAI's two APIs: types of values, tools, and the words of a refusal.

JsonObject = dict[str, Any]
NonEmpty = Annotated[str, Meta(min_length=1)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Detail = Literal["auto", "low", "high", "original"]
FUNCTION: JsonObject = {
    "name": Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]+$", max_length=64)],
    "description?": str | None,
    "parameters?": JsonObject | None,
    "strict?": bool | None,
}
"""The fields of a function that the model may call."""
COMMON: JsonObject = {
    "model": NonEmpty,
    "stream?": bool | None,
    "tool_choice?": Literal["none", "auto", "required"] | JsonObject,
    **dict.fromkeys(
        "metadata? store? temperature? top_p? top_logprobs? service_tier? safety_identifier? user? "
        "prompt_cache_key? prompt_cache_retention? prompt_cache_options?".split(),
        object,
    ),
}
"""The fields of a request in both APIs. Some of them may have any value."""


def shape(fields: JsonObject, tag: str | None = None, tag_field: str = "type") -> Any:
    """The type of an object that has these fields and no others. A name that ends in `?` may be missing."""
    names: list[Any] = [
        (name[:-1], kind | UnsetType, UNSET) if name.endswith("?") else (name, kind)
        for name, kind in fields.items()
    ]
    strict = partial(defstruct, "Shape", names, frozen=True, kw_only=True, forbid_unknown_fields=True)
    return strict() if tag is None else strict(tag=tag, tag_field=tag_field)


def one_of(shapes: Mapping[str, JsonObject], tag_field: str = "type") -> Any:
    """The type of an object that has one of these shapes. The field `tag_field` names it."""
    return reduce(or_, (shape(fields, tag, tag_field) for tag, fields in shapes.items()))


def array(kind: Any, *, least: int = 1, most: int | None = None) -> Any:
    return Annotated[list[kind], Meta(min_length=least, max_length=most)]


class ViolationError(Exception):
    """A request that the API refuses with status 400."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


def refusal_by(kind: Any, check: Callable[[JsonObject], None], payload: JsonObject) -> Fault | None:
    """The answer to a request that has not this type, or that the check raises for. None if it is valid."""
    try:
        convert(payload, kind)
        check(payload)
    except ViolationError as error:
        violation = error
    except ValidationError as error:
        violation = _in_openais_words(str(error))
    else:
        return None
    body = openai_body(str(violation), param=violation.param, code=violation.code)
    return Fault(status=400, body=body)


def _in_openais_words(message: str) -> ViolationError:
    sentence, _, path = message.partition(" - at `$")
    param = path.removeprefix(".").removesuffix("`")
    if field := re.match(r"Object (contains unknown|missing required) field `(.+)`", sentence):
        param = f"{param}.{field[2]}".removeprefix(".")
        if field[1] == "contains unknown":
            return ViolationError(f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter")
        text = f"Missing required parameter: '{param}'."
        return ViolationError(text, param=param, code="missing_required_parameter")
    if mismatch := re.match(r"Expected `(.+)`, got `(.+)`", sentence):
        text = f"Invalid type for '{param}': expected {mismatch[1]}, but got {mismatch[2]} instead."
        return ViolationError(text, param=param, code="invalid_type")
    for pattern, code in _CODES.items():
        if re.search(pattern, sentence):
            return ViolationError(f"Invalid '{param}': {sentence}.", param=param, code=code)
    return ViolationError(f"Invalid value at '{param}': {sentence}.", param=param, code="invalid_value")


_CODES = {
    r"`str` of length <=": "string_above_max_length",
    r"`str` of length >=": "empty_string",
    r"`array` of length >=": "empty_array",
    r"`array` of length <=": "array_above_max_length",
    r"`(int|float)` >=": "integer_below_min_value",
    r"`(int|float)` <=": "integer_above_max_value",
}


def check_stream_options(request: JsonObject) -> None:
    if request.get("stream_options") is not None and not request.get("stream"):
        text = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        raise ViolationError(text, param="stream_options")


def check_function(function: JsonObject, path: str) -> None:
    """Raises `ViolationError` if the API does not take the schema of the function."""
    schema = function.get("parameters")
    if schema is None:
        return
    if problem := next(_schema_problems(schema, is_strict=function.get("strict") is True), None):
        text = f"Invalid schema for function '{function['name']}': {problem}"
        raise ViolationError(text, param=f"{path}.parameters", code="invalid_function_parameters")


def _schema_problems(schema: Mapping[str, Any], *, is_strict: bool) -> Iterator[str]:
    if schema.get("type") != "object":
        yield f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{schema.get('type')}\"'."
    if is_strict:
        yield from _strict_problems(schema, "()")


def _strict_problems(schema: Any, context: str) -> Iterator[str]:
    """Structured outputs take only objects that list all of their properties as required, and allow no others."""
    if isinstance(schema, list):
        for part in schema:
            yield from _strict_problems(part, context)
    if not isinstance(schema, dict):
        return
    if schema.get("type") == "object" or "properties" in schema:
        properties = schema.get("properties", {})
        if schema.get("additionalProperties") is not False:
            yield f"In context={context}, 'additionalProperties' is required to be supplied and to be false."
        if set(schema.get("required", ())) != set(properties):
            yield (
                f"In context={context}, 'required' is required to be supplied and to be an array including every "
                "key in properties."
            )
        for name, inner in properties.items():
            yield from _strict_problems(inner, f"('properties', '{name}')")
    inner = [schema.get("items"), schema.get("anyOf"), *schema.get("$defs", {}).values()]
    yield from _strict_problems(inner, context)


def check_arguments(arguments: str, path: str) -> None:
    """Raises `ViolationError` unless the arguments of a call are a JSON object."""
    try:
        is_object = isinstance(json.loads(arguments), dict)
    except ValueError:
        is_object = False
    if not is_object:
        param = f"{path}.arguments"
        raise ViolationError(f"Invalid '{param}': no JSON object.", param=param, code="invalid_value")


def add_blocks(messages: list[JsonObject], role: str, blocks: list[JsonObject]) -> None:
    """Adds the blocks to the last message if it has this role, and else a message."""
    if messages and messages[-1]["role"] == role:
        messages[-1]["content"] += blocks
    else:
        messages.append({"role": role, "content": blocks})


def text_blocks(content: Any) -> list[JsonObject]:
    """The texts of a message, as blocks of the Messages API."""
    parts = [{"text": content}] if isinstance(content, str) else content or []
    return [{"type": "text", "text": part["text"]} for part in parts if "text" in part]


def tool_use(call_id: str, *, name: str, arguments: str) -> JsonObject:
    return {"type": "tool_use", "id": call_id, "name": name, "input": json.loads(arguments or "{}")}
