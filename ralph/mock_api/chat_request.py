"""The rules of Chat Completions for requests. `reasoning_content` is no field of OpenAI's, but answers here have it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

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

if TYPE_CHECKING:
    from ralph.mock_api.fault import Fault

_WANTS_COMPLETION_TOKENS = re.compile(r"o\d|gpt-5|gpt-[6-9]")
_IMAGE = {"image_url": shape({"url": Text, "detail?": Detail})}
_TEXTS = str | array(one_of({"text": {"text": str}}))
_CALL = {
    "id": Annotated[str, Meta(min_length=1, max_length=40)],
    "function": shape({"name": Text, "arguments": str}),
}
_MESSAGE = one_of(
    {
        "system": {"content": _TEXTS, "name?": str},
        "developer": {"content": _TEXTS, "name?": str},
        "user": {"content": str | array(one_of({"text": {"text": str}, "image_url": _IMAGE})), "name?": str},
        "assistant": {
            "content?": str | array(one_of({"text": {"text": str}, "refusal": {"refusal": str}})) | None,
            "refusal?": str | None,
            "tool_calls?": array(one_of({"function": _CALL})),
            "reasoning_content?": str | None,
            "name?": str,
        },
        "tool": {"content": _TEXTS, "tool_call_id": str},
    },
    tag_field="role",
)
_TOKENS = Annotated[int, Meta(ge=1)] | None
_REQUEST = shape(
    {
        **COMMON,
        "messages": array(_MESSAGE),
        "stream_options?": shape({"include_usage?": bool, "include_obfuscation?": bool}) | None,
        "max_tokens?": _TOKENS,
        "max_completion_tokens?": _TOKENS,
        "tools?": array(one_of({"function": {"function": shape(FUNCTION)}}), most=128),
        "parallel_tool_calls?": bool,
        "reasoning_effort?": Effort | None,
        "verbosity?": Literal["low", "medium", "high"] | None,
        "n?": Literal[1] | None,
        **dict.fromkeys(
            "response_format? stop? seed? frequency_penalty? presence_penalty? logit_bias? logprobs? modalities? "
            "prediction? web_search_options? audio?".split(),
            object,
        ),
    }
)


def find_refusal(payload: JsonObject) -> Fault | None:
    """The answer that refuses the request, or None if the request is valid."""
    return refusal_by(_REQUEST, _check, payload)


def _check(request: JsonObject) -> None:
    check_stream_options(request)
    has_old, has_new = (request.get(name) is not None for name in ("max_tokens", "max_completion_tokens"))
    if has_old and has_new:
        text = "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."
        raise ViolationError(text, code="invalid_parameter_combination")
    if has_old and _WANTS_COMPLETION_TOKENS.match(request["model"]):
        text = (
            "Unsupported parameter: 'max_tokens' is not supported with this model. "
            "Use 'max_completion_tokens' instead."
        )
        raise ViolationError(text, param="max_tokens", code="unsupported_parameter")
    for name in ("tool_choice", "parallel_tool_calls"):
        if name in request and "tools" not in request:
            raise ViolationError(f"'{name}' is only allowed when 'tools' are specified.", param=name)
    for number, tool in enumerate(request.get("tools", ())):
        check_function(tool["function"], f"tools[{number}].function")
    _check_messages(request["messages"])


def _check_messages(messages: list[JsonObject]) -> None:
    """Raises `ViolationError` unless each tool call has exactly one message with its result, right behind the calls."""
    open_calls: list[str] = []
    for number, message in enumerate(messages):
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                text = (
                    "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
                )
                raise ViolationError(text, param=f"messages.[{number}].role")
            open_calls.remove(message["tool_call_id"])
            continue
        _refuse_open(open_calls, number)
        if message["role"] == "assistant":
            open_calls = [call["id"] for call in message.get("tool_calls", ())]
            _check_answer(message, open_calls, f"messages[{number}]")
    _refuse_open(open_calls, len(messages))


def _refuse_open(open_calls: list[str], number: int) -> None:
    if open_calls:
        text = (
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(open_calls)}"
        )
        raise ViolationError(text, param=f"messages.[{number}].role")


def _check_answer(message: JsonObject, call_ids: list[str], path: str) -> None:
    if message.get("content") is None and message.get("refusal") is None and not call_ids:
        text = f"Invalid value for 'content': expected a string, got null. - '{path}.content'"
        raise ViolationError(text, param=f"{path}.content")
    if len(set(call_ids)) < len(call_ids):
        raise ViolationError(f"Duplicate ids in '{path}.tool_calls'.", param=f"{path}.tool_calls")
    for number, call in enumerate(message.get("tool_calls", ())):
        check_arguments(call["function"]["arguments"], f"{path}.tool_calls[{number}].function")


def conversation(payload: JsonObject) -> list[JsonObject]:
    """The messages of a valid request as those of the Messages API, with text, thinking, calls and results only."""
    messages: list[JsonObject] = []
    for message in payload["messages"]:
        text = text_blocks(message.get("content"))
        match message["role"]:
            case "tool":
                result = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": text}
                add_blocks(messages, "user", [result])
            case "assistant":
                thinking = message.get("reasoning_content")
                blocks = [{"type": "thinking", "thinking": thinking}] if thinking else []
                blocks += text
                for call in message.get("tool_calls", ()):
                    blocks.append(tool_use(call["id"], **call["function"]))
                add_blocks(messages, "assistant", blocks)
            case "user":
                add_blocks(messages, "user", text)
    return messages
