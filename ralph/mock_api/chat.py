"""Translates an answer to Chat Completions: the whole completion, and the chunks of a stream. No I/O happens here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ralph.mock_api.events import Event, Line, ScriptedAnswer, input_json
from ralph.mock_api.fault import ErrorEvent, ScenarioError, openai_body, openai_names
from ralph.mock_api.scenario import Block, Text, Thinking, ToolUse, Turn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
