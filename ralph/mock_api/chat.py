"""Chat Completions: the whole completion and the chunks of a stream that an answer becomes, and the rules for requests. No I/O
happens here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from ralph.mock_api.events import Event, Line, ScriptedAnswer, input_json
from ralph.mock_api.scenario import (
    Block,
    ErrorEvent,
    ScenarioError,
    Text,
    Thinking,
    ToolUse,
    Turn,
    openai_body,
    openai_names,
)
from ralph.mock_api.validation import (
    COMMON,
    FUNCTION,
    Detail,
    Effort,
    JsonObject,
    NonEmpty,
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
    from collections.abc import Iterator, Mapping

    from ralph.mock_api.scenario import Fault

CREATED = 1767225600
"""The time of every answer: the beginning of 2026."""
DONE = "data: [DONE]"

_FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "refusal": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}
"""Other stop reasons are sent unchanged."""


def completion(answer: ScriptedAnswer) -> Event:
    turn, message = answer.turn, answer.message
    parts: dict[str, str] = {}
    calls = []
    for block, whole in zip(turn.blocks(), message["content"], strict=True):
        if isinstance(block, ToolUse):
            function = {"name": block.name, "arguments": arguments_of(block)}
            calls.append({"id": whole["id"], "type": "function", "function": function})
        else:
            name = _field_of(block, turn)
            parts[name] = parts.get(name, "") + whole[whole["type"]]
    said: Event = {"role": "assistant", "content": None, "refusal": None, "annotations": [], **parts}
    if calls:
        said["tool_calls"] = calls
    return {
        **_head(message, "chat.completion"),
        "choices": [
            {
                "index": 0,
                "message": said,
                "logprobs": None,
                "finish_reason": _finish_reason(message["stop_reason"]),
            }
        ],
        "usage": _usage(turn, message["usage"]),
    }


def chunks(answer: ScriptedAnswer, events: list[Event]) -> list[Line]:
    """The chunks that say what `events` say, the events of the Messages API."""
    return list(_Chunks(answer).of(events))


def error_chunk(error: ErrorEvent, _number: int, _answer: ScriptedAnswer) -> Event:
    kind, code = openai_names(error.type)
    return openai_body(error.message, kind=kind, code=code)


def arguments_of(call: ToolUse) -> str:
    """The arguments of a call as text. A call without input has an empty object."""
    return input_json(call) or ("{}" if call.input_json is None else "")


class _Chunks:
    def __init__(self, answer: ScriptedAnswer) -> None:
        self._turn = answer.turn
        self._blocks = answer.turn.blocks()
        self._head = _head(answer.message, "chat.completion.chunk")
        options = answer.payload.get("stream_options")
        self._tells_usage = isinstance(options, dict) and options.get("include_usage") is True
        self._calls: dict[int, int] = {}
        """The index of each tool call, by the index of its block."""

    def of(self, events: list[Event]) -> Iterator[Line]:
        for event in events:
            match event["type"]:
                case "message_start":
                    yield self._chunk({"role": "assistant", "content": "", "refusal": None})
                case "content_block_start":
                    yield from self._start(event["index"], event["content_block"])
                case "content_block_delta":
                    yield from self._delta(event["index"], event["delta"])
                case "message_delta":
                    yield self._chunk({}, _finish_reason(event["delta"]["stop_reason"]))
                    if self._tells_usage:
                        yield {**self._head, "choices": [], "usage": _usage(self._turn, event["usage"])}
                case "message_stop":
                    yield DONE

    def _start(self, index: int, block: Event) -> Iterator[Line]:
        if block["type"] != "tool_use":
            _field_of(self._blocks[index], self._turn)
            return
        number = self._calls[index] = len(self._calls)
        function = {"name": block["name"]} | ({"arguments": ""} if "input" in block else {})
        yield self._call({"index": number, "id": block["id"], "type": "function", "function": function})

    def _delta(self, index: int, delta: Event) -> Iterator[Line]:
        block = self._blocks[index]
        if isinstance(block, ToolUse):
            # The Messages API begins with an empty piece, and says nothing else of an empty input.
            piece = delta["partial_json"] or ("" if input_json(block) else arguments_of(block))
            if piece:
                yield self._call({"index": self._calls[index], "function": {"arguments": piece}})
        elif delta["type"] in {"text_delta", "thinking_delta"}:
            yield self._chunk({_field_of(block, self._turn): delta[delta["type"].removesuffix("_delta")]})

    def _call(self, call: Event) -> Event:
        return self._chunk({"tool_calls": [call]})

    def _chunk(self, delta: Event, finish_reason: str | None = None) -> Event:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        usage = {"usage": None} if self._tells_usage else {}
        return {**self._head, "choices": [choice], **usage}


def _head(message: Event, kind: str) -> Event:
    return {
        "id": message["id"],
        "object": kind,
        "created": CREATED,
        "model": message["model"],
        "service_tier": "default",
        "system_fingerprint": "fp_mock",
    }


def _field_of(block: Block, turn: Turn) -> str:
    """The field of a message that holds a block's text."""
    if isinstance(block, Thinking):
        return "reasoning_content"  # so DeepSeek, Moonshot, vLLM and SGLang; OpenAI tells no reasoning here
    if not isinstance(block, Text):
        raise ScenarioError("a raw block has no counterpart in Chat Completions")
    return "refusal" if turn.stop_reason == "refusal" else "content"


def _finish_reason(stop_reason: str) -> str:
    return _FINISH_REASONS.get(stop_reason, stop_reason)


def _usage(turn: Turn, usage: Mapping[str, Any]) -> Event:
    prompt, output = prompt_tokens(usage), usage.get("output_tokens", 0)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": usage.get("cache_read_input_tokens", 0)},
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens(turn, output)},
    }


def prompt_tokens(usage: Mapping[str, Any]) -> int:
    """All tokens of the prompt. The Messages API counts cached ones apart."""
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return sum(usage.get(name, 0) for name in names)


def reasoning_tokens(turn: Turn, output: int) -> int:
    """How many of the output tokens are thinking: one for every four characters, as elsewhere."""
    chars = sum(len(block.thinking) for block in turn.blocks() if isinstance(block, Thinking))
    return min(output, (chars + 3) // 4)


# The rules for requests. `reasoning_content` is no field of OpenAI's, but answers here have it.

_WANTS_COMPLETION_TOKENS = re.compile(r"o\d|gpt-5|gpt-[6-9]")
_IMAGE = {"image_url": shape({"url": NonEmpty, "detail?": Detail})}
_TEXTS = str | array(one_of({"text": {"text": str}}))
_CALL = {
    "id": Annotated[str, Meta(min_length=1, max_length=40)],
    "function": shape({"name": NonEmpty, "arguments": str}),
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
