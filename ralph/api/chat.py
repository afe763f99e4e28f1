"""The dialect of Chat Completions, which OpenAI, Gemini, DeepSeek, Mistral, OpenRouter, vLLM, Ollama and many others serve.

Translates its streams to events of the Messages API; `api/chat_requests.py` translates the requests. No I/O happens here.

An answer is complete when a chunk has named a `finish_reason` and the stream has ended, by `[DONE]` or without it. Token
counts may come with that chunk, behind it, or in every chunk. Only the first choice counts.
"""

# No `from __future__ import annotations` here: msgspec would compile each annotation by itself.

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.json import Decoder

from ralph.api.chat_requests import FIELDS, ChatRequests, Details, signature_of
from ralph.api.error_body import reports_error
from ralph.api.stream import stop_reason_of
from ralph.conversation.messages import to_json
from ralph.values.errors import StreamParse
from ralph.values.strict_json import strict_json

Event = dict[str, Any]


_MAY_COUNT = frozenset({"usage", "x_groq"})


# --- The form of a chunk that brings a piece of text, thinking or arguments and nothing else, as nearly all chunks do. JSON
# of one form is read faster than any JSON. The fields are all those that `ChatTranslator` reads.

_Empty = Literal[""] | None


class PlainFunction(Struct, frozen=True):
    arguments: str
    name: _Empty = None


class PlainCall(Struct, frozen=True):
    """A piece of a call that has begun, so that it needs neither id nor name."""

    function: PlainFunction
    index: int | None = None
    id: _Empty = None
    extra_content: None = None


class PlainDelta(Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[PlainCall] | None = None
    reasoning_details: Annotated[list[None], Meta(max_length=0)] | None = None
    refusal: _Empty = None
    function_call: None = None


class PlainChoice(Struct, frozen=True):
    delta: PlainDelta
    index: Literal[0] | None = 0
    finish_reason: _Empty = None
    usage: None = None


class PlainChunk(Struct, frozen=True):
    choices: tuple[PlainChoice]
    type: str = ""
    usage: None = None
    error: None = None
    x_groq: None = None


PLAIN_CHUNK = Decoder(PlainChunk)


class _Call:
    def __init__(self, index: int | None) -> None:
        self.index = index
        """The server's number for the call. None if it gave none."""
        self.id = ""
        self.name = ""
        self._pieces: list[str] = []
        self.extra: Any = None
        self.block: int | None = None
        """The index of the block. None before the call's name has come."""

    @property
    def arguments(self) -> str:
        """The arguments so far."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    @property
    def has_arguments(self) -> bool:
        return any(piece.strip() for piece in self._pieces)

    def extend(self, arguments: str) -> None:
        if arguments:
            self._pieces.append(arguments)

    @property
    def is_whole(self) -> bool:
        """Whether the arguments so far are a complete object."""
        if not self._pieces or not self._pieces[-1].rstrip().endswith("}"):
            return False
        try:
            return isinstance(strict_json(self.arguments), dict)
        except (ValueError, RecursionError):
            return False


class _Piece(Struct, frozen=True):
    """A piece of a tool call. What is missing is None or empty."""

    index: int | None
    id: str
    name: str
    arguments: str
    extra: Any = None


class ChatTranslator:
    """Translates one answer. It implements `api/client.Translator`."""

    def __init__(self) -> None:
        self._has_begun = False
        self._blocks = 0
        """The number of blocks that have begun."""
        self._open: tuple[str, int] | None = None
        """The type and index of the open block of text or thinking. None if there is none."""
        self._calls: list[_Call] = []
        self._details = Details()
        self._usage: Event = {}
        self._reason: str | None = None
        """The newest `finish_reason`."""
        self._has_refused = False

    def more(self, data: str) -> Event | None:
        if not self._blocks:
            return None
        try:
            chunk = PLAIN_CHUNK.decode(data)
        except (ValueError, RecursionError):
            return None
        delta = chunk.choices[0].delta
        text, thought, calls = delta.content, delta.reasoning_content or delta.reasoning, delta.tool_calls
        if calls:
            return None if text or thought or len(calls) > 1 else self._more_arguments(calls[0])
        kind, piece = ("thinking", thought) if thought else ("text", text)
        if not piece or (text and thought) or self._open is None or self._open[0] != kind:
            return None
        return _part(self._open[1], {"type": f"{kind}_delta", kind: piece})

    def _more_arguments(self, piece: PlainCall) -> Event | None:
        call, arguments = self._calls[-1] if self._calls else None, piece.function.arguments
        if call is None or call.block is None or not arguments or piece.index not in {None, call.index}:
            return None
        call.extend(arguments)
        return _part(call.block, {"type": "input_json_delta", "partial_json": arguments})

    def events(self, _name: str, event: Event) -> Iterator[Event]:
        """The events that a chunk means. Raises StreamParse if it leaves a doubt to which call a piece belongs."""
        choices = event.get("choices")
        choices = choices if isinstance(choices, list) else []
        error = error_event(event) if "error" in event or not choices else None
        if error is not None:
            yield error
            return
        if not self._has_begun and (choices or event.get("object") == "chat.completion.chunk"):
            self._has_begun = True
            yield _message_start(event)
        choice = next((one for one in choices if isinstance(one, dict) and not one.get("index")), {})
        if _MAY_COUNT & (event.keys() | choice.keys()):
            self._usage = usage_of(event, choice) or self._usage
        delta = choice.get("delta")
        if isinstance(delta, dict):
            yield from self._delta(delta)
        if choice.get("finish_reason"):
            self._reason = str(choice["finish_reason"])

    def end(self) -> Sequence[Event]:
        """The last events. Empty if no `finish_reason` has come. Raises StreamParse if a call has no name."""
        if self._reason is None:
            return ()
        if (error := ending_error(self._reason)) is not None:
            return (error,)
        if any(call.block is None and (call.id or call.has_arguments) for call in self._calls):
            raise StreamParse("a tool call has no name")
        calls = [(call.block, call.extra) for call in self._calls if call.block is not None]
        events = [] if self._open is None else [_stop(self._open[1])]
        events += [_stop(block) for block, _ in calls]
        reason = "refusal" if self._has_refused else stop_reason_of(self._reason)
        signature = self._details.signature_with([extra for _, extra in calls])
        # The block that was cut off must stay the last one.
        if signature is not None and reason != "max_tokens":
            block = {"type": "thinking", "thinking": "", "signature": signature}
            events += (_start(self._blocks, block), _stop(self._blocks))
        if calls and reason == "end_turn":
            reason = "tool_use"
        delta = {"stop_reason": reason, "stop_sequence": None}
        return (
            *events,
            {"type": "message_delta", "delta": delta, "usage": self._usage},
            {"type": "message_stop"},
        )

    def _delta(self, delta: Event) -> Iterator[Event]:
        field = next((name for name in FIELDS if delta.get(name) and isinstance(delta[name], str)), None)
        if field is not None:
            yield from self._say("thinking", delta[field], field)
        if details := delta.get("reasoning_details"):
            self._details.add(details)
        content = delta.get("content")
        if isinstance(content, str):
            if content:
                yield from self._say("text", content)
        elif content:
            for kind, text in _words_in(content):
                yield from self._say(kind, text)
        if (refusal := delta.get("refusal")) and isinstance(refusal, str):
            self._has_refused = True
            yield from self._say("text", refusal)
        if pieces := delta.get("tool_calls"):
            for one in pieces if isinstance(pieces, list) else ():
                if isinstance(one, dict):
                    yield from self._take(_piece(one, one.get("function")))
        if isinstance(delta.get("function_call"), dict):  # the older form, with one call at most
            yield from self._take(_piece({"index": 0}, delta["function_call"]))

    def _say(self, kind: str, text: str, field: str = "") -> Iterator[Event]:
        if self._open is None or self._open[0] != kind:
            yield from self._close()
            self._open = kind, self._blocks
            self._blocks += 1
            signature = {"signature": signature_of(field)} if field else {}
            yield _start(self._open[1], {"type": kind, kind: "", **signature})
        yield _part(self._open[1], {"type": f"{kind}_delta", kind: text})

    def _close(self) -> Iterator[Event]:
        if self._open is not None:
            yield _stop(self._open[1])
            self._open = None

    def _take(self, piece: _Piece) -> Iterator[Event]:
        call = self._call_of(piece)
        if call is None:
            return
        call.id, call.name = call.id or piece.id, call.name or piece.name
        call.extra = piece.extra if call.extra is None else call.extra
        call.extend(piece.arguments)
        arguments = piece.arguments
        if call.block is None and call.name:
            yield from self._close()
            call.block, arguments = self._blocks, call.arguments
            self._blocks += 1
            own_id = {"id": call.id} if call.id else {}
            yield _start(call.block, {"type": "tool_use", **own_id, "name": call.name, "input": {}})
        if call.block is not None and arguments:
            yield _part(call.block, {"type": "input_json_delta", "partial_json": arguments})

    def _call_of(self, piece: _Piece) -> _Call | None:
        """The call to which a piece belongs, or None if the piece repeats a call. Some servers give all calls the index 0, or none.
        Others give each piece of a call another id, or repeat the name. Raises StreamParse if there is a doubt.
        """
        same = [call for call in self._calls if piece.id and call.id == piece.id]
        known = [call for call in same or self._calls if piece.index in {None, call.index}]
        call = known[-1] if known else None
        if call is not None and piece.name and call.name:
            if same and call.is_whole:
                return None if piece.arguments in {"", call.arguments} else self._new_call(piece)
            has_other_id = bool(piece.id and call.id and piece.id != call.id)
            begins = call.is_whole and piece.arguments.lstrip().startswith("{")
            if has_other_id or begins or (piece.name != call.name and not call.has_arguments):
                call = None
            elif piece.name != call.name:
                raise StreamParse(f"a piece of {piece.name} came inside a call of {call.name}")
        return call or self._new_call(piece)

    def _new_call(self, piece: _Piece) -> _Call:
        self._calls.append(_Call(piece.index))
        return self._calls[-1]


def _piece(one: Event, function: object) -> _Piece:
    function = function if isinstance(function, dict) else {}
    index, arguments = one.get("index"), function.get("arguments")
    if not isinstance(arguments, str):
        arguments = "" if arguments is None else to_json(arguments).decode()
    return _Piece(
        index if type(index) is int else None,
        str(one.get("id") or ""),
        str(function.get("name") or ""),
        arguments,
        one.get("extra_content"),
    )


def _words_in(content: object) -> Iterator[tuple[str, str]]:
    """The pieces of text and thinking in the content of a delta that is a list of parts, as Mistral's models that reason send it."""
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        inner = part.get(kind) if kind in {"text", "thinking"} else None
        if isinstance(inner, list):
            inner = "".join(str(one.get("text") or "") for one in inner if isinstance(one, dict))
        if isinstance(inner, str) and inner:
            yield str(kind), inner


def _message_start(event: Event) -> Event:
    usage = {"input_tokens": 0, "output_tokens": 0}
    message: Event = {
        "id": str(event.get("id") or ""),
        "type": "message",
        "role": "assistant",
        "model": str(event.get("model") or ""),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    return {"type": "message_start", "message": message}


def _start(index: int, block: Event) -> Event:
    return {"type": "content_block_start", "index": index, "content_block": block}


def _part(index: int, delta: Event) -> Event:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def _stop(index: int) -> Event:
    return {"type": "content_block_stop", "index": index}


def usage_of(event: Event, choice: Event) -> Event:
    """The token counts of a chunk as the Messages API counts them. Empty if it has none. Kimi puts them into the choice, and Groq
    into a field of its own.
    """
    groq = event.get("x_groq")
    places = (event, choice, groq if isinstance(groq, dict) else {})
    found = next((one["usage"] for one in places if isinstance(one.get("usage"), dict)), None)
    if not found:
        return {}
    details = found.get("prompt_tokens_details")
    details = details if isinstance(details, dict) else {}
    prompt = _count(found, "prompt_tokens")
    # DeepSeek and older Kimi have fields of their own for the prompt that was cached.
    read = _count(details, "cached_tokens") or max(
        _count(found, "prompt_cache_hit_tokens"), _count(found, "cached_tokens")
    )
    written = min(_count(details, "cache_write_tokens"), max(0, prompt - read))
    # xAI and Gemini leave the reasoning out of the completion, but not out of the total.
    output = max(_count(found, "completion_tokens"), _count(found, "total_tokens") - prompt)
    return {
        "input_tokens": max(0, prompt - read - written),
        "output_tokens": output,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
    }


def _count(usage: Event, name: str) -> int:
    value = usage.get(name)
    return int(value) if isinstance(value, int | float) and value > 0 else 0


def events_of_whole(value: Event) -> Sequence[Event] | None:
    """The events that a whole answer means. None if `value` is not an answer."""
    choices = value.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(first, dict) or not isinstance(first.get("message"), dict):
        return None
    translator = ChatTranslator()
    chunk = {**value, "choices": [{"finish_reason": "stop", **first, "delta": first["message"]}]}
    return (*translator.events("", chunk), *translator.end())


_ENDED_BY_ERROR = {
    "error": "api_error",
    "network_error": "api_error",
    "insufficient_system_resource": "overloaded_error",
}
"""The values of `finish_reason` that end an answer early, with the type of error that each means: OpenRouter's, z.ai's and
DeepSeek's.
"""


def error_event(event: dict[str, Any]) -> dict[str, Any] | None:
    """The `error` event of the Messages API for an event that reports an error, in whatever form. None for any other event."""
    if reports_error(event):
        return {**event, "type": "error"}
    if "choices" not in event and "type" not in event and ("message" in event or "detail" in event):
        return {"type": "error", "error": event}
    return None


def ending_error(reason: str) -> dict[str, Any] | None:
    """The `error` event for an answer that ended with this `finish_reason`. None if that is not an error."""
    kind = _ENDED_BY_ERROR.get(reason.lower())
    message = f"the server ended its answer with finish_reason {reason!r}"
    return None if kind is None else {"type": "error", "error": {"type": kind, "message": message}}


class ChatDialect(ChatRequests):
    """Implements `api/client.Dialect` for one server."""

    def translator(self) -> ChatTranslator:
        return ChatTranslator()

    whole = staticmethod(events_of_whole)


dialect = ChatDialect
