"""The conversation: append-only messages, encoded once, and their repair after a final failure.

A committed message is never edited: the prompt cache and the signatures of thinking blocks depend on the exact
bytes. Source of the invariants: section 4 of the Messages API reference.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from ralph.conversation.context_size import content_size, tokens_of_bytes
from ralph.values.models import DEFAULT_MAX_TOKENS, facts_of, is_claude, max_tokens_for
from ralph.values.tool_calls import ToolOutput, ToolResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from anthropic.types import TextBlockParam, ToolParam

    from ralph.values.tool_calls import Block, ToolDefinition

Role = Literal["user", "assistant"]

_OPENS_MESSAGES = b',"messages":['
THINKING = frozenset({"thinking", "redacted_thinking"})
_CACHE_MARKER = b',"cache_control":{"type":"ephemeral"}'
# Every message's bytes end with its last block, its content list and itself.
_MESSAGE_TAIL = b"}]}"

# Copying this much for a request costs nothing to speak of; each piece is one more system call.
_PIECE_BYTES = 128 * 1024
# Never packed: the two newest user messages carry cache markers, and ten pauses may put answers between them.
_ALWAYS_LOOSE = 14

NOT_RUN = "This call was not run: the run ended first. Check the state of things before you repeat it."


class Author(NamedTuple):
    """The model that wrote an assistant message, and the server at which it ran."""

    model: str
    endpoint: str | None = None
    """The base URL; None: unknown."""


class Message(Struct, frozen=True, dict=True, weakref=True):
    """One committed message. `body` is its JSON for the request, encoded once."""

    role: Role
    content: tuple[Block, ...]
    body: bytes
    author: Author | None = None
    """The author of an assistant message; None: unknown, or a user message."""

    @cached_property
    def size(self) -> int:
        """Estimated tokens, at least as many as the message really has."""
        return content_size(self.content, len(self.body))

    @property
    def tool_use_ids(self) -> tuple[str, ...]:
        return tuple(block["id"] for block in self.content if block.get("type") == "tool_use")

    @property
    def thinks(self) -> bool:
        return any(block.get("type") in THINKING for block in self.content)

    @property
    def tool_result_ids(self) -> tuple[str, ...]:
        return tuple(block["tool_use_id"] for block in self.content if block.get("type") == "tool_result")


class RequestHead:
    """The JSON of a request up to its messages, without the closing brace: its bytes, and its decoded fields.

    A recorded head is sent again byte for byte. Immutable; not a Struct, because a journal stores it as one string.
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
        """The head from its bytes. Raises ValueError unless they are a JSON object."""
        fields = json.loads(body + b"}")
        if not isinstance(fields, dict):
            raise ValueError("Expected a JSON object")  # noqa: TRY004 - as the decoder's own errors
        return cls(body, fields)

    @property
    def json(self) -> str:
        return self.body.decode() + "}"

    @property
    def max_tokens(self) -> int:
        asked = self.fields.get("max_tokens")
        return asked if isinstance(asked, int) else DEFAULT_MAX_TOKENS

    def with_max_tokens(self, max_tokens: int | None) -> RequestHead:
        """The head with this limit. Unchanged if `max_tokens` is None, or the head has no limit of its own."""
        if max_tokens is None or self.fields.get("max_tokens", max_tokens) == max_tokens:
            return self
        return RequestHead.of_fields({**self.fields, "max_tokens": max_tokens})


_NO_HEAD = RequestHead(b"", {})


class RequestShape(Struct, frozen=True):
    """The part of a request that stays the same, byte for byte, within a context and a model."""

    model: str
    system: str
    tools: tuple[ToolDefinition, ...]
    max_tokens: int | None = None
    """The longest answer in tokens; None: the default, or the model's maximum if that is less."""
    effort: str | None = None
    thinking: str | None = None
    """The type of thinking to request. "none": the field is left out. None: the type that the model is known to
    need."""
    endpoint: str | None = None
    """The base URL that requests go to; None: unknown. Thinking without a signature is valid only there."""
    recorded_head: RequestHead | None = None
    """The head from a resumed session's journal, sent again byte for byte; it overrides the other fields."""

    @property
    def author(self) -> Author:
        """The author of answers to this request."""
        return Author(self.model, self.endpoint)

    @property
    def longest_answer(self) -> int:
        """The `max_tokens` in the request head."""
        return self.head().max_tokens

    def with_requested(
        self, *, endpoint: str, max_tokens: int | None, effort: str | None, thinking: str | None
    ) -> RequestShape:
        """The shape with a recorded head that is changed by the settings of this run.

        Settings that were left at their defaults stay as recorded, byte for byte.
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


RequestBody = tuple[bytes, ...]
"""A request's JSON in pieces, which are sent one after the other."""


class Conversation(Struct, frozen=True):
    """The head of a request and the messages so far. Immutable: `plus` returns a longer conversation.

    Old messages are joined into pieces that are reused, so that each request copies only what is new, however long
    the conversation is.
    """

    head: RequestHead = _NO_HEAD
    marks_cache: bool = False
    messages: tuple[Message, ...] = ()
    thinkers: frozenset[Author] = frozenset()
    """The authors of the thinking blocks in the messages."""
    _packed: RequestBody = ()
    """The bodies of the first `_packed_messages` messages, each with a comma after it."""
    _packed_messages: int = 0
    _loose_bytes: int = 0
    """Length of the bodies that are not in `_packed`."""
    _messages_size: int = 0

    @classmethod
    def start(cls, shape: RequestShape) -> Conversation:
        return cls(shape.head(), is_claude(shape.model))

    @property
    def size(self) -> int:
        """Estimated tokens of the next request, at least as many as it really has. Takes constant time."""
        around = len(self.head.body) + len(_OPENS_MESSAGES) + len(self.messages) + len(b"]}")
        if self.marks_cache:
            around += 2 * len(_CACHE_MARKER)
        return tokens_of_bytes(around) + self._messages_size

    def plus(self, message: Message) -> Conversation:
        if message.author is not None and message.author not in self.thinkers and message.thinks:
            return replace(self, thinkers=self.thinkers | {message.author}).plus(message)
        messages = (*self.messages, message)
        messages_size = self._messages_size + message.size
        loose_bytes = self._loose_bytes + len(message.body)
        newest = messages[max(self._packed_messages, len(messages) - _ALWAYS_LOOSE) :]
        newest_bytes = sum(len(new.body) for new in newest)
        if loose_bytes - newest_bytes < _PIECE_BYTES:
            return replace(self, messages=messages, _loose_bytes=loose_bytes, _messages_size=messages_size)
        end = len(messages) - len(newest)
        piece = b"".join(old.body + b"," for old in messages[self._packed_messages : end])
        return replace(
            self,
            messages=messages,
            _packed=(*self._packed, piece),
            _packed_messages=end,
            _loose_bytes=newest_bytes,
            _messages_size=messages_size,
        )

    def under(self, shape: RequestShape) -> Conversation:
        """The conversation with the head of `shape`."""
        return replace(self, head=shape.head(), marks_cache=is_claude(shape.model))

    def emptied(self) -> Conversation:
        """The conversation without its messages."""
        return Conversation(self.head, self.marks_cache)

    def is_under(self, shape: RequestShape) -> bool:
        return self.head == shape.head()

    def amended(self, message: Message) -> Conversation:
        """The conversation with its last message, which has no answer yet, replaced by `message`."""
        amended = self.emptied()
        for kept in (*self.messages[:-1], message):
            amended = amended.plus(kept)
        return amended

    def request_body(self, max_tokens: int | None = None) -> RequestBody:
        """The body of the next request. `max_tokens`: the longest answer; None: the head's own limit.

        Cache markers stand on the last block of the newest user message and of the user message before it. Together
        with the marker on `system`, they are three of the four markers that the API allows. The older marker keeps a
        cache hit possible when one turn adds more than the 20 blocks that the API looks back.
        """
        loose = self.messages[self._packed_messages :]
        bodies = [message.body for message in loose]
        if self.marks_cache:
            users = [index for index, message in enumerate(loose) if message.role == "user"]
            for index in users[-2:]:
                bodies[index] = bodies[index].removesuffix(_MESSAGE_TAIL) + _CACHE_MARKER + _MESSAGE_TAIL
        head = self.head.with_max_tokens(max_tokens).body + _OPENS_MESSAGES
        return (head, *self._packed, b",".join(bodies) + b"]}")


def text_blocks(text: str) -> list[Block]:
    return [{"type": "text", "text": text}]


def user_message(content: str | Iterable[Block]) -> Message:
    return make_message("user", text_blocks(content) if isinstance(content, str) else content)


def assistant_message(content: Iterable[Block], author: Author | None = None) -> Message | None:
    """The answer as a message for the next request; None: it is empty, so there is nothing to send."""
    message = make_message("assistant", content, author)
    return message if message.content else None


def recover_conversation(
    conversation: Conversation, finished: Mapping[str, ToolResult] | None = None
) -> Conversation:
    """The conversation, repaired after a final failure so that it can be resumed: every `tool_use` has its
    `tool_result`.

    `finished` holds the results of tools that ran but were not committed; they are always kept. A call without a
    result gets an error that it was not run. Valid messages stay the same objects, byte for byte.
    """
    found = {
        block["tool_use_id"]: block
        for message in reversed(conversation.messages)
        if message.role == "user"  # what a server put into an answer is no result of ours
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
    if list(map(id, messages)) == list(map(id, conversation.messages)):
        return conversation
    recovered = conversation.emptied()
    for message in messages:
        recovered = recovered.plus(message)
    return recovered


def to_json(value: object) -> bytes:
    """Compact JSON. A lone surrogate, which UTF-8 cannot encode and the API refuses, becomes "?"."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def make_message(role: Role, content: Iterable[Block], author: Author | None = None) -> Message:
    """A message without empty text blocks, which the API refuses."""
    kept = tuple(block for block in content if not _is_empty_text(block))
    return Message(role, kept, to_json({"role": role, "content": kept}), author)


def _is_empty_text(block: Block) -> bool:
    return block.get("type") == "text" and not str(block.get("text", "")).strip()


def _results_message(call_ids: Iterable[str], done: Mapping[str, Block]) -> Message:
    return make_message("user", [_result_for(call_id, done) for call_id in call_ids])


def not_run(call_id: str) -> ToolResult:
    return ToolResult(call_id, ToolOutput(NOT_RUN, is_error=True))


def _result_for(call_id: str, done: Mapping[str, Block]) -> Block:
    return done.get(call_id) or not_run(call_id).as_block()


def _with_exact_results(message: Message, asked: tuple[str, ...], done: Mapping[str, Block]) -> Message:
    """The message with exactly one result for each call in `asked`, at its beginning, and without any other results."""
    first = message.content[: len(asked)]
    if sorted(message.tool_result_ids) == sorted(asked) and all(
        block.get("type") == "tool_result" for block in first
    ):
        return message
    rest = [block for block in message.content if block.get("type") != "tool_result"]
    return make_message("user", [*(_result_for(call_id, done) for call_id in asked), *rest])
