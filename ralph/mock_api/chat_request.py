"""The rules of Chat Completions for requests. No I/O happens here.

A conversation may hold `reasoning_content`, which is no field of OpenAI's: the answers of this server have it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

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

if TYPE_CHECKING:
    from ralph.mock_api.fault import Fault

_WANTS_COMPLETION_TOKENS = re.compile(r"o\d|gpt-5|gpt-[6-9]")


class _TextPart(Strict, frozen=True, tag="text"):
    text: str


class _RefusalPart(Strict, frozen=True, tag="refusal"):
    refusal: str


class _ImageUrl(Strict, frozen=True):
    url: NonEmpty
    detail: Detail | UnsetType = UNSET


class _ImagePart(Strict, frozen=True, tag="image_url"):
    image_url: _ImageUrl


_Texts = Annotated[list[_TextPart], Meta(min_length=1)]
_AnyParts = Annotated[list[_TextPart | _ImagePart], Meta(min_length=1)]
_AnswerParts = Annotated[list[_TextPart | _RefusalPart], Meta(min_length=1)]


class _CalledFunction(Strict, frozen=True):
    name: NonEmpty
    arguments: str


class _ToolCall(Strict, frozen=True, tag="function"):
    id: Annotated[str, Meta(min_length=1, max_length=40)]
    function: _CalledFunction


class _SystemMessage(Strict, frozen=True, tag_field="role", tag="system"):
    content: str | _Texts
    name: str | UnsetType = UNSET


class _DeveloperMessage(Strict, frozen=True, tag_field="role", tag="developer"):
    content: str | _Texts
    name: str | UnsetType = UNSET


class _UserMessage(Strict, frozen=True, tag_field="role", tag="user"):
    content: str | _AnyParts
    name: str | UnsetType = UNSET


class _AssistantMessage(Strict, frozen=True, tag_field="role", tag="assistant"):
    content: str | _AnswerParts | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[_ToolCall], Meta(min_length=1)] | UnsetType = UNSET
    name: str | UnsetType = UNSET
    reasoning_content: str | None = None

    @property
    def calls(self) -> list[_ToolCall]:
        return [] if self.tool_calls is UNSET else self.tool_calls


class _ToolMessage(Strict, frozen=True, tag_field="role", tag="tool"):
    content: str | _Texts
    tool_call_id: str


class _ChatStreamOptions(Strict, frozen=True):
    include_usage: bool | UnsetType = UNSET
    include_obfuscation: bool | UnsetType = UNSET


class _ChatTool(Strict, frozen=True, tag="function"):
    function: FunctionTool


class _ChatRequest(Strict, frozen=True, kw_only=True):
    model: NonEmpty
    messages: Annotated[
        list[_SystemMessage | _DeveloperMessage | _UserMessage | _AssistantMessage | _ToolMessage],
        Meta(min_length=1),
    ]
    stream: bool | None = None
    stream_options: _ChatStreamOptions | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    tools: Annotated[list[_ChatTool], Meta(min_length=1, max_length=128)] | UnsetType = UNSET
    tool_choice: ToolChoice | UnsetType = UNSET
    parallel_tool_calls: bool | UnsetType = UNSET
    reasoning_effort: Effort | None = None
    verbosity: Verbosity | None = None
    n: Literal[1] | None = None


_UNCHECKED = frozenset(
    (
        "response_format stop seed user frequency_penalty presence_penalty logit_bias logprobs modalities"
    ).split()
    + ("moderation prediction web_search_options audio").split()
)


def find_refusal(payload: JsonObject) -> Fault | None:
    """The answer that refuses the request, or None if the request is valid."""
    return refusal_by(_ChatRequest, _check, payload, _UNCHECKED)


def _check(request: _ChatRequest) -> None:
    if request.stream_options is not None and not request.stream:
        text = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        raise ViolationError(text, param="stream_options")
    if request.max_tokens is not None and request.max_completion_tokens is not None:
        text = "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."
        raise ViolationError(text, code="invalid_parameter_combination")
    if request.max_tokens is not None and _WANTS_COMPLETION_TOKENS.match(request.model):
        text = (
            "Unsupported parameter: 'max_tokens' is not supported with this model. "
            "Use 'max_completion_tokens' instead."
        )
        raise ViolationError(text, param="max_tokens", code="unsupported_parameter")
    tools = [] if request.tools is UNSET else request.tools
    for name in ("tool_choice", "parallel_tool_calls"):
        if not tools and getattr(request, name) is not UNSET:
            raise ViolationError(f"'{name}' is only allowed when 'tools' are specified.", param=name)
    check_functions((f"tools[{number}].function", tool.function) for number, tool in enumerate(tools))
    _check_messages(request.messages)


def _check_messages(messages: list[Any]) -> None:
    """Raises `ViolationError` unless each tool call has exactly one message with its result, right behind the calls."""
    open_calls: list[str] = []
    for number, message in enumerate(messages):
        if isinstance(message, _ToolMessage):
            if message.tool_call_id not in open_calls:
                text = (
                    "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
                )
                raise ViolationError(text, param=f"messages.[{number}].role")
            open_calls.remove(message.tool_call_id)
            continue
        _refuse_open(open_calls, number)
        if isinstance(message, _AssistantMessage):
            open_calls = [call.id for call in message.calls]
            _check_answer(message, open_calls, f"messages[{number}]")
    _refuse_open(open_calls, len(messages))


def _refuse_open(open_calls: list[str], number: int) -> None:
    if open_calls:
        text = (
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(open_calls)}"
        )
        raise ViolationError(text, param=f"messages.[{number}].role")


def _check_answer(message: _AssistantMessage, call_ids: list[str], path: str) -> None:
    if message.content is None and message.refusal is None and not call_ids:
        text = f"Invalid value for 'content': expected a string, got null. - '{path}.content'"
        raise ViolationError(text, param=f"{path}.content")
    if len(set(call_ids)) < len(call_ids):
        raise ViolationError(f"Duplicate ids in '{path}.tool_calls'.", param=f"{path}.tool_calls")
    for number, call in enumerate(message.calls):
        if not is_json_object(call.function.arguments):
            param = f"{path}.tool_calls[{number}].function.arguments"
            raise ViolationError(f"Invalid '{param}': no JSON object.", param=param, code="invalid_value")


def conversation(payload: JsonObject) -> list[JsonObject]:
    """The messages of a valid request in the form of the Messages API. They contain only text, thinking, calls and
    results.
    """
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
