"""The messages of a conversation, the requests that contain them, and its repair after a failure. The rules are in
section 4 of the Messages API reference.

A message is encoded once and never changed: the prompt cache and the signatures of thinking depend on its exact bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate, chain, takewhile
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from msgspec import Struct, field
from msgspec.structs import replace

from ralph.values.answer import Block, ToolDefinition, ToolOutput, ToolResult
from ralph.values.servers import DEFAULT_MAX_TOKENS, facts_of, is_claude, max_tokens_for
from ralph.values.usage import content_size, tokens_of_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from anthropic.types import TextBlockParam, ToolParam


Role = Literal["user", "assistant"]

_OPENS_MESSAGES = b',"messages":['
THINKING = frozenset({"thinking", "redacted_thinking"})
_CACHE_MARKER = b',"cache_control":{"type":"ephemeral"}'
# The JSON of every message ends with these bytes, which close its last block, its list of blocks, and the message.
_MESSAGE_TAIL = b"}]}"

# Older messages are joined into pieces of at least this size. To copy less than this for each request costs almost
# nothing, and each piece costs one more system call.
_PIECE_BYTES = 128 * 1024
# This many of the newest messages are not joined into a piece. The two newest user messages get cache markers, and up
# to ten paused answers may come between them.
_ALWAYS_LOOSE = 14

NOT_RUN = "This call was not run: the run ended first. Check the state of things before you repeat it."


# --- Sequences and mappings that only grow
# Each is an immutable value that shares memory with the longer values made from it, so that a state that changes with
# every record of a long session is not copied each time.

_T_co = TypeVar("_T_co", covariant=True)
_V_co = TypeVar("_V_co", covariant=True)
# A longer sequence copies fewer items than this, and the list of the full pieces once for each piece.
_PIECE = 256


class GrowingSequence(Sequence[_T_co]):
    """An immutable sequence. `plus` returns a longer one."""

    __slots__ = ("_full", "_last")

    def __init__(self, items: Iterable[_T_co] = ()) -> None:
        all_items = tuple(items)
        starts = range(0, len(all_items) // _PIECE * _PIECE, _PIECE)
        self._full = tuple(all_items[start : start + _PIECE] for start in starts)
        """Pieces of `_PIECE` items each."""
        self._last = all_items[len(starts) * _PIECE :]
        """The items after them, always fewer than `_PIECE`."""

    def _of(self, full: tuple[tuple[_T_co, ...], ...], last: tuple[_T_co, ...]) -> GrowingSequence[_T_co]:
        made: GrowingSequence[_T_co] = GrowingSequence.__new__(GrowingSequence)
        made._full, made._last = full, last
        return made

    def plus(self, item: _T_co) -> GrowingSequence[_T_co]:  # type: ignore[misc]  # it returns a value and changes none
        last = (*self._last, item)
        return self._of((*self._full, last), ()) if len(last) == _PIECE else self._of(self._full, last)

    def first(self, count: int) -> GrowingSequence[_T_co]:
        """The first `count` items, at most all."""
        if count >= len(self):
            return self
        pieces, rest = divmod(count, _PIECE)
        cut = self._full[pieces] if pieces < len(self._full) else self._last
        return self._of(self._full[:pieces], cut[:rest])

    def begins_with(self, other: GrowingSequence[object]) -> bool:
        """Whether the first items are those of `other`. Shared pieces are not looked into."""
        return len(other) <= len(self) and self.first(len(other)) == other

    def __len__(self) -> int:
        return len(self._full) * _PIECE + len(self._last)

    def __iter__(self) -> Iterator[_T_co]:
        return chain(chain.from_iterable(self._full), self._last)

    @overload
    def __getitem__(self, index: int) -> _T_co: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[_T_co, ...]: ...
    def __getitem__(self, index: int | slice) -> _T_co | tuple[_T_co, ...]:
        if isinstance(index, slice):
            return tuple(self[number] for number in range(*index.indices(len(self))))
        piece, place = divmod(range(len(self))[index], _PIECE)
        return (self._full[piece] if piece < len(self._full) else self._last)[place]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GrowingSequence):
            return isinstance(other, tuple) and tuple(self) == other
        return (self._full, self._last) == (other._full, other._last)

    def __hash__(self) -> int:
        return hash(tuple(self))


class GrowingMapping(Mapping[str, _V_co]):
    """An immutable mapping in the order of the keys' first insertion. `plus` returns a larger one."""

    __slots__ = ("_layers",)

    def __init__(self, items: Mapping[str, _V_co] | Iterable[tuple[str, _V_co]] = ()) -> None:
        found = dict(items)
        self._layers: tuple[Mapping[str, _V_co], ...] = (found,) if found else ()
        """The newest last. Each is more than twice as large as the next one, so there are few, and an item is copied from
        one to another few times."""

    def plus(self, items: Mapping[str, _V_co]) -> GrowingMapping[_V_co]:
        """The mapping with `items`, which replace those of the same key."""
        if all(key in self and self[key] == value for key, value in items.items()):
            return self
        larger: GrowingMapping[_V_co] = GrowingMapping(items)
        kept, newest = [*self._layers], larger._layers[0]
        while kept and len(kept[-1]) <= 2 * len(newest):
            newest = {**kept.pop(), **newest}
        larger._layers = (*kept, newest)
        return larger

    def __getitem__(self, key: str) -> _V_co:
        for layer in reversed(self._layers):
            if key in layer:
                return layer[key]
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(chain.from_iterable(self._layers)))

    def __len__(self) -> int:
        return len(set().union(*self._layers))

    def __hash__(self) -> int:
        return hash(frozenset(self.items()))


# --- Messages and requests


class Author(Struct, frozen=True):
    """The model that wrote an assistant message, and its server."""

    model: str
    endpoint: str | None = None
    """The base URL, or None if it is unknown."""


@cache
def _author(model: str, endpoint: str | None) -> Author:
    """All messages of one author share one object."""
    return Author(model, endpoint)


class LeftOutThinking(Struct, frozen=True):
    """The thinking that a reader does not get, because its server has refused it."""

    messages: int
    """The number of messages, from the first of the context on, whose thinking is left out."""
    is_off: bool = False
    """Whether the reader is asked not to think, until the next user message without tool results."""


class Message(Struct, frozen=True, eq=False, weakref=True):
    """`body` is its JSON in requests, encoded once. No decoded form is kept in memory."""

    role: Role
    author: Author | None
    """None for a user message, or if it is unknown."""
    size: int
    """The estimated tokens, more likely too many than too few."""
    thinks: bool
    """Whether the message has a thinking block."""
    _piece: bytes
    """The bytes that contain this body, and perhaps those of other messages."""
    _start: int
    _end: int

    @property
    def body(self) -> bytes:
        return self._piece[self._start : self._end]

    @property
    def length(self) -> int:
        """The length of the body in bytes."""
        return self._end - self._start

    @property
    def content(self) -> tuple[Block, ...]:
        """Decoded from the body at each access."""
        return tuple(json.loads(self.body)["content"])

    @property
    def tool_use_ids(self) -> tuple[str, ...]:
        return tuple(block["id"] for block in self.content if block.get("type") == "tool_use")

    @property
    def tool_result_ids(self) -> tuple[str, ...]:
        return tuple(block["tool_use_id"] for block in self.content if block.get("type") == "tool_result")

    def within(self, piece: bytes, start: int) -> Message:
        """A copy that takes its body from `piece`, beginning at offset `start`."""
        return replace(self, _piece=piece, _start=start, _end=start + self.length)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and (self.author, self.body) == (other.author, other.body)

    def __hash__(self) -> int:
        return hash((self.author, self.body))


class RequestHead:
    """A request without its messages. `body` is its JSON without the closing brace, and is sent again byte for byte if
    it comes from a journal. `fields` is the decoded object. No Struct, because the journal stores one string.
    """

    def __init__(self, body: bytes, fields: Mapping[str, Any]) -> None:
        self.body = body
        self.fields = fields

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RequestHead) and other.body == self.body

    def __hash__(self) -> int:
        return hash(self.body)

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> RequestHead:
        return cls(to_json(fields)[:-1], fields)

    @classmethod
    def of_body(cls, body: bytes) -> RequestHead:
        """Raises ValueError unless `body` begins a JSON object."""
        fields = json.loads(body + b"}")
        if not isinstance(fields, dict):
            raise ValueError("Expected a JSON object")  # noqa: TRY004 - the class of the decoder's own errors
        return cls(body, fields)

    @property
    def json(self) -> str:
        return self.body.decode() + "}"

    @property
    def max_tokens(self) -> int:
        """That of the head, or the default."""
        asked = self.fields.get("max_tokens")
        return asked if isinstance(asked, int) else DEFAULT_MAX_TOKENS

    def asking(self, max_tokens: int | None, *, is_whole: bool = False) -> RequestHead:
        """A head with this `max_tokens`, unless it is None or this head has none, and without a stream if `is_whole`."""
        fields = dict(self.fields)
        if max_tokens is not None and "max_tokens" in fields:
            fields["max_tokens"] = max_tokens
        if is_whole:
            fields["stream"] = False
        return self if fields == self.fields else RequestHead.of_fields(fields)


_NO_HEAD = RequestHead(b"", {})


class RequestShape(Struct, frozen=True):
    """The settings for requests to one model, of which `head` makes the request head."""

    model: str
    system: str
    tools: tuple[ToolDefinition, ...]
    max_tokens: int | None = None
    """The longest answer in tokens. None is the default, or the model's maximum if that is lower."""
    effort: str | None = None
    thinking: str | None = None
    """"none" leaves the field out of requests. None does too, unless the model is known to need a type."""
    endpoint: str | None = None
    """The base URL, or None if it is unknown. Only the endpoint that produced thinking gets it."""
    recorded_head: RequestHead | None = None
    """A finished head, for example of a resumed session. If set, `head` returns it and ignores the other settings."""

    @property
    def author(self) -> Author:
        """The author of the answers to these requests."""
        return _author(self.model, self.endpoint)

    @property
    def longest_answer(self) -> int:
        """The `max_tokens` of the request head."""
        return self.head().max_tokens

    def with_requested(
        self, *, endpoint: str, max_tokens: int | None, effort: str | None, thinking: str | None
    ) -> RequestShape:
        """A copy whose recorded head has the settings of the current run. A setting that is None, or the default of
        `max_tokens`, changes nothing in it.
        """
        recorded = self.head()
        requested = dict(recorded.fields)
        facts = facts_of(self.model)
        if max_tokens not in {None, DEFAULT_MAX_TOKENS}:
            requested["max_tokens"] = max_tokens_for(self.model, max_tokens)
        if thinking is not None:
            requested["thinking"] = {"type": thinking}
        if thinking == "none":
            del requested["thinking"]
        if effort is not None and (facts is None or facts.takes_effort):
            requested["output_config"] = {"effort": effort}
        head = recorded if requested == recorded.fields else RequestHead.of_fields(requested)
        return replace(self, endpoint=endpoint, recorded_head=head)

    def head(self) -> RequestHead:
        if self.recorded_head is not None:
            return self.recorded_head
        fields: dict[str, Any] = {
            "model": self.model,
            "max_tokens": max_tokens_for(self.model, self.max_tokens),
            "stream": True,
        }
        facts = facts_of(self.model)
        needs = "adaptive" if facts is not None and facts.needs_adaptive else "none"
        if (thinking := self.thinking or needs) != "none":
            fields["thinking"] = {"type": thinking}
        if self.effort is not None and (facts is None or facts.takes_effort):
            fields["output_config"] = {"effort": self.effort}
        if self.tools:
            tools: list[ToolParam] = [
                {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
                for tool in self.tools
            ]
            fields["tools"] = tools
        if self.system.strip():
            system: TextBlockParam = {"type": "text", "text": self.system}
            if is_claude(self.model):
                system["cache_control"] = {"type": "ephemeral"}
            fields["system"] = [system]
        return RequestHead.of_fields(fields)


class RequestBody(Struct, frozen=True):
    """A request in the parts that later requests share. `pieces` makes the JSON of the Messages API from them, and
    `ralph/api/` that of other APIs.
    """

    head: RequestHead
    packed: tuple[bytes, ...] = ()
    """The older messages, joined into pieces, with a comma behind each message. Later requests share the pieces."""
    loose: tuple[bytes, ...] = ()
    """The newer messages. Later requests share them, except those with a cache marker."""

    def pieces(self) -> tuple[bytes, ...]:
        """The JSON in pieces, to be sent one after the other."""
        head = self.head.body + _OPENS_MESSAGES
        newest = b",".join(self.loose) + b"]}"
        # Each piece is a packet of its own, which the server takes one by one.
        return (head, *self.packed, newest) if self.packed else (head + newest,)


class Conversation(Struct, frozen=True):
    """The head of a request and all messages so far. Immutable. Older messages are joined into large pieces that later
    requests use again, so that only the newest ones are copied for a request.
    """

    head: RequestHead = _NO_HEAD
    marks_cache: bool = False
    """True if requests contain prompt-cache markers."""
    messages: GrowingSequence[Message] = GrowingSequence()
    thinkers: frozenset[Author] = frozenset()
    """The authors of all messages that contain thinking blocks."""
    left_out: Mapping[Author, LeftOutThinking] = field(default_factory=dict)
    """The thinking that is left out of requests, by the model and server that would get it."""
    _packed: tuple[bytes, ...] = ()
    """The bodies of the first `_packed_messages` messages, in pieces, with a comma behind each body."""
    _packed_messages: int = 0
    _loose_bytes: int = 0
    """The total length of the bodies that are not in `_packed`."""
    _messages_size: int = 0

    @classmethod
    def start(cls, shape: RequestShape) -> Conversation:
        return cls(shape.head(), is_claude(shape.model))

    @property
    def size(self) -> int:
        """The estimated tokens of the next request, from its bytes: rather too many. Takes the same time for any
        length.
        """
        around = len(self.head.body) + len(_OPENS_MESSAGES) + len(self.messages) + len(b"]}")
        if self.marks_cache:
            around += 2 * len(_CACHE_MARKER)
        return tokens_of_bytes(around) + self._messages_size

    @property
    def answered_size(self) -> int | None:
        """As `size`, of the last request that was answered, or None."""
        since = 0
        for index in range(len(self.messages) - 1, -1, -1):
            since += self.messages[index].size
            if self.messages[index].role == "assistant":
                return self.size - since
        return None

    def plus(self, message: Message) -> Conversation:
        if message.author is not None and message.author not in self.thinkers and message.thinks:
            return replace(self, thinkers=self.thinkers | {message.author}).plus(message)
        messages = self.messages.plus(message)
        messages_size = self._messages_size + message.size
        loose_bytes = self._loose_bytes + message.length
        newest = messages[max(self._packed_messages, len(messages) - _ALWAYS_LOOSE) :]
        newest_bytes = sum(new.length for new in newest)
        if loose_bytes - newest_bytes < _PIECE_BYTES:
            return replace(self, messages=messages, _loose_bytes=loose_bytes, _messages_size=messages_size)
        end = len(messages) - len(newest)
        packed = messages[self._packed_messages : end]
        piece = b"".join(old.body + b"," for old in packed)
        starts = accumulate((old.length + len(b",") for old in packed), initial=0)
        messages = messages.first(self._packed_messages)
        for one in (*(old.within(piece, start) for old, start in zip(packed, starts, strict=False)), *newest):
            messages = messages.plus(one)
        return replace(
            self,
            messages=messages,
            _packed=(*self._packed, piece),
            _packed_messages=end,
            _loose_bytes=newest_bytes,
            _messages_size=messages_size,
        )

    def under(self, shape: RequestShape) -> Conversation:
        """These messages with the request head of `shape`."""
        return replace(self, head=shape.head(), marks_cache=is_claude(shape.model))

    def without_thinking(self, reader: Author, *, is_off: bool) -> Conversation:
        """Leaves the thinking so far out of requests to `reader`. With `is_off`, also asks the reader not to think."""
        return replace(self, left_out={**self.left_out, reader: LeftOutThinking(len(self.messages), is_off)})

    def thinking_again(self) -> Conversation:
        """Every reader may think again. What was left out stays left out."""
        if not any(left.is_off for left in self.left_out.values()):
            return self
        return replace(
            self, left_out={reader: LeftOutThinking(left.messages) for reader, left in self.left_out.items()}
        )

    def emptied(self) -> Conversation:
        """The head without messages."""
        return Conversation(self.head, self.marks_cache)

    def amended(self, message: Message) -> Conversation:
        """With `message` in place of the last one."""
        return self.up_to(len(self.messages) - 1).plus(message)

    def up_to(self, number: int) -> Conversation:
        """The first `number` messages. Copies no message, unless one that was joined into a piece is left out."""
        kept = self.messages.first(number)
        if number < self._packed_messages:
            shorter = replace(self.emptied(), left_out=self.left_out)
            for message in kept:
                shorter = shorter.plus(message)
            return shorter
        gone = self.messages[number:]
        is_same = not any(message.thinks for message in gone)
        return replace(
            self,
            messages=kept,
            thinkers=self.thinkers
            if is_same
            else frozenset(one.author for one in kept if one.thinks and one.author),
            _loose_bytes=self._loose_bytes - sum(message.length for message in gone),
            _messages_size=self._messages_size - sum(message.size for message in gone),
        )

    def request_body(self, max_tokens: int | None = None, *, is_whole: bool = False) -> RequestBody:
        """The body of the next request. Without `max_tokens`, the head's limit stays. With `is_whole`, the answer is
        one JSON object instead of a stream.

        With `marks_cache`, the last blocks of the two newest user messages get cache markers. `system` has one too,
        and the API allows four. It looks back only 20 blocks for a cached prefix, and a turn may add more.
        """
        loose = self.messages[self._packed_messages :]
        bodies = [message.body for message in loose]
        if self.marks_cache:
            users = [index for index, message in enumerate(loose) if message.role == "user"]
            for index in users[-2:]:
                bodies[index] = bodies[index].removesuffix(_MESSAGE_TAIL) + _CACHE_MARKER + _MESSAGE_TAIL
        return RequestBody(self.head.asking(max_tokens, is_whole=is_whole), self._packed, tuple(bodies))


def text_blocks(text: str) -> list[Block]:
    return [{"type": "text", "text": text}]


def user_message(content: str | Iterable[Block]) -> Message:
    return make_message("user", text_blocks(content) if isinstance(content, str) else content)


def assistant_message(content: Iterable[Block], author: Author | None = None) -> Message | None:
    """None if the answer has nothing that can be sent."""
    kept = _sendable(content)
    return _message("assistant", kept, author) if kept else None


def recover_conversation(
    conversation: Conversation, finished: Mapping[str, ToolResult] | None = None
) -> Conversation:
    """The conversation with exactly one `tool_result` for each `tool_use`: that in `finished`, by call id, or in the
    conversation, or else an error that says that the call was not run. Valid messages stay.
    """
    if _is_whole(conversation.messages):
        return conversation
    found = {
        block["tool_use_id"]: block
        for message in reversed(conversation.messages)
        if message.role == "user"  # results in an assistant message are those of the server's own tools
        for block in message.content
        if block.get("type") == "tool_result"
    }
    done = found | {call_id: result.as_block() for call_id, result in (finished or {}).items()}
    messages: list[Message] = []
    waiting: tuple[str, ...] = ()
    for message in conversation.messages:
        if message.role == "assistant":
            if waiting:
                messages.append(_results_message(waiting, done))
            messages.append(message)
            waiting = message.tool_use_ids
        else:
            fixed = _with_exact_results(message, waiting, done)
            if fixed.content:
                messages.append(fixed)
            waiting = ()
    if waiting:
        messages.append(_results_message(waiting, done))
    pairs = zip(conversation.messages, messages, strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], pairs))
    recovered = conversation.up_to(same)
    for message in messages[same:]:
        recovered = recovered.plus(message)
    return recovered


def _is_whole(messages: Iterable[Message]) -> bool:
    """Decodes one message at a time: a long conversation as a whole takes several times its memory."""
    waiting: tuple[str, ...] = ()
    for message in messages:
        if message.role == "assistant":
            if waiting:
                return False
            waiting = message.tool_use_ids
        elif _has_exact_results(message, waiting):
            waiting = ()
        else:
            return False
    return not waiting


# `json.dumps` would make a new encoder for each value.
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def to_json(value: object) -> bytes:
    """Compact JSON in UTF-8. Half of a surrogate pair, which the API rejects, becomes "?"."""
    return _ENCODER.encode(value).encode("utf-8", "replace")


def make_message(role: Role, content: Iterable[Block], author: Author | None = None) -> Message:
    """Leaves out empty and blank texts, which the API rejects."""
    return _message(role, _sendable(content), author)


def _message(role: Role, content: tuple[Block, ...], author: Author | None) -> Message:
    body = to_json({"role": role, "content": content})
    thinks = any(block.get("type") in THINKING for block in content)
    return Message(role, author, content_size(content, len(body)), thinks, body, 0, len(body))


def _sendable(content: Iterable[Block]) -> tuple[Block, ...]:
    return tuple(one for one in content if one.get("type") != "text" or str(one.get("text", "")).strip())


def _results_message(call_ids: Iterable[str], done: Mapping[str, Block]) -> Message:
    return make_message("user", [_result_for(call_id, done) for call_id in call_ids])


def not_run(call_id: str) -> ToolResult:
    return ToolResult(call_id, ToolOutput(NOT_RUN, is_error=True))


def _result_for(call_id: str, done: Mapping[str, Block]) -> Block:
    return done.get(call_id) or not_run(call_id).as_block()


def _has_exact_results(message: Message, asked: tuple[str, ...]) -> bool:
    """Whether the content begins with exactly one result for each call id in `asked`."""
    content = message.content
    results = [block["tool_use_id"] for block in content if block.get("type") == "tool_result"]
    first = content[: len(asked)]
    return sorted(results) == sorted(asked) and all(block.get("type") == "tool_result" for block in first)


def _with_exact_results(message: Message, asked: tuple[str, ...], done: Mapping[str, Block]) -> Message:
    """A user message that begins with one result for each call id in `asked`, and has no other results."""
    if _has_exact_results(message, asked):
        return message
    rest = [block for block in message.content if block.get("type") != "tool_result"]
    return make_message("user", [*(_result_for(call_id, done) for call_id in asked), *rest])
