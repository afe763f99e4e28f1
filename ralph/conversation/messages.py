"""The messages of a conversation, the requests that contain them, and the repair of a conversation after a failure.

Each message is encoded to JSON once and never changed afterwards, because the prompt cache and the signatures of
thinking blocks depend on the exact bytes. The rules are in section 4 of the Messages API reference.
"""

from __future__ import annotations

import json
from functools import cache
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from ralph.conversation.context_size import content_size, tokens_of_bytes
from ralph.conversation.growing import GrowingSequence
from ralph.values.answer import Block, ToolDefinition, ToolOutput, ToolResult
from ralph.values.servers.models import DEFAULT_MAX_TOKENS, facts_of, is_claude, max_tokens_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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


class Author(Struct, frozen=True):
    """The model that wrote an assistant message, and the server that ran the model."""

    model: str
    endpoint: str | None = None
    """The base URL of the server, or None if it is unknown."""


@cache
def _author(model: str, endpoint: str | None) -> Author:
    """The author with this model and endpoint. All messages of one author share one object."""
    return Author(model, endpoint)


class LeftOutThinking(Struct, frozen=True):
    """The thinking that a reader does not get, because its server has refused it."""

    messages: int
    """The number of messages, from the first of the context on, whose thinking is left out."""
    is_off: bool = False
    """Whether the reader is asked not to think, until the next user message without tool results."""


class Message(Struct, frozen=True, eq=False, weakref=True):
    """A message of the conversation. `body` is the JSON of the message in requests. It is encoded only once. No
    decoded form of the message is kept in memory.
    """

    role: Role
    author: Author | None
    """The author of an assistant message. None for a user message, or if the author is unknown."""
    size: int
    """An estimate of the message's tokens, made from its bytes. It is more likely too high than too low."""
    thinks: bool
    """Whether the message has a thinking block."""
    _piece: bytes
    """The bytes that contain the body of this message. They may also contain the bodies of other messages."""
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
        """The content blocks. They are decoded from the body at each access."""
        return tuple(json.loads(self.body)["content"])

    @property
    def tool_use_ids(self) -> tuple[str, ...]:
        return tuple(block["id"] for block in self.content if block.get("type") == "tool_use")

    @property
    def tool_result_ids(self) -> tuple[str, ...]:
        return tuple(block["tool_use_id"] for block in self.content if block.get("type") == "tool_result")

    def within(self, piece: bytes, start: int) -> Message:
        """A copy of this message. The copy takes its body from `piece`, beginning at offset `start`."""
        return replace(self, _piece=piece, _start=start, _end=start + self.length)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and (self.author, self.body) == (other.author, other.body)

    def __hash__(self) -> int:
        return hash((self.author, self.body))


class RequestHead:
    """A request without its messages: the model, the limits, the tools and the system prompt. It is immutable.

    `body` is the JSON of the head without the closing brace, and `fields` is the decoded JSON object. A head from a
    journal is sent again byte for byte. RequestHead is not a Struct, because the journal stores a head as one string.
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
        """Decodes a head from its JSON without the closing brace. Raises ValueError if `body` is not the beginning of
        a JSON object.
        """
        fields = json.loads(body + b"}")
        if not isinstance(fields, dict):
            raise ValueError("Expected a JSON object")  # noqa: TRY004 - the class of the decoder's own errors
        return cls(body, fields)

    @property
    def json(self) -> str:
        return self.body.decode() + "}"

    @property
    def max_tokens(self) -> int:
        """The `max_tokens` in the head, or the default value if the head does not contain `max_tokens`."""
        asked = self.fields.get("max_tokens")
        return asked if isinstance(asked, int) else DEFAULT_MAX_TOKENS

    def thinking_off(self) -> RequestHead:
        """A head that asks the model not to think."""
        return RequestHead.of_fields({**self.fields, "thinking": {"type": "disabled"}})

    def asking(self, max_tokens: int | None, *, is_whole: bool = False) -> RequestHead:
        """A head with this `max_tokens`, and without a stream if `is_whole` is True. If `max_tokens` is None, or this head
        has no such field, `max_tokens` is not changed.
        """
        fields = dict(self.fields)
        if max_tokens is not None and "max_tokens" in fields:
            fields["max_tokens"] = max_tokens
        if is_whole:
            fields["stream"] = False
        return self if fields == self.fields else RequestHead.of_fields(fields)


_NO_HEAD = RequestHead(b"", {})


class RequestShape(Struct, frozen=True):
    """The settings for requests to one model, including the tools and the system prompt. `head` makes the request
    head from them.
    """

    model: str
    system: str
    tools: tuple[ToolDefinition, ...]
    max_tokens: int | None = None
    """The longest answer in tokens. None means the default, or the model's maximum if that is lower."""
    effort: str | None = None
    thinking: str | None = None
    """The type of thinking to request. "none" leaves the field out of the request. If it is None, ralph uses the type
    that the model is known to need, or leaves the field out."""
    endpoint: str | None = None
    """The base URL for requests, or None if it is unknown. Thinking is sent only to the endpoint that produced it."""
    recorded_head: RequestHead | None = None
    """A finished request head, for example from the journal of a resumed session. If it is set, `head` returns it and
    ignores the other settings."""

    @property
    def author(self) -> Author:
        """The author of the answers to these requests."""
        return _author(self.model, self.endpoint)

    @property
    def longest_answer(self) -> int:
        """The value of `max_tokens` in the request head."""
        return self.head().max_tokens

    def with_requested(
        self, *, endpoint: str, max_tokens: int | None, effort: str | None, thinking: str | None
    ) -> RequestShape:
        """A copy of this shape. The settings of the current run are written into its recorded head. If a setting is
        None, or `max_tokens` has the default value, it does not change the recorded head.
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
    """A request, in the parts that later requests share. `pieces` makes the JSON of the Messages API from them. `ralph/api/`
    makes that of other APIs.
    """

    head: RequestHead
    packed: tuple[bytes, ...] = ()
    """The older messages, joined into pieces. A comma follows each message. Later requests have the same objects."""
    loose: tuple[bytes, ...] = ()
    """The newer messages. Later requests have the same objects, except for messages with a cache marker."""

    def pieces(self) -> tuple[bytes, ...]:
        """The JSON of the request. The pieces are sent one after the other."""
        head = self.head.body + _OPENS_MESSAGES
        newest = b",".join(self.loose) + b"]}"
        # Each piece is a packet of its own, which the server takes one by one.
        return (head, *self.packed, newest) if self.packed else (head + newest,)


class Conversation(Struct, frozen=True):
    """The head of a request and all messages so far. It is immutable: `plus` returns a longer conversation.

    The JSON of older messages is joined into large pieces, and later requests use the same pieces. So even in a long
    conversation, only the newest messages are copied for a request.
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
    """The bodies of the first `_packed_messages` messages, joined into pieces. A comma follows each body."""
    _packed_messages: int = 0
    _loose_bytes: int = 0
    """The total length of the bodies that are not in `_packed`."""
    _messages_size: int = 0

    @classmethod
    def start(cls, shape: RequestShape) -> Conversation:
        return cls(shape.head(), is_claude(shape.model))

    @property
    def size(self) -> int:
        """An estimate of the tokens of the next request, made from its bytes. It is more likely too high than too
        low. The time to compute it does not depend on the length of the conversation.
        """
        around = len(self.head.body) + len(_OPENS_MESSAGES) + len(self.messages) + len(b"]}")
        if self.marks_cache:
            around += 2 * len(_CACHE_MARKER)
        return tokens_of_bytes(around) + self._messages_size

    @property
    def answered_size(self) -> int | None:
        """An estimate of the tokens of the last request that was answered, made from its bytes. None if there is no
        answer in the conversation.
        """
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
        """A conversation with the same messages and the request head of `shape`."""
        return replace(self, head=shape.head(), marks_cache=is_claude(shape.model))

    def without_thinking(self, reader: Author, *, is_off: bool) -> Conversation:
        """A conversation with the same messages, whose thinking is left out of requests to `reader`. If `is_off` is True,
        the reader is also asked not to think.
        """
        return replace(self, left_out={**self.left_out, reader: LeftOutThinking(len(self.messages), is_off)})

    def thinking_again(self) -> Conversation:
        """A conversation in which every reader may think again. What was left out stays left out."""
        if not any(left.is_off for left in self.left_out.values()):
            return self
        return replace(
            self, left_out={reader: LeftOutThinking(left.messages) for reader, left in self.left_out.items()}
        )

    def emptied(self) -> Conversation:
        """A conversation with the same request head and no messages."""
        return Conversation(self.head, self.marks_cache)

    def is_under(self, shape: RequestShape) -> bool:
        return self.head == shape.head()

    def amended(self, message: Message) -> Conversation:
        """A conversation in which `message` replaces the last message."""
        return self.up_to(len(self.messages) - 1).plus(message)

    def up_to(self, number: int) -> Conversation:
        """A conversation of the first `number` messages. It shares the pieces of this one, and copies no message, unless
        a message that was joined into a piece is left out.
        """
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
        """The body of the next request. `max_tokens` limits the answer. If it is None, the limit in the head stays. If
        `is_whole` is True, the answer is asked for as one JSON object, and not as a stream.

        If `marks_cache` is True, the newest user message and the user message before it get a cache marker each, on
        their last blocks. `system` has a marker too, and the API allows four markers. The older message needs a
        marker because the API looks back only 20 blocks for a cached prefix, and one turn may add more blocks.
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
    """The answer as a message for the next request. None if the answer has no content that can be sent."""
    kept = _sendable(content)
    return _message("assistant", kept, author) if kept else None


def recover_conversation(
    conversation: Conversation, finished: Mapping[str, ToolResult] | None = None
) -> Conversation:
    """The conversation with exactly one `tool_result` for each `tool_use`, so that it can be resumed after a failure.

    `finished` holds known results by call id. They need not be in the conversation yet. If a call has no result in
    `finished` or in the conversation, it gets an error result, which says that the call was not run. Valid messages
    are not changed.
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
    same = sum(1 for _ in takewhile(_is_one_message, zip(conversation.messages, messages, strict=False)))
    recovered = conversation.up_to(same)
    for message in messages[same:]:
        recovered = recovered.plus(message)
    return recovered


def _is_one_message(pair: tuple[Message, Message]) -> bool:
    return pair[0] is pair[1]


def _is_whole(messages: Iterable[Message]) -> bool:
    """Whether every call has exactly one result. Decodes one message at a time, because a long conversation that is
    decoded as a whole takes several times its memory.
    """
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
    """Encodes a value as compact JSON in UTF-8. UTF-8 cannot encode half of a surrogate pair, and the API rejects it.
    Such a half becomes "?".
    """
    return _ENCODER.encode(value).encode("utf-8", "replace")


def make_message(role: Role, content: Iterable[Block], author: Author | None = None) -> Message:
    """Makes a message. Text blocks that are empty or blank are left out, because the API rejects them."""
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
    """Whether a user message has exactly one result for each call id in `asked`, before everything else."""
    content = message.content
    results = [block["tool_use_id"] for block in content if block.get("type") == "tool_result"]
    first = content[: len(asked)]
    return sorted(results) == sorted(asked) and all(block.get("type") == "tool_result" for block in first)


def _with_exact_results(message: Message, asked: tuple[str, ...], done: Mapping[str, Block]) -> Message:
    """A copy of a user message with exactly one result for each call id in `asked`. These results come first in the
    message. All other results are removed.
    """
    if _has_exact_results(message, asked):
        return message
    rest = [block for block in message.content if block.get("type") != "tool_result"]
    return make_message("user", [*(_result_for(call_id, done) for call_id in asked), *rest])
