"""Assembles one assistant message from stream events. No I/O happens here.

A message is complete only when `message_stop` has arrived. Servers interleave the events of different blocks, so each
event is assigned to its block by the field `index`. Unknown events and deltas are ignored. Blocks of unknown types
are kept unchanged.

A stream that breaks a rule of the protocol is accepted with a warning if its tool calls are clear all the same. It is
refused if a call could become another one.

When a block of a tool call ends, the input of the call is parsed. If the input is invalid, the call is marked as
malformed. Ralph never guesses how to repair a broken input. Only for its own tools does it take an input whose meaning is
clear (`clear_object`).
"""

from __future__ import annotations

import json
from bisect import insort
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ralph.api.stream_events import (
    KNOWN_DELTAS,
    BlockDelta,
    BlockStart,
    BlockStop,
    CitationsDelta,
    InputJsonDelta,
    KnownDelta,
    MessageDelta,
    MessageStart,
    MessageStop,
    OtherBlockDelta,
    SignatureDelta,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    WholeMessage,
    check_block,
    checked,
    in_clear_form,
    stream_event,
)
from ralph.values.answer import Answer, Block, MalformedCall, ToolCall, numbered
from ralph.values.errors import StreamParse, StreamTransient
from ralph.values.strict_json import check_encodable, clear_object, strict_json
from ralph.values.tool_choice import MCP_PREFIX
from ralph.values.usage import tokens_of_bytes, with_later_usage

if TYPE_CHECKING:
    from datetime import datetime


_TOOL_INPUT_BLOCKS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
_WORDS = frozenset({"text", "thinking"})
"""The block types that contain only text. No tool call depends on them."""
_KINDS_WITH_DELTAS = _TOOL_INPUT_BLOCKS | _WORDS
"""The block types whose deltas ralph knows."""


class OpenBlock:
    """A content block that has begun and still receives deltas. The constructor raises StreamParse if a field of
    the block has the wrong type.
    """

    def __init__(self, block: Block, index: int, *, is_implied: bool = False, is_again: bool = False) -> None:
        check_block(block)
        self.block = block
        self.index = index
        self.is_implied = is_implied
        """True if no event has begun the block. Its type follows from its first delta."""
        self.is_again = is_again
        self.is_closed = False
        self.malformed: str | None = None
        """The reason why the tool call cannot run, or None if it can run. Set when the block has ended."""
        self.clear_fault: str | None = None
        """The fault in the input of a tool call that can run all the same, because its meaning is clear. None if there is none."""
        self.raw_input = ""
        self.kind: str = block["type"]
        self._fragments: list[str] = []
        self.had_null = self.kind in _WORDS and self.block.get(self.kind, "") is None
        if self.kind in _WORDS and (self.had_null or self.kind not in self.block):
            self.block[self.kind] = ""
        if self.kind == "thinking":
            # Local servers leave the signature out, but a thinking block without that field cannot be sent back.
            self.block.setdefault("signature", "")

    @property
    def is_client_call(self) -> bool:
        """Whether the block is a call of one of ralph's tools. False for a call of a tool that the server runs."""
        return self.kind == "tool_use"

    @property
    def takes_input(self) -> bool:
        """Whether the block is a call of any tool."""
        return self.kind in _TOOL_INPUT_BLOCKS

    @property
    def says_nothing(self) -> bool:
        """Whether the block is a text or thinking without content."""
        return self.kind in _WORDS and not self._fragments and not self.block[self.kind]

    def may_be(self, other: OpenBlock) -> bool:
        """Whether the event that began this block may have begun `other` again."""
        is_equal = self.block == other.block and not other._fragments
        return self.kind == other.kind and (self.says_nothing or is_equal)

    @property
    def streamed_bytes(self) -> int:
        """The number of bytes of text, thinking and tool input in the deltas so far."""
        return sum(len(fragment.encode("utf-8", "replace")) for fragment in self._fragments)

    def extend(self, delta: KnownDelta | dict[str, Any]) -> bool:
        """Adds one delta, and returns True. If ralph does not know the type of the delta or of the block, the block does not
        change. Returns False if the delta belongs to a block of another type, or if its content is null or of a wrong type.
        """
        match delta:
            case TextDelta() if self.kind == "text":
                self._fragments.append(delta.text)
            case InputJsonDelta() if self.kind in _TOOL_INPUT_BLOCKS:
                self._fragments.append(delta.partial_json)
            case ThinkingDelta() if self.kind == "thinking":
                self._fragments.append(delta.thinking)
            case SignatureDelta() if self.kind == "thinking":
                self.block["signature"] = delta.signature
            case CitationsDelta() if self.kind == "text":
                before = self.block.get("citations")
                self.block["citations"] = [*(before if isinstance(before, list) else ()), delta.citation]
            case dict():
                return self._take_other(delta)
            case _:
                return self.kind not in _KINDS_WITH_DELTAS
        return True

    def _take_other(self, delta: dict[str, Any]) -> bool:
        """Adds a delta that has no type of its own here: a malformed one, or a newer one. Returns what `extend` does."""
        if delta.get("type") in KNOWN_DELTAS:
            return self.kind not in _KINDS_WITH_DELTAS
        if delta.get("type") == "compaction_delta" and self.kind == "compaction":
            self.block.update({name: value for name, value in delta.items() if name != "type"})
        return True

    def close(self) -> None:
        self.is_closed = True
        if self.takes_input:
            self._close_input()

    def finish(self) -> None:
        """Completes the text of the block when the message has ended."""
        if self.kind in _WORDS and self._fragments:
            self.block[self.kind] = _joined_surrogates(self.block[self.kind] + "".join(self._fragments))

    def as_call(self) -> ToolCall | MalformedCall:
        if self.malformed is not None:
            return MalformedCall(self.block["id"], self.block["name"], self.raw_input, self.malformed)
        return ToolCall(self.block["id"], self.block["name"], self.block["input"])

    def _close_input(self) -> None:
        self.raw_input = "".join(self._fragments)
        placeholder = self.block.get("input")
        value: Any = {} if placeholder is None else placeholder
        try:
            if self.raw_input.strip():
                value = strict_json(self.raw_input)
            elif value:  # the input arrived when the block began, without deltas
                self.raw_input = json.dumps(value)
            check_encodable(value)
        except (ValueError, RecursionError) as error:
            self.malformed = f"its input is not valid JSON ({error})"
        if self.malformed is None and not isinstance(value, dict):
            self.malformed = f"its input must be a JSON object, got {type(value).__name__}"
        if (
            self.malformed is not None
            and self.is_client_call
            and not self.block["name"].startswith(MCP_PREFIX)
        ):
            with suppress(ValueError, RecursionError):
                value = clear_object(self.raw_input)
                self.clear_fault, self.malformed = self.malformed, None
        # The API requires an object. It documents this form for an input that is not JSON.
        self.block["input"] = value if self.malformed is None else {"INVALID_JSON": self.raw_input}


def _joined_surrogates(text: str) -> str:
    """Joins the two halves of surrogate pairs that arrived in different deltas. A lone surrogate becomes U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _piece(delta: KnownDelta | dict[str, Any]) -> tuple[str, str]:
    """The type of block to which a delta belongs, or the type of a delta that ralph cannot read, and the delta's text."""
    match delta:
        case TextDelta():
            return "text", delta.text
        case ThinkingDelta():
            return "thinking", delta.thinking
        case InputJsonDelta():
            return "tool input", delta.partial_json
        case SignatureDelta():
            return "thinking", ""
        case dict():
            return str(delta.get("type")), ""
        case _:
            return "", ""


NOT_RUNNABLE_STOPS = frozenset({"refusal"})

# The names that OpenAI, Google and Mistral give to stop reasons. Gateways pass them on.
_OTHER_NAMES = {
    **dict.fromkeys(("length", "max_tokens", "max_output_tokens", "model_length"), "max_tokens"),
    "stop": "end_turn",
    **dict.fromkeys(("tool_calls", "function_call", "malformed_function_call"), "tool_use"),
    **dict.fromkeys(("content_filter", "safety", "prohibited_content", "recitation", "sensitive"), "refusal"),
}

# Fields that a `message_delta` may not change.
_NOT_IN_A_DELTA = frozenset({"type", "role", "content", "usage"})

# Fields that the API always sends and other servers may leave out.
_BARE_MESSAGE = {"id": "", "type": "message", "role": "assistant", "model": "", "stop_sequence": None}


_AGAIN = "the server sent message_start more than once, or late"
_ODD_FORM = "the server wrote fields of the answer in another form than the API"
_ODD_PLACE = "the server numbered the blocks of its answer unusually"
_ODD_DELTA = "the server sent parts of its answer in places where they do not belong"
_NO_STOP = "the server did not end each block of its answer"
_SAME_ID = "the server gave several calls one id, or none"


class StreamAssembler:
    """Assembles a message from stream events. The caller passes the events to `feed`, in order. When `is_complete`
    is True, `answer` returns the message.
    """

    def __init__(self, began: datetime | None = None) -> None:
        """`began` is the time at which the answer began. An error in it may name the time of the end of a wait."""
        self._began = began
        self._message: dict[str, Any] | None = None
        self._blocks: list[OpenBlock] = []
        self._at: dict[int, OpenBlock] = {}
        self._apart: dict[tuple[int, str], OpenBlock] = {}
        """Blocks of text whose deltas came for a block of another type, by index and type."""
        self._newest: OpenBlock | None = None
        self._warned: dict[str, None] = {}
        self._has_message_delta = False
        self.is_complete = False

    @property
    def message_id(self) -> str | None:
        """The id of the message, or None if the message has not begun. It is empty if the server gave no id."""
        return None if self._message is None else str(self._message.get("id", ""))

    @property
    def usage(self) -> dict[str, Any]:
        """The API's `usage` object with the token counts so far. It is empty if the message has not begun."""
        return {} if self._message is None else dict(self._message["usage"])

    @property
    def streamed_tokens(self) -> int:
        """The number of tokens of the answer so far, estimated from its bytes. The estimate is more likely too high
        than too low.
        """
        return tokens_of_bytes(sum(block.streamed_bytes for block in self._blocks))

    def feed(self, event: dict[str, Any], *, has_invalid_utf8: bool = False) -> None:
        """Adds one event. `has_invalid_utf8` is True if invalid bytes in the event may have been replaced by
        U+FFFD.

        Ignores events after the end of the message. Raises the error of the server that the event reports. Raises
        StreamParse if the event violates the protocol so that a tool call is in doubt. Raises StreamTransient if
        the beginning of the answer is missing, if another answer begins, or if the input of a tool call contains
        invalid UTF-8.
        """
        if self.is_complete:
            return
        try:
            typed = stream_event(event, self._began)
        except StreamParse as error:
            typed = self._read_in_clear_form(event, error)
        if has_invalid_utf8:
            self._check_damage(typed)
        if self._message is None:
            self._await_beginning(typed, event)
        match typed:
            case BlockDelta() | OtherBlockDelta():
                block = self._at.get(typed.index)
                if block is None or block.is_closed or not block.extend(typed.delta):
                    self._take_odd(typed.index, typed.delta, block)
            case MessageStart():
                self._start_message(typed.message)
            case BlockStart():
                self._start_block(typed)
            case BlockStop():
                self._stop_block(typed.index)
            case MessageDelta():
                self._update_message(typed)
            case MessageStop():
                self._stop_message()

    def answer(self, request_id: str | None = None) -> Answer:
        """The complete answer. Raises StreamTransient if `message_stop` has not arrived."""
        if self._message is None:
            raise StreamTransient("the answer ended before message_start")
        if not self.is_complete:
            raise StreamTransient("the answer ended before message_stop")
        warnings = [*self._warned]
        if not self._has_message_delta:
            warnings.insert(0, "the server sent no message_delta")
        warnings += [
            f"a call of {one.block['name']} was taken for what it means: {one.clear_fault}"
            for one in self._blocks
            if one.clear_fault is not None
        ]
        message = dict(self._message)
        message["content"] = [one.block for one in self._blocks if not (one.is_again and one.says_nothing)]
        if not message.get("stop_reason"):
            message["stop_reason"] = "tool_use" if any(b.is_client_call for b in self._blocks) else "end_turn"
            warnings.append(f"the server gave no stop reason; taken as {message['stop_reason']}")
        stop = str(message["stop_reason"])
        meant = stop_reason_of(stop)
        if meant != stop:
            message["stop_reason"] = meant
            warnings.append(f"the server gave the stop reason {stop!r}; taken as {meant}")
        return Answer(message, self._calls(meant), tuple(warnings), request_id)

    def _read_in_clear_form(self, event: dict[str, Any], error: StreamParse) -> StreamEvent | None:
        """Reads an event of another form than the contract's. Raises `error` if its form leaves a doubt."""
        clear = in_clear_form(event)
        if clear is event:
            raise error
        self._warned[_ODD_FORM] = None
        return stream_event(clear)

    def _await_beginning(self, typed: StreamEvent | None, event: dict[str, Any]) -> None:
        """Begins the message if its first block begins before it. Raises StreamTransient if the beginning is missing."""
        if isinstance(typed, BlockStart):
            self._start_message({})
            self._warned[_AGAIN] = None
        elif typed is not None and not isinstance(typed, MessageStart):
            raise StreamTransient(f"{event['type']} came before message_start")

    def _start_message(self, message: dict[str, Any]) -> None:
        told = {name: value for name, value in message.items() if value is not None and name != "content"}
        usage = told.pop("usage", None)
        told["id"] = str(told.get("id", ""))
        if self._message is None:
            self._message = {**_BARE_MESSAGE, **message, **told, "usage": {}}
        else:
            ids = {self._message["id"], told["id"]} - {""}
            if len(ids) > 1:
                raise StreamTransient("another message began inside the answer")
            self._message |= {**told, "id": "".join(ids)}
            self._warned[_AGAIN] = None
        self._count(usage)

    def _count(self, usage: Any) -> None:
        assert self._message is not None  # noqa: S101 - feed() has checked it
        if isinstance(usage, dict):
            self._message["usage"] = with_later_usage(self._message["usage"], usage)

    def _start_block(self, event: BlockStart) -> None:
        before = self._at.get(event.index)
        block = OpenBlock(event.content_block, event.index, is_again=before is not None)
        if block.had_null:
            self._warned[_ODD_FORM] = None
        if event.index != len(self._blocks):
            self._warned[_ODD_PLACE] = None
        if before is not None:
            if before.is_implied:
                raise StreamParse(f"block {event.index} began after its first delta")
            if not before.is_closed and block.may_be(before):
                return
            if before.is_client_call and before.block.get("id") == block.block.get("id"):
                raise StreamParse(f"the call in block {event.index} began twice")
            if not before.is_closed:
                self._close_unstopped(before)
        self._at[event.index] = self._added(block)

    def _added(self, block: OpenBlock) -> OpenBlock:
        insort(self._blocks, block, key=attrgetter("index"))
        self._newest = block
        return block

    def _take_odd(self, index: int, delta: KnownDelta | dict[str, Any], block: OpenBlock | None) -> None:
        """Takes a delta that does not fit the newest block of its index, or whose block has ended or never began.

        Text and thinking get a block of their own if there is none. A delta without content is left out. Raises
        StreamParse if the delta may be a part of the input of a call.
        """
        kind, said = _piece(delta)
        # Null adds nothing.
        if (
            isinstance(delta, dict)
            and kind in KNOWN_DELTAS
            and None not in (delta.get(name, "") for name in ("text", "thinking", "partial_json"))
        ):
            checked(delta, KnownDelta)  # raises
        home = block if block is not None and block.kind == kind else self._apart.get((index, kind))
        if kind in _WORDS and block is None:
            home = self._at[index] = self._added(OpenBlock({"type": kind}, index, is_implied=True))
        elif home is None and said.strip():
            if kind not in _WORDS or block is None or block.kind not in _WORDS:
                where = "was not started" if block is None else f"is a {block.kind} block"
                closed = " that has ended" if block is not None and block.is_closed else ""
                raise StreamParse(f"a part of {kind} came for block {index}, which {where}{closed}")
            home = self._apart[index, kind] = self._added(OpenBlock({"type": kind}, index, is_implied=True))
        if home is not None:
            home.extend(delta)
        self._warned[_ODD_DELTA] = None

    def _stop_block(self, index: int) -> None:
        block = self._at.get(index)
        if block is None or block.is_closed:
            self._warned[_ODD_PLACE] = None
        else:
            block.close()

    def _close_unstopped(self, block: OpenBlock) -> None:
        block.close()
        if block.takes_input and (block.malformed is not None or not block.raw_input.strip()):
            raise StreamParse(f"the call in block {block.index} was not ended")
        self._warned[_NO_STOP] = None

    def _check_damage(self, event: StreamEvent | None) -> None:
        """Raises StreamTransient if the input of a tool call contains invalid UTF-8, because this call must not
        run. Invalid UTF-8 in text only gives the answer a warning.
        """
        match event:
            case BlockStart():
                tool_input = str(event.content_block.get("input"))
            case BlockDelta(delta=InputJsonDelta(partial_json=tool_input)):
                pass
            case _:
                tool_input = ""
        if "\ufffd" in tool_input:
            raise StreamTransient("invalid UTF-8 inside a tool's input")
        self._warned["the answer held invalid UTF-8, shown as U+FFFD"] = None

    def _update_message(self, event: MessageDelta) -> None:
        assert self._message is not None  # noqa: S101 - feed() has checked it
        self._has_message_delta = True
        news = {name: value for name, value in event.delta.items() if name not in _NOT_IN_A_DELTA}
        news["context_management"] = event.context_management
        news["input_transformations"] = event.input_transformations
        if news.get("stop_reason"):
            # Stop details from an earlier delta belong to another stop reason.
            self._message.pop("stop_details", None)
            self._message["stop_sequence"] = None
        else:
            news["stop_reason"] = None
        # A null changes nothing. For example, an earlier stop reason stays, and the container that message_start named.
        self._message |= {name: value for name, value in news.items() if value is not None}
        self._count(event.usage)

    def _stop_message(self) -> None:
        assert self._message is not None  # noqa: S101 - feed() has checked it
        stop_reason = self._message.get("stop_reason")
        for block in self._blocks:
            if not block.is_closed:
                if not stop_reason:
                    raise StreamParse(f"message_stop came while block {block.index} was open")
                if stop_reason_of(str(stop_reason)) == "max_tokens" and block is self._newest:
                    block.close()
                else:
                    self._close_unstopped(block)
            block.finish()
        self._give_ids()
        self.is_complete = True

    def _give_ids(self) -> None:
        """Gives each call an id of its own. Raises StreamParse if two calls without different ids are equal,
        because the second one may repeat the first.
        """
        calls = [block.block for block in self._blocks if block.is_client_call]
        ids = {call.get("id") for call in calls}
        if len(ids) == len(calls) and all(ids):
            return
        told: list[tuple[Any, ...]] = []
        for call in calls:
            own = call.get("id")
            if (own, call["name"], call["input"]) in told:
                raise StreamParse(f"the call {own!r} came twice in one answer")
            if not own or any(own == earlier for earlier, *_ in told):
                call["id"] = next(name for name in numbered(own or "call") if name not in ids)
                ids.add(call["id"])
                self._warned[_SAME_ID] = None
            told.append((own, call["name"], call["input"]))

    def _calls(self, stop_reason: str) -> tuple[ToolCall | MalformedCall, ...]:
        if stop_reason in NOT_RUNNABLE_STOPS:
            return ()
        calls = []
        for block in self._blocks:
            if block.is_client_call:
                # A call that was cut off by max_tokens may be valid JSON by chance. It is the last block, and must not run.
                if stop_reason == "max_tokens" and block in (self._blocks[-1], self._newest):
                    block.malformed = "the answer reached max_tokens inside this call"
                calls.append(block.as_call())
        return tuple(calls)


def answer_from_message(
    message: dict[str, Any], request_id: str | None = None, *, has_invalid_utf8: bool = False
) -> Answer:
    """The answer from a complete message that a server sent as one JSON object, although a stream was requested.
    `has_invalid_utf8` and the errors are as in `StreamAssembler.feed`.
    """
    assembler = StreamAssembler()
    content = checked(message, WholeMessage).content or []
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    assembler.feed({"type": "message_start", "message": {**message, "content": []}})
    for index, block in enumerate(content):
        begin = {"type": "content_block_start", "index": index, "content_block": block}
        assembler.feed(begin, has_invalid_utf8=has_invalid_utf8)
        assembler.feed({"type": "content_block_stop", "index": index})
    assembler.feed({"type": "message_delta", "delta": {}})
    assembler.feed({"type": "message_stop"})
    return assembler.answer(request_id)


def stop_reason_of(word: str) -> str:
    """The Messages API's name for a stop reason, which may be another vendor's word."""
    return _OTHER_NAMES.get(word.lower(), word)
