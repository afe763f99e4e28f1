"""The rules of the Responses API for requests. A request must bring its whole conversation, as with `store: false`."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, defstruct

from ralph.mock_api.openai_request import (
    COMMON,
    FUNCTION,
    Detail,
    Effort,
    JsonObject,
    Text,
    ViolationError,
    add_blocks,
    array,
    check_arguments,
    check_function,
    check_stream_options,
    one_of,
    refusal_by,
    shape,
    text_blocks,
    tool_use,
)
from ralph.mock_api.responses import unsealed

if TYPE_CHECKING:
    from ralph.mock_api.fault import Fault

_STATUS = Literal["in_progress", "completed", "incomplete"]
_CALL_ID = Annotated[str, Meta(min_length=1, max_length=64)]
_FC = Annotated[str, Meta(pattern="^fc")]
_INPUT: dict[str, JsonObject] = {
    "input_text": {"text": str},
    "input_image": {"detail?": Detail, "image_url?": str | None, "file_id?": str | None},
}
_OUTPUT: dict[str, JsonObject] = {
    "output_text": {"text": str, "annotations?": list[JsonObject], "logprobs?": list[JsonObject] | None},
    "refusal": {"refusal": str},
}
_ITEM = one_of(
    {
        "message": {
            "role": Literal["user", "assistant", "system", "developer"],
            "content": str | array(one_of(_INPUT | _OUTPUT), least=0),
            "id?": Annotated[str, Meta(pattern="^msg")],
            "status?": _STATUS,
            "phase?": Literal["commentary", "final_answer"] | None,
        },
        "function_call": {
            "call_id": _CALL_ID,
            "name": Text,
            "arguments": str,
            "id?": _FC,
            "status?": _STATUS,
        },
        "function_call_output": {
            "call_id": _CALL_ID,
            "output": str | array(one_of(_INPUT), least=0),
            "id?": _FC | None,
            "status?": _STATUS | None,
        },
        "reasoning": {
            # May be left out beside encrypted content: codex 0.146 and LiteLLM 1.106 do.
            "id?": Annotated[str, Meta(pattern="^rs")],
            "summary": array(one_of({"summary_text": {"text": str}}), least=0),
            "encrypted_content?": str | None,
            "content?": list[JsonObject] | None,
            "status?": _STATUS,
        },
        "item_reference": {"id": str},
    }
)
_HOSTED = (
    "apply_patch code_interpreter computer computer_use_preview custom file_search image_generation local_shell mcp namespace "
    "programmatic_tool_calling shell tool_search web_search web_search_2025_08_26 web_search_preview web_search_preview_2025_03_11"
)
"""Kinds of tools that are no functions (openai 3.57.0, `ToolParam`), accepted because codex 0.171.0 always sends some.
"""
_TOOL = shape(FUNCTION, "function") | reduce(
    or_, (defstruct("Hosted", (), tag=kind, tag_field="type", frozen=True) for kind in _HOSTED.split())
)
_INCLUDE = Literal[
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]
_REASONING = {
    "effort?": Effort | None,
    "summary?": Literal["auto", "concise", "detailed"] | None,
    "context?": Literal["auto", "current_turn", "all_turns"] | None,
}
_REQUEST = shape(
    {
        **COMMON,
        "input": str | array(_ITEM),
        "instructions?": str | None,
        "stream_options?": shape({"include_obfuscation?": bool}) | None,
        "include?": list[_INCLUDE] | None,
        "max_output_tokens?": Annotated[int, Meta(ge=16)] | None,
        "tools?": array(_TOOL, least=0),
        "parallel_tool_calls?": bool | None,
        "reasoning?": shape(_REASONING) | None,
        "text?": shape({"format?": JsonObject, "verbosity?": Literal["low", "medium", "high"] | None}),
        "truncation?": Literal["auto", "disabled"] | None,
        "previous_response_id?": str | None,
        "background?": Literal[False] | None,
        # `client_metadata` is in no page of OpenAI: codex 0.171.0 sends it to every server.
        **dict.fromkeys(
            "max_tool_calls? context_management? access_programs? image? client_metadata?".split(), object
        ),
    }
)


def find_refusal(payload: JsonObject) -> Fault | None:
    """The answer that refuses the request, or None if the request is valid."""
    return refusal_by(_REQUEST, _check, _typed(payload))


def _typed(payload: JsonObject) -> JsonObject:
    """The request with a type for each item: a message may lack it."""
    items = payload.get("input")
    if not isinstance(items, list):
        return payload
    typed = [
        {"type": "message", **item} if isinstance(item, dict) and "role" in item else item for item in items
    ]
    return {**payload, "input": typed}


def _check(request: JsonObject) -> None:
    check_stream_options(request)
    if (before := request.get("previous_response_id")) is not None:
        text = f"Previous response with id '{before}' not found."
        raise ViolationError(text, param="previous_response_id", code="previous_response_not_found")
    for number, tool in enumerate(request.get("tools", ())):
        if tool["type"] == "function":
            check_function(tool, f"tools[{number}]")
    if isinstance(request["input"], list):
        for number, item in enumerate(request["input"]):
            _check_item(item, f"input[{number}]", request["model"])
        _check_calls(request["input"])


def _check_item(item: JsonObject, path: str, model: str) -> None:
    match item["type"]:
        case "message" if isinstance(item["content"], list):
            kinds = _OUTPUT if item["role"] == "assistant" else _INPUT
            for number, part in enumerate(item["content"]):
                if part["type"] not in kinds:
                    text = f"Invalid value: '{part['type']}'. Supported values are: {', '.join(kinds)}."
                    raise ViolationError(text, param=f"{path}.content[{number}]", code="invalid_value")
        case "function_call":
            check_arguments(item["arguments"], path)
        case "item_reference":
            raise _not_found(item["id"])
        case "reasoning":
            _check_reasoning(item, model)


def _check_reasoning(item: JsonObject, model: str) -> None:
    encrypted = item.get("encrypted_content")
    if encrypted is None:
        raise _not_found(item.get("id", ""))
    content = unsealed(encrypted)
    if content is None or content[0] != model:
        problem = "Encrypted content could not be decrypted or parsed."
    elif content[1] != item.get("id", content[1]):
        problem = "Encrypted content item_id did not match the target item id."
    elif content[2] != [part["text"] for part in item["summary"]]:
        problem = "Encrypted content did not match the summary of the item."
    else:
        return
    text = f"The encrypted content {encrypted[:9]}... could not be verified. Reason: {problem}"
    raise ViolationError(text, code="invalid_encrypted_content")


def _not_found(item_id: str) -> ViolationError:
    text = (
        f"Item with id '{item_id}' not found. Items are not persisted when `store` is set to false. "
        "Try again with `store` set to true, or remove this item from your input."
    )
    return ViolationError(text, param="input")


def _check_calls(items: list[JsonObject]) -> None:
    """Each call must have exactly one output behind it, and each reasoning item something of the same answer."""
    answered: dict[str, bool] = {}
    for item, following in zip(items, [*items[1:], {"type": None}], strict=True):
        match item["type"]:
            case "reasoning":
                is_message = following["type"] == "message" and following["role"] == "assistant"
                if not is_message and following["type"] not in {"reasoning", "function_call"}:
                    text = f"Item '{item.get('id')}' of type 'reasoning' was provided without its required following item."
                    raise ViolationError(text, param="input")
            case "function_call":
                if item["call_id"] in answered:
                    text = f"Duplicate function call with call_id {item['call_id']}."
                    raise ViolationError(text, param="input")
                answered[item["call_id"]] = False
            case "function_call_output":
                if answered.get(item["call_id"], True):
                    text = f"No tool call found for function call output with call_id {item['call_id']}."
                    raise ViolationError(text, param="input")
                answered[item["call_id"]] = True
    for call_id, is_answered in answered.items():
        if not is_answered:
            raise ViolationError(f"No tool output found for function call {call_id}.", param="input")


def conversation(payload: JsonObject) -> list[JsonObject]:
    """The messages of a valid request as those of the Messages API, with text, thinking, calls and results only."""
    items = _typed(payload)["input"]
    if isinstance(items, str):
        return [{"role": "user", "content": text_blocks(items)}]
    messages: list[JsonObject] = []
    for item in items:
        match item["type"]:
            case "message" if item["role"] in {"user", "assistant"}:
                add_blocks(messages, item["role"], text_blocks(item["content"]))
            case "reasoning":
                thinking = "".join(part["text"] for part in item["summary"])
                add_blocks(messages, "assistant", [{"type": "thinking", "thinking": thinking}])
            case "function_call":
                call = tool_use(item["call_id"], name=item["name"], arguments=item["arguments"])
                add_blocks(messages, "assistant", [call])
            case "function_call_output":
                result = {"type": "tool_result", "tool_use_id": item["call_id"]}
                add_blocks(messages, "user", [{**result, "content": text_blocks(item["output"])}])
    return messages
