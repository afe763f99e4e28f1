"""The Responses API: the whole response and the events of a stream that an answer becomes, and the rules for requests. No I/O
happens here.
"""

from __future__ import annotations

import base64
import json
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct, defstruct, field

from ralph.mock_api.chat import CREATED, arguments_of, prompt_tokens, reasoning_tokens
from ralph.mock_api.events import Event, Line, ScriptedAnswer, input_json
from ralph.mock_api.scenario import Block, ErrorEvent, Text, Thinking, ToolUse, Turn, openai_names
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
    from collections.abc import Iterator

    from ralph.mock_api.scenario import Fault


_INCOMPLETE = {
    "max_tokens": "max_output_tokens",
    "model_context_window_exceeded": "max_output_tokens",
    "content_filter": "content_filter",
}
"""The stop reasons of an incomplete response. After any other, the response is complete."""
_FAILURES = frozenset({"server_error", "rate_limit_exceeded", "insufficient_quota", "invalid_prompt"})
_ENCRYPTED = "reasoning.encrypted_content"


def sealed(model: str, item_id: str, summary: list[str], signature: str) -> str:
    """The encrypted content of a reasoning item. It holds what the item has to say when it comes back."""
    plain = json.dumps([model, item_id, summary, signature])
    return "gAAAA" + base64.urlsafe_b64encode(plain.encode()).decode()


def unsealed(encrypted: str) -> list[Any] | None:
    """The model, the id, the summary and the signature in an encrypted content. None if this server did not make it."""
    try:
        value = json.loads(base64.urlsafe_b64decode(encrypted.removeprefix("gAAAA")))
    except ValueError:
        return None
    is_own = isinstance(value, list) and len(value) == 4 and encrypted.startswith("gAAAA")
    return value if is_own else None


def response(answer: ScriptedAnswer) -> Event:
    reason = _INCOMPLETE.get(answer.message["stop_reason"])
    items = _items(answer)
    if reason and items and "status" in items[-1]:
        items[-1]["status"] = "incomplete"
    whole = _head(answer, "incomplete" if reason else "completed")
    return whole | {
        "completed_at": None if reason else CREATED,
        "incomplete_details": {"reason": reason} if reason else None,
        "output": items,
        "usage": _usage(answer),
    }


def stream(answer: ScriptedAnswer, events: list[Event]) -> list[Line]:
    """The events that say what `events` say, the events of the Messages API."""
    translated = _Events(answer).of(events)
    return [{**event, "sequence_number": number} for number, event in enumerate(translated)]


def error_event(error: ErrorEvent, number: int, answer: ScriptedAnswer) -> Event:
    """The event `error`, or `response.failed` for a type that is a code of the latter."""
    if error.type in _FAILURES:
        reason = {"code": error.type, "message": error.message}
        failed = _head(answer, "failed") | {"error": reason}
        return {"type": "response.failed", "response": failed, "sequence_number": number}
    _, code = openai_names(error.type)
    told = {"code": code, "message": error.message, "param": None}
    return {"type": "error", **told, "sequence_number": number}


class _Events:
    def __init__(self, answer: ScriptedAnswer) -> None:
        self._blocks = answer.turn.blocks()
        self._whole = response(answer)
        self._beginning = _head(answer, "in_progress")

    def of(self, events: list[Event]) -> Iterator[Event]:
        for event in events:
            match event["type"]:
                case "message_start":
                    yield {"type": "response.created", "response": self._beginning}
                    yield {"type": "response.in_progress", "response": self._beginning}
                case "content_block_start":
                    yield from self._start(event["index"], event["content_block"])
                case "content_block_delta":
                    yield from self._delta(event["index"], event["delta"])
                case "content_block_stop":
                    yield from self._stop(event["index"])
                case "message_stop":
                    yield {"type": f"response.{self._whole['status']}", "response": self._whole}

    def _start(self, index: int, block: Event) -> Iterator[Event]:
        item = self._whole["output"][index]
        opened = item | {"status": "in_progress"} | _EMPTY.get(item["type"], {})
        if item["type"] == "function_call" and "input" not in block:
            del opened["arguments"]
        if "encrypted_content" in item:
            opened["encrypted_content"] = item["encrypted_content"][:9]  # it is incomplete here, says the API
        yield {"type": "response.output_item.added", "output_index": index, "item": opened}
        part = _part_of(item)
        if part is not None and (names := _NAMES[part["type"]]).part:
            yield self._at(index, part["type"], f"{names.part}.added", part=part | {names.text_field: ""})

    def _delta(self, index: int, delta: Event) -> Iterator[Event]:
        part = _part_of(self._whole["output"][index])
        block = self._blocks[index]
        piece = next((delta[name] for name in ("text", "thinking", "partial_json") if name in delta), "")
        if isinstance(block, ToolUse) and not piece and not input_json(block):
            piece = arguments_of(block)  # the Messages API says nothing of an empty input
        if part is not None and piece:
            names = _NAMES[part["type"]]
            yield self._at(index, part["type"], f"{names.text}.delta", delta=piece, **names.more)

    def _stop(self, index: int) -> Iterator[Event]:
        item = self._whole["output"][index]
        part = _part_of(item)
        if part is not None:
            kind, names = part["type"], _NAMES[part["type"]]
            text = {names.text_field: part[names.text_field]}
            yield self._at(index, kind, f"{names.text}.done", **text, **names.more)
            if names.part:
                yield self._at(index, kind, f"{names.part}.done", part=part)
        yield {"type": "response.output_item.done", "output_index": index, "item": item}

    def _at(self, index: int, kind: str, event_type: str, **fields: Any) -> Event:
        item_id = self._whole["output"][index]["id"]
        place = {"item_id": item_id, "output_index": index} | _NAMES[kind].index
        return {"type": event_type, **place, **fields}


class _Names(Struct, frozen=True):
    """The names in a stream of a part of an item that comes in pieces."""

    text: str
    text_field: str
    part: str = ""
    index: dict[str, int] = field(default_factory=dict)
    more: dict[str, list[Any]] = field(default_factory=dict)
    """Further fields of the events with text."""


_CONTENT = ("response.content_part", {"content_index": 0})
_SUMMARY = ("response.reasoning_summary_part", {"summary_index": 0})
_NAMES = {
    "output_text": _Names("response.output_text", "text", *_CONTENT, {"logprobs": []}),
    "refusal": _Names("response.refusal", "refusal", *_CONTENT),
    "summary_text": _Names("response.reasoning_summary_text", "text", *_SUMMARY),
    "function_call": _Names("response.function_call_arguments", "arguments"),
}
_EMPTY: dict[str, Event] = {
    "message": {"content": []},
    "reasoning": {"summary": []},
    "function_call": {"arguments": ""},
}


def _part_of(item: Event) -> Event | None:
    """The part of an item that comes in pieces. None if the item comes whole."""
    if item["type"] == "function_call":
        return item
    parts = item.get("content") or item.get("summary")
    return parts[0] if parts and parts[0]["type"] in _NAMES else None


def _items(answer: ScriptedAnswer) -> list[Event]:
    turn, message, payload = answer.turn, answer.message, answer.payload
    model = payload.get("model") if _ENCRYPTED in (payload.get("include") or ()) else None
    return [
        _item(turn, block, whole, f"{message['id']}_{at}", model)
        for at, (block, whole) in enumerate(zip(turn.blocks(), message["content"], strict=True))
    ]


def _item(turn: Turn, block: Block, whole: Event, name: str, model: str | None) -> Event:
    """The item of a block. Its encrypted content is bound to `model`; None leaves it out."""
    if isinstance(block, Text):
        part: Event = {"type": "output_text", "text": block.text, "annotations": [], "logprobs": []}
        if turn.stop_reason == "refusal":
            part = {"type": "refusal", "refusal": block.text}
        message = {"type": "message", "id": f"msg_{name}", "role": "assistant", "content": [part]}
        return {**message, "status": "completed"}
    if isinstance(block, Thinking):
        summary = [block.thinking] if block.thinking else []
        item: Event = {"type": "reasoning", "id": f"rs_{name}"}
        item["summary"] = [{"type": "summary_text", "text": text} for text in summary]
        if model is not None:
            item["encrypted_content"] = sealed(model, item["id"], summary, block.signature)
        return item
    if isinstance(block, ToolUse):
        call = {"type": "function_call", "id": f"fc_{name}", "call_id": whole["id"], "name": block.name}
        return {**call, "arguments": arguments_of(block), "status": "completed"}
    return {"id": f"item_{name}", **whole}


def _head(answer: ScriptedAnswer, status: str) -> Event:
    """Some fields repeat the request."""
    asked = {name: answer.payload.get(name, default) for name, default in _REPEATED.items()}
    return {
        "id": answer.message["id"],
        "object": "response",
        "created_at": CREATED,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": answer.message["model"],
        "output": [],
        "usage": None,
        **asked,
    }


_REPEATED: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": None,
    "temperature": 1.0,
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
}


def _usage(answer: ScriptedAnswer) -> Event:
    usage = answer.message["usage"]
    prompt, output = prompt_tokens(usage), usage.get("output_tokens", 0)
    cached = {
        "cached_tokens": usage.get("cache_read_input_tokens", 0),
        "cache_write_tokens": usage.get("cache_creation_input_tokens", 0),
    }
    return {
        "input_tokens": prompt,
        "input_tokens_details": cached,
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens(answer.turn, output)},
        "total_tokens": prompt + output,
    }


# The rules for requests. A request must bring its whole conversation, as with `store: false`.

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
            "name": NonEmpty,
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
