"""The Responses API of OpenAI: its requests and streams, translated to those of the Messages API. No I/O happens here.

The server stores nothing: it sends its reasoning encrypted, and the next request repeats it from the signature of the
thinking block.

An item of the response becomes one block or several: each text and each refusal a text block, a function call a
`tool_use` block, and reasoning a thinking block, whose signature holds the item for the next request. An item may come in
pieces, whole at its end, or only in the whole response at the end of the stream. No part is taken twice. Unknown
events and items are ignored.

The source is the official package `openai` 3.57, whose types the tests use.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.json import Decoder

from ralph.api.error_body import reports_error
from ralph.api.openai_requests import (
    ConvertedMessages,
    as_result,
    call_id_within,
    function_of,
    image_url,
    is_openai,
    system_text,
)
from ralph.conversation.messages import THINKING, RequestBody, RequestHead, to_json
from ralph.values.errors import StreamTransient
from ralph.values.strict_json import strict_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ralph.values.answer import Block

_FEWEST_TOKENS = 16
"""The API refuses a smaller `max_output_tokens`."""
_LONGEST_CALL_ID = 64
_NEVER_REASONS = r"(?:.*/)?(?:gpt-3|gpt-4|chatgpt|gpt-5[^/]*-chat)"
"""The models of OpenAI that refuse every field about reasoning (OpenHands/software-agent-sdk#1208)."""


def request_fields(head: RequestHead) -> dict[str, Any]:
    """The fields of a request, without its input."""
    asked = head.fields
    model = str(asked.get("model", ""))
    fields: dict[str, Any] = {
        "model": model,
        "max_output_tokens": max(head.max_tokens, _FEWEST_TOKENS),
        "stream": asked.get("stream", False),
        "store": False,
    }
    if not re.match(_NEVER_REASONS, model):
        fields["include"] = ["reasoning.encrypted_content"]
        if reasoning := _reasoning(asked):
            fields["reasoning"] = reasoning
    if tools := asked.get("tools"):
        # The API takes a missing `strict` for true.
        fields["tools"] = [{"type": "function", **function_of(tool)} for tool in tools]
    if choice := asked.get("tool_choice"):
        fields |= _tool_choice(choice)
    if instructions := system_text(asked):
        fields["instructions"] = instructions
    return fields


def _reasoning(asked: Mapping[str, Any]) -> dict[str, str]:
    """The effort and the summary of the reasoning. A summary is asked for only if the user asks for thinking, because OpenAI
    gives it only to organizations that have identified themselves (BerriAI/litellm#16032).
    """
    thinking = (asked.get("thinking") or {}).get("type")
    effort = (asked.get("output_config") or {}).get("effort")
    if thinking == "disabled":
        return {"effort": "none"}
    summary = {"summary": "auto"} if thinking in {"adaptive", "enabled"} else {}
    return {"effort": effort, **summary} if effort else summary


def _tool_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    kind = str(choice.get("type"))
    named = {"type": "function", "name": choice.get("name")}
    fields: dict[str, Any] = {"tool_choice": named if kind == "tool" else {"any": "required"}.get(kind, kind)}
    if choice.get("disable_parallel_tool_use"):
        fields["parallel_tool_calls"] = False
    return fields


def input_items(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The items that a message of the Messages API becomes."""
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return _user_items(blocks) if message["role"] == "user" else _assistant_items(blocks)


def _user_items(blocks: Iterable[Block]) -> Iterator[dict[str, Any]]:
    parts = []
    for block in blocks:
        if block.get("type") == "tool_result":
            content = block.get("content") or ""
            if isinstance(content, str):
                output: str | list[dict[str, Any]] = as_result(block, content)
            else:
                output = [_part(inner) for inner in content]
            call_id = call_id_within(block["tool_use_id"], _LONGEST_CALL_ID)
            yield {"type": "function_call_output", "call_id": call_id, "output": output}
        else:
            parts.append(_part(block))
    if parts:
        yield {"type": "message", "role": "user", "content": parts}


def _part(block: Block) -> dict[str, Any]:
    """A block of a user message or of a result. A block that the Responses API does not have becomes text."""
    match block.get("type"):
        case "text":
            return {"type": "input_text", "text": block["text"]}
        case "image":
            return {"type": "input_image", "image_url": image_url(block), "detail": "auto"}
        case _:
            return {"type": "input_text", "text": json.dumps(block, ensure_ascii=False)}


def _assistant_items(blocks: Iterable[Block]) -> Iterator[dict[str, Any]]:
    """The items of an answer. Blocks that only another API has are left out, and so is reasoning at the end of the answer,
    because the API refuses reasoning without the item that follows it.
    """
    waiting: list[dict[str, Any]] = []
    phase: dict[str, Any] = {}
    for block in blocks:
        kind = block.get("type")
        if kind in THINKING:
            kept = _kept_item(block)
            phase = {"phase": kept["phase"]} if kept.get("phase") else {}
            if kept.get("type") == "reasoning":
                waiting.append(kept)
        elif kind == "text":
            yield from waiting
            yield {"type": "message", "role": "assistant", "content": block["text"], **phase}
            waiting = []
        elif kind == "tool_use":
            yield from waiting
            yield {
                "type": "function_call",
                "call_id": call_id_within(block["id"], _LONGEST_CALL_ID),
                "name": block["name"],
                "arguments": to_json(block["input"]).decode(),
            }
            waiting, phase = [], {}


def _kept_item(block: Block) -> dict[str, Any]:
    signature = block.get("signature")
    if not isinstance(signature, str) or not signature.startswith("{"):
        return {}
    try:
        item = json.loads(signature)
    except (ValueError, RecursionError):
        return {}
    return item if item.get("type") in ("reasoning", "message") else {}


# --- The stream

Event = dict[str, Any]

_ENDS = frozenset({"response.completed", "response.incomplete"})
_FAILURES = frozenset({"response.failed", "response.cancelled"})
_TEXTS = {"response.output_text": "text", "response.refusal": "refusal"}
"""The events of the parts of a message, with the field that holds the whole part."""
_THOUGHTS = {"response.reasoning_summary_text": "summary_index", "response.reasoning_text": "content_index"}
"""The events of the parts of reasoning, with the field that holds the number of the part."""
_KINDS = frozenset({"message", "reasoning", "function_call"})
_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}
"""The type and the field of a delta for each type of block."""
_NO_NAME = "the answer has a call without a name"
_GAP = "\n\n"


class _PieceEvent(Struct, frozen=True):
    """An event that brings a piece of a part. JSON of one form is read faster than any JSON."""

    type: str
    delta: str
    output_index: int | None = None
    content_index: int | None = None
    summary_index: int | None = None


_PIECE_EVENT = Decoder(_PieceEvent)


class _SentPart:
    def __init__(self, index: int) -> None:
        self.index = index
        self.pieces: list[str] = []


class _Item:
    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.id: str | None = None
        self.call_id: str | None = None
        self.blocks: dict[int, _SentPart] = {}
        """The blocks by the number of the part. Reasoning and a call have only number 0."""
        self.place: tuple[str, int] | None = None
        """The part of reasoning to which the last piece belonged."""
        self.early: list[str] = []
        self.is_done = False

    @property
    def text(self) -> str:
        return "".join(piece for block in self.blocks.values() for piece in block.pieces)

    def is_another(self, told: Event) -> bool:
        """Whether `told` is another item than this one. Some servers give all items the same `output_index`."""
        if self.call_id and told.get("call_id"):
            return bool(self.call_id != told["call_id"])
        return self.is_done and self.id != told.get("id")


class ResponseStream:
    """Translates the events of one response. The message is complete only if the server has said so."""

    def __init__(self) -> None:
        self._has_begun = False
        self._items: list[_Item] = []
        self._at: dict[tuple[int, str], _Item] = {}
        """The newest item of each `output_index` and type."""
        self._blocks = 0
        self._has_refused = False
        self._place: tuple[object, ...] = ()
        """The place of the last event if that was a piece of the newest part. Most events have the same one."""
        self._newest: tuple[_SentPart, str, str] | None = None
        """The newest part, with the type and the field of its deltas."""

    def more(self, data: str) -> Event | None:
        if not self._place:
            return None
        try:
            piece = _PIECE_EVENT.decode(data)
        except (ValueError, RecursionError):
            return None
        place = (piece.type, piece.output_index, piece.content_index, piece.summary_index)
        if place != self._place or self._newest is None or not piece.delta:
            return None
        part, delta, field = self._newest
        part.pieces.append(piece.delta)
        return _delta(part.index, delta, field, piece.delta)

    def events(self, name: str, event: Event) -> Iterable[Event]:
        """The events of the Messages API for one event of the stream. `name` is the type of an event that has none itself."""
        kind = event.get("type") or name
        place = (kind, event.get("output_index"), event.get("content_index"), event.get("summary_index"))
        self._place = ()
        return self._events(str(kind), event, place)

    def _events(self, kind: str, event: Event, place: tuple[object, ...]) -> Iterator[Event]:
        base, _, step = kind.rpartition(".")
        if not kind.startswith("response."):
            if reports_error(event):
                yield event
            elif kind == "keepalive":
                yield {"type": "ping"}
            return
        response, told = event.get("response"), event.get("item")
        whole = response if isinstance(response, dict) else {}
        if not self._has_begun and kind not in _FAILURES:
            yield self._begin(whole)
        if step == "delta":
            self._newest = None
            yield from self._piece(base, event)
            self._place = place if self._newest is not None else ()
        elif kind in _FAILURES:
            yield failure_event(whole)
        elif kind in _ENDS:
            yield from self._end(kind, whole)
        elif base == "response.output_item" and isinstance(told, dict) and told.get("type") in _KINDS:
            item = self._item(event, told["type"], told)
            yield from self._finish(item, told) if step == "done" else self._announce(item, told)
        elif base in _TEXTS and step == "done":
            self._has_refused |= base == "response.refusal"
            part = self._item(event, "message"), "text", _number(event, "content_index")
            yield from self._complete(*part, event.get(_TEXTS[base]))

    def end(self) -> tuple[Event, ...]:
        """Nothing: only an event of the API ends a response."""
        return ()

    def _begin(self, response: Event) -> Event:
        self._has_begun = True
        told = {"id": str(response.get("id") or ""), "model": str(response.get("model") or "")}
        message: Event = {
            "type": "message",
            "role": "assistant",
            "content": [],
            "stop_reason": None,
            "usage": {},
        }
        return {"type": "message_start", "message": {**told, **message}}

    def _item(self, event: Event, kind: str, told: Event | None = None) -> _Item:
        """The item to which an event belongs. `told` is the item in the event, or None if there is none."""
        key = (_number(event, "output_index"), kind)
        known = self._at.get(key)
        if known is None or (told is not None and known.is_another(told)):
            known = self._at[key] = self._added(kind)
        return known

    def _added(self, kind: str) -> _Item:
        self._items.append(_Item(kind))
        return self._items[-1]

    def _piece(self, base: str, event: Event) -> Iterator[Event]:
        piece = event.get("delta")
        if not isinstance(piece, str):
            return
        if base in _TEXTS:
            self._has_refused |= base == "response.refusal"
            item = self._item(event, "message")
            yield from self._say(item, "text", _number(event, "content_index"), piece)
        elif base in _THOUGHTS:
            item, place = self._item(event, "reasoning"), (base, _number(event, _THOUGHTS[base]))
            gap = _GAP if item.place not in {None, place} else ""
            item.place = place
            yield from self._say(item, "thinking", 0, gap + piece)
        elif base == "response.function_call_arguments":
            item = self._item(event, "function_call")
            if item.blocks:
                yield from self._say(item, "tool_use", 0, piece)
            else:
                item.early.append(piece)

    def _announce(self, item: _Item, told: Event) -> Iterator[Event]:
        if item.is_done:
            return
        item.id = told.get("id")
        if item.kind == "function_call" and not item.blocks and told.get("name"):
            item.call_id = told.get("call_id") or told.get("id")
            call = {"type": "tool_use", "id": item.call_id, "name": told["name"], "input": {}}
            yield self._start(item, 0, call)
            yield from self._say(item, "tool_use", 0, "".join(item.early))
        elif item.kind == "message" and told.get("phase") and not item.blocks:
            kept = {"type": "message", "phase": told["phase"]}
            yield self._start(
                item, -1, {"type": "thinking", "thinking": "", "signature": to_json(kept).decode()}
            )

    def _finish(self, item: _Item, told: Event) -> Iterator[Event]:
        if item.is_done:
            return
        yield from self._announce(item, told)
        is_cut = told.get("status") == "incomplete"
        match item.kind:
            case "message":
                for number, part in enumerate(_objects(told.get("content"))):
                    self._has_refused |= part.get("type") == "refusal"
                    yield from self._complete(item, "text", number, _text_of(part))
            case "reasoning":
                yield from self._finish_thought(item, told, is_cut=is_cut)
            case _:
                yield from self._finish_arguments(item, told.get("arguments"))
        item.is_done = True
        if is_cut and item.kind == "function_call":
            return
        for block in item.blocks.values():
            yield {"type": "content_block_stop", "index": block.index}

    def _finish_thought(self, item: _Item, told: Event, *, is_cut: bool) -> Iterator[Event]:
        summary, content = _objects(told.get("summary")), _objects(told.get("content"))
        text = _GAP.join(map(_text_of, summary or content))
        yield from self._complete(item, "thinking", 0, text)
        kept = {"type": "reasoning", "id": str(told.get("id") or ""), "summary": summary}
        # OpenAI gives encrypted reasoning, other servers give it as text.
        secret = told.get("encrypted_content")
        if (secret or content) and not is_cut:
            kept |= {"encrypted_content": secret} if secret else {"content": content}
            if not item.blocks:
                yield self._start(item, 0, {"type": "thinking", "thinking": "", "signature": ""})
            signature = {"type": "signature_delta", "signature": to_json(kept).decode()}
            yield {"type": "content_block_delta", "index": item.blocks[0].index, "delta": signature}

    def _finish_arguments(self, item: _Item, told: object) -> Iterator[Event]:
        """Sends what is missing of the arguments of a call. If they came in two versions or the call has no name, the call is in
        doubt, and the answer is asked for again.
        """
        whole = told if isinstance(told, str) else "" if told is None else to_json(told).decode()
        if not item.blocks:
            raise StreamTransient(_NO_NAME)
        sent = item.text
        if not whole or (sent and _is_same_json(whole, sent)):
            return
        if not whole.startswith(sent):
            raise StreamTransient(f"the arguments of the call {item.call_id} came in two versions")
        yield from self._complete(item, "tool_use", 0, whole)

    def _end(self, kind: str, response: Event) -> Iterator[Event]:
        has_items = bool(self._items)
        for place, told in enumerate(_objects(response.get("output"))):
            item = self._of_output(place, told, has_items=has_items)
            if item is not None:
                yield from self._finish(item, told)
        for item in self._items:
            if item.kind == "function_call" and not item.blocks:
                raise StreamTransient(_NO_NAME)
            # A call that was not ended is left to the assembler, which refuses it if it may be incomplete.
            if not item.is_done and item.kind != "function_call":
                yield from (
                    {"type": "content_block_stop", "index": one.index} for one in item.blocks.values()
                )
        if "incomplete" in (kind.rpartition(".")[2], response.get("status")):
            stop = incomplete_reason(response)
        elif self._has_refused:
            stop = "refusal"
        else:
            stop = "tool_use" if any(one.kind == "function_call" for one in self._items) else "end_turn"
        yield {
            "type": "message_delta",
            "delta": {"stop_reason": stop},
            "usage": _usage(response.get("usage")),
        }
        yield {"type": "message_stop"}

    def _of_output(self, place: int, told: Event, *, has_items: bool) -> _Item | None:
        """The item that `told`, an item of the whole response, is. None if it must be ignored."""
        kind = told.get("type")
        if kind not in _KINDS:
            return None
        if not has_items:
            return self._added(kind)
        same = [one for one in self._items if one.kind == kind]
        if kind == "function_call" and told.get("call_id"):
            known = next((one for one in same if one.call_id == told["call_id"]), None)
        else:
            known = next(
                (one for one in same if one.id and one.id == told.get("id")), self._at.get((place, kind))
            )
        if known is None and kind == "message":
            whole = "".join(map(_text_of, _objects(told.get("content"))))
            known = next((one for one in same if one.text == whole), None)
        if known is None and kind == "reasoning":
            return None  # it would come after the items that it belongs to
        return known or self._added(kind)

    def _start(self, item: _Item, number: int, block: Event) -> Event:
        item.blocks[number] = _SentPart(self._blocks)
        self._blocks += 1
        return {"type": "content_block_start", "index": item.blocks[number].index, "content_block": block}

    def _complete(self, item: _Item, kind: str, number: int, whole: object) -> Iterator[Event]:
        sent = "".join(item.blocks[number].pieces) if number in item.blocks else ""
        if isinstance(whole, str) and whole.startswith(sent):
            yield from self._say(item, kind, number, whole.removeprefix(sent))

    def _say(self, item: _Item, kind: str, number: int, text: str) -> Iterator[Event]:
        if not text or item.is_done:
            return
        if number not in item.blocks:
            yield self._start(item, number, {"type": kind, kind: ""})
        block = item.blocks[number]
        block.pieces.append(text)
        self._newest = (block, *_DELTAS[kind])
        yield _delta(block.index, *_DELTAS[kind], text)


def _delta(index: int, kind: str, field: str, text: str) -> Event:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, field: text}}


def events_of_whole(value: Event) -> tuple[Event, ...] | None:
    """The events that a whole response means. None if `value` is not a whole response."""
    status = value.get("status")
    if status not in {"completed", "incomplete"} or not isinstance(value.get("output"), list):
        return None
    return tuple(ResponseStream().events("", {"type": f"response.{status}", "response": value}))


def _usage(told: object) -> Event:
    usage = told if isinstance(told, dict) else {}
    details = usage.get("input_tokens_details")
    details = details if isinstance(details, dict) else {}
    read, written = _number(details, "cached_tokens"), _number(details, "cache_write_tokens")
    return {
        "input_tokens": max(_number(usage, "input_tokens") - read - written, 0),
        "output_tokens": _number(usage, "output_tokens"),
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
    }


def _text_of(part: Event) -> str:
    return str(part.get("text") or part.get("refusal") or "")


def _number(holder: Event, name: str) -> int:
    value = holder.get(name)
    return value if isinstance(value, int) else 0


def _objects(value: object) -> list[Event]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _is_same_json(one: str, other: str) -> bool:
    with suppress(ValueError, RecursionError):
        return bool(strict_json(one) == strict_json(other))
    return False


_INCOMPLETE = {"max_output_tokens": "max_tokens", "content_filter": "refusal"}


def incomplete_reason(response: dict[str, Any]) -> str:
    """The stop reason of an incomplete response. An unknown reason is taken as the limit on tokens, because the last call may
    have been cut off then too, and must not run.
    """
    details = response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    return _INCOMPLETE.get(str(reason), "max_tokens")


def failure_event(response: dict[str, Any]) -> dict[str, Any]:
    """The error of a response that has failed, as an `error` event of the Messages API. An error that has only a code gets it as
    its type, whose status `STATUS_OF_TYPE` knows.
    """
    told = response.get("error")
    error = told if isinstance(told, dict) else {}
    code = error.get("code")
    said = error.get("message") or code or f"the response ended with the status {response.get('status')}"
    return {"type": "error", "error": {**error, "type": error.get("type") or code, "message": said}}


class Responses:
    """Translates for one endpoint."""

    def __init__(self, base_url: str) -> None:
        self._is_openais = is_openai(base_url)
        self._messages = ConvertedMessages(input_items)
        self._head = (b"", b"")
        """The last request head, and its converted form without the closing brace."""

    def body(self, request: RequestBody) -> tuple[bytes, ...]:
        if self._head[0] != request.head.body:
            self._head = (request.head.body, to_json(request_fields(request.head))[:-1])
        return self._messages.body(request, self._head[1], b',"input":[', is_openais=self._is_openais)

    def translator(self) -> ResponseStream:
        return ResponseStream()

    def whole(self, value: dict[str, Any]) -> tuple[dict[str, Any], ...] | None:
        return events_of_whole(value)


dialect = Responses
