"""The common rules of OpenAI's two APIs for requests: types of values, tools, and the words of a refusal."""

from __future__ import annotations

import json
import re
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType, ValidationError, convert, defstruct

from ralph.mock_api.fault import Fault, openai_body

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


JsonObject = dict[str, Any]
Text = Annotated[str, Meta(min_length=1)]
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
    "model": Text,
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
