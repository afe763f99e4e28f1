"""The rules of the Responses API for requests. No I/O happens here.

The server stores nothing: a request must bring its whole conversation, as with `store: false`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from ralph.mock_api.openai_request import (
    Detail,
    Effort,
    FunctionTool,
    JsonObject,
    NonEmpty,
    Strict,
    ToolChoice,
    Verbosity,
    ViolationError,
    add_blocks,
    check_functions,
    is_json_object,
    refusal_by,
    text_blocks,
    tool_use,
)
from ralph.mock_api.responses import unsealed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ralph.mock_api.fault import Fault

_Status = Literal["in_progress", "completed", "incomplete"]
_CallId = Annotated[str, Meta(min_length=1, max_length=64)]


class _InputText(Strict, frozen=True, tag="input_text"):
    text: str


class _InputImage(Strict, frozen=True, tag="input_image"):
    detail: Detail | UnsetType = UNSET
    image_url: str | None = None
    file_id: str | None = None


class _OutputText(Strict, frozen=True, tag="output_text"):
    text: str
    annotations: list[JsonObject] | UnsetType = UNSET
    logprobs: list[JsonObject] | None = None


class _Refusal(Strict, frozen=True, tag="refusal"):
    refusal: str


class _MessageItem(Strict, frozen=True, tag="message"):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[_InputText | _InputImage | _OutputText | _Refusal]
    id: Annotated[str, Meta(pattern="^msg")] | UnsetType = UNSET
    status: _Status | UnsetType = UNSET
    phase: Literal["commentary", "final_answer"] | None = None


class _CallItem(Strict, frozen=True, tag="function_call"):
    call_id: _CallId
    name: NonEmpty
    arguments: str
    id: Annotated[str, Meta(pattern="^fc")] | UnsetType = UNSET
    status: _Status | UnsetType = UNSET


class _OutputItem(Strict, frozen=True, tag="function_call_output"):
    call_id: _CallId
    output: str | list[_InputText | _InputImage]
    id: Annotated[str, Meta(pattern="^fc")] | None = None
    status: _Status | None = None


class _SummaryText(Strict, frozen=True, tag="summary_text"):
    text: str


class _ReasoningItem(Strict, frozen=True, kw_only=True, tag="reasoning"):
    id: Annotated[str, Meta(pattern="^rs")] | UnsetType = UNSET
    """May be left out beside encrypted content: codex 0.146 and LiteLLM 1.106 do."""
    summary: list[_SummaryText]
    encrypted_content: str | None = None
    content: list[JsonObject] | None = None
    status: _Status | UnsetType = UNSET


class _ItemReference(Strict, frozen=True, tag="item_reference"):
    id: str


class _ResponseTool(FunctionTool, frozen=True, tag_field="type", tag="function"):
    pass


class _ReasoningOptions(Strict, frozen=True):
    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None


class _TextOptions(Strict, frozen=True):
    format: JsonObject | UnsetType = UNSET
    verbosity: Verbosity | None = None


class _ResponseStreamOptions(Strict, frozen=True):
    include_obfuscation: bool | UnsetType = UNSET


_Item = _MessageItem | _CallItem | _OutputItem | _ReasoningItem | _ItemReference
_Include = Literal[
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]


class _ResponseRequest(Strict, frozen=True, kw_only=True):
    model: NonEmpty
    input: str | Annotated[list[_Item], Meta(min_length=1)]
    instructions: str | None = None
    stream: bool | None = None
    stream_options: _ResponseStreamOptions | None = None
    include: list[_Include] | None = None
    max_output_tokens: Annotated[int, Meta(ge=16)] | None = None
    tools: list[_ResponseTool] | UnsetType = UNSET
    tool_choice: ToolChoice | UnsetType = UNSET
    parallel_tool_calls: bool | None = None
    reasoning: _ReasoningOptions | None = None
    text: _TextOptions | UnsetType = UNSET
    truncation: Literal["auto", "disabled"] | None = None
    previous_response_id: str | None = None
    background: Literal[False] | None = None


_UNCHECKED = frozenset("max_tool_calls user context_management access_programs image".split())


def find_refusal(payload: JsonObject) -> Fault | None:
    """The answer that refuses the request, or None if the request is valid."""
    return refusal_by(_ResponseRequest, _check, _typed(payload), _UNCHECKED)


def _typed(payload: JsonObject) -> JsonObject:
    """The request with a type for each item. A message may lack it."""
    items = payload.get("input")
    if not isinstance(items, list):
        return payload
    typed = [
        {"type": "message", **item} if isinstance(item, dict) and "role" in item else item for item in items
    ]
    return {**payload, "input": typed}


def _check(request: _ResponseRequest) -> None:
    if request.stream_options is not None and not request.stream:
        text = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        raise ViolationError(text, param="stream_options")
    if request.previous_response_id is not None:
        text = f"Previous response with id '{request.previous_response_id}' not found."
        raise ViolationError(text, param="previous_response_id", code="previous_response_not_found")
    tools = [] if request.tools is UNSET else request.tools
    check_functions((f"tools[{number}]", tool) for number, tool in enumerate(tools))
    if isinstance(request.input, list):
        for number, item in enumerate(request.input):
            _check_item(item, f"input[{number}]", request)
        _check_calls(request.input)


def _check_item(item: _Item, path: str, request: _ResponseRequest) -> None:
    match item:
        case _MessageItem(role=role, content=list(parts)):
            of_answers = role == "assistant"
            for number, part in enumerate(parts):
                if isinstance(part, _OutputText | _Refusal) != of_answers:
                    kinds = "'output_text' and 'refusal'" if of_answers else "'input_text' and 'input_image'"
                    param = f"{path}.content[{number}]"
                    raise ViolationError(
                        f"Invalid value. Supported values are: {kinds}.", param=param, code="invalid_value"
                    )
        case _CallItem() if not is_json_object(item.arguments):
            param = f"{path}.arguments"
            raise ViolationError(f"Invalid '{param}': no JSON object.", param=param, code="invalid_value")
        case _ItemReference():
            raise _not_found(item.id)
        case _ReasoningItem():
            _check_reasoning(item, request.model)


def _check_reasoning(item: _ReasoningItem, model: str) -> None:
    if item.encrypted_content is None:
        raise _not_found(str(item.id or ""))
    summary = [part.text for part in item.summary]
    content = unsealed(item.encrypted_content)
    if content is None or content[0] != model:
        problem = "Encrypted content could not be decrypted or parsed."
    elif item.id and content[1] != item.id:
        problem = "Encrypted content item_id did not match the target item id."
    elif content[2] != summary:
        problem = "Encrypted content did not match the summary of the item."
    else:
        return
    text = f"The encrypted content {item.encrypted_content[:9]}... could not be verified. Reason: {problem}"
    raise ViolationError(text, code="invalid_encrypted_content")


def _not_found(item_id: str) -> ViolationError:
    text = (
        f"Item with id '{item_id}' not found. Items are not persisted when `store` is set to false. "
        "Try again with `store` set to true, or remove this item from your input."
    )
    return ViolationError(text, param="input")


def _check_calls(items: Sequence[_Item]) -> None:
    """Raises `ViolationError` unless each call has exactly one output behind it, and each reasoning item is followed by what it led to."""
    answered: dict[str, bool] = {}
    for item, following in zip(items, [*items[1:], None], strict=True):
        match item:
            case _ReasoningItem():
                led_to = isinstance(following, _CallItem | _ReasoningItem) or (
                    isinstance(following, _MessageItem) and following.role == "assistant"
                )
                if not led_to:
                    text = f"Item '{item.id}' of type 'reasoning' was provided without its required following item."
                    raise ViolationError(text, param="input")
            case _CallItem():
                if item.call_id in answered:
                    raise ViolationError(
                        f"Duplicate function call with call_id {item.call_id}.", param="input"
                    )
                answered[item.call_id] = False
            case _OutputItem():
                if answered.get(item.call_id, True):
                    text = f"No tool call found for function call output with call_id {item.call_id}."
                    raise ViolationError(text, param="input")
                answered[item.call_id] = True
    for call_id, is_answered in answered.items():
        if not is_answered:
            raise ViolationError(f"No tool output found for function call {call_id}.", param="input")


def conversation(payload: JsonObject) -> list[JsonObject]:
    """The messages of a valid request in the form of the Messages API. They contain only text, thinking, calls and
    results.
    """
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
