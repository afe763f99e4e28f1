"""A session as its journal tells it: the state that its records lead back to. Pure.

The records, in the order of one turn: `assistant` (whole), then for each call `tool_intent` and `tool_result`. When
every call has its result, the results are the next user message; no record repeats them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from ralph.conversation.context_size import ContextMeter
from ralph.conversation.journal_lines import FORMAT
from ralph.conversation.messages import Conversation, RequestShape, assistant_message, user_message
from ralph.conversation.next_step import TurnState, next_step
from ralph.conversation.notices import CONTINUE
from ralph.conversation.reading import Reading
from ralph.conversation.records import tasks_after, users_own
from ralph.values.answer import Answer, MalformedCall
from ralph.values.errors import AgentError
from ralph.values.outcome import Delivery, Outcome
from ralph.values.tool_calls import FINAL_REPORT, FileChange, ToolCall, ToolDefinition, ToolResult
from ralph.values.usage import tokens_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ralph.conversation.journal_lines import Record
    from ralph.values.tool_calls import Block
    from ralph.values.usage import TokenUsage


class SessionError(Exception):
    """A journal that is readable and still cannot be resumed: one line."""


class NewerFormatError(SessionError):
    """Written by a ralph that knows more than this one."""


class NoMessageError(SessionError):
    """Its run was killed before there was anything to resume."""


def refuse_newer(opening: Mapping[str, Any]) -> None:
    """Raises NewerFormatError, by the fields of the `session` record."""
    if opening["format"] > FORMAT:
        raise NewerFormatError(
            f"it was made by ralph {opening['ralph']} in format {opening['format']}; this one reads up to {FORMAT}"
        )


class Session(Struct, frozen=True):
    """The state to which the records of a journal lead."""

    id: str
    cwd: str
    created_at: str
    shape: RequestShape
    """The model and the head of requests of the target that answered last."""
    conversation: Conversation
    """All committed messages, under that head; `conversation/reading.py` tells what of them that model is sent."""
    answer: Answer | None = None
    """The last message, where the model has it and nothing has followed it yet."""
    results: Mapping[str, ToolResult] = field(default_factory=dict)
    """The results that calls of that answer already have."""
    intents: Mapping[str, FileChange | None] = field(default_factory=dict)
    """The calls of that answer that were about to run."""
    turn_state: TurnState = field(default_factory=TurnState)
    """The state left by answers before that one, or before the next one."""
    ended: Mapping[str, Any] | None = None
    """How the last run ended, and nothing has followed; None: it was killed, or is still running."""
    is_delivered: bool = True
    """False: that run's result has not reached anybody, as far as is known."""
    call_ids: frozenset[str] = frozenset()
    """Every call's id so far."""
    target: str = ""
    """The name of that target."""
    first: str = ""
    """The name of the last run's first target."""
    shapes: Mapping[str, RequestShape] = field(default_factory=dict)
    """The head that each target was sent, by name, in the last run that asked it."""
    cooling: Mapping[str, str] = field(default_factory=dict)
    """When the cooldown of each target ends, as the last run recorded it (RFC 3339)."""
    queued: tuple[Block, ...] = ()
    """Messages that the user sent while calls were pending, and the model has not received yet."""
    writable: tuple[str, ...] = ()
    """Directories besides the working directory in which the last run's file tools could write."""
    tasks: tuple[tuple[Block, ...], ...] = ()
    """Every prompt of the user's, in order."""
    changed_files: tuple[str, ...] = ()
    """The files that file tools changed, in the order of their first change."""
    report: Mapping[str, Any] | None = None
    """The arguments of a final report that was accepted, where nothing has followed it."""
    is_afresh: bool = False
    """This context has followed another one."""
    summary: str = ""
    """The model's, of what came before this context."""
    meter: ContextMeter = field(default_factory=ContextMeter)
    """The counts of servers in this context."""
    answered: frozenset[str] = frozenset()
    """Base URLs of the endpoints that have answered, with an error at least."""
    seen: Mapping[str, str] = field(default_factory=dict)
    """The content that the model last knew of each path, as `ToolOutput.seen` has it."""

    @property
    def is_completed(self) -> bool:
        """Nothing is pending, not even the delivery of the answer: a resume needs a prompt."""
        return self.has_ended_as(Outcome.COMPLETED) and self.is_delivered and not self.queued

    @property
    def awaits_delivery(self) -> bool:
        """The work is done, and its answer is what is pending."""
        return self.has_ended_as(Outcome.COMPLETED) and not self.is_delivered and not self.queued

    def has_ended_as(self, outcome: Outcome) -> bool:
        return self.ended is not None and self.ended.get("outcome") == outcome.value

    @property
    def offered_tools(self) -> frozenset[str]:
        """The names of the tools in the requests to the last run's first target."""
        return frozenset(tool["name"] for tool in self._offered())

    def offered_tool(self, name: str) -> ToolDefinition | None:
        found = (tool for tool in self._offered() if tool["name"] == name)
        return next((ToolDefinition(name, tool["description"], tool["input_schema"]) for tool in found), None)

    def _offered(self) -> Sequence[Mapping[str, Any]]:
        head = (self.shapes[self.first].recorded_head or b"{") + b"}"
        tools: Sequence[Mapping[str, Any]] = json.loads(head).get("tools", ())
        return tools


def replay(records: Iterable[Record]) -> Session:
    """Raises SessionError for records that no run writes in this order, NewerFormatError for a newer format."""
    replaying = _Replay()
    try:
        for record in records:
            replaying.take(record.kind, record.fields)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, AgentError) as error:
        raise SessionError(f"a record of it makes no sense ({type(error).__name__}: {error})") from error
    return replaying.session()


_GOES_ON = frozenset({"queued", "user", "assistant", "tool_intent", "tool_result", "compacted"})
"""Records after which the end before them is no longer where the session is."""


class _Replay:
    """One method for each kind of record that changes the state."""

    def __init__(self) -> None:
        self._opening: Mapping[str, Any] = {}
        self._shape: RequestShape | None = None
        self._target = ""
        self._first = ""
        self._shapes: dict[str, RequestShape] = {}
        self._reading: Reading | None = None
        """The part of the conversation that the present target is sent."""
        self._cooling: Mapping[str, str] = {}
        self._queued: tuple[Block, ...] = ()
        self._writable: tuple[str, ...] = ()
        self._conversation = Conversation(b"", marks_cache=False)
        self._answer: Answer | None = None
        self._results: dict[str, ToolResult] = {}
        self._intents: dict[str, FileChange | None] = {}
        self._turn_state = TurnState()
        self._ended: Mapping[str, Any] | None = None
        self._is_delivered = True
        self._call_ids: set[str] = set()
        self._seen: dict[str, str] = {}
        self._tasks: list[tuple[Block, ...]] = []
        self._changed_files: dict[str, None] = {}
        self._report: Mapping[str, Any] | None = None
        self._is_afresh = False
        self._summary = ""
        self._meter = ContextMeter()
        self._answered: set[str] = set()

    def take(self, kind: str, fields: Mapping[str, Any]) -> None:
        if not self._opening and kind != "session":
            raise SessionError("it does not begin as a session's journal does")
        if kind in _GOES_ON:
            self._ended = None
        if kind in _GOES_ON and kind != "tool_result":
            self._report = None
        take = {
            "session": self._open,
            "run": self._begin_run,
            "target": self._turn_to,
            "queued": self._take_queued,
            "user": self._take_user,
            "assistant": self._take_answer,
            "tool_intent": self._take_intent,
            "tool_result": self._take_result,
            "compacted": self._start_afresh,
            "event": self._note_event,
            "ended": self._end,
            "delivery": self._note_delivery,
        }.get(kind)
        if take is not None:
            take(fields)

    def session(self) -> Session:
        if not self._opening or self._shape is None or not self._conversation.messages:
            raise NoMessageError("it ends before its first message")
        return Session(
            id=self._opening["id"],
            cwd=self._opening["cwd"],
            created_at=self._opening["created_at"],
            shape=self._shape,
            conversation=self._conversation,
            answer=self._answer,
            results=self._results,
            intents=self._intents,
            turn_state=self._turn_state,
            ended=self._ended,
            is_delivered=self._is_delivered,
            call_ids=frozenset(self._call_ids),
            target=self._target,
            first=self._first,
            shapes=self._shapes,
            cooling=self._cooling,
            queued=self._queued,
            writable=self._writable,
            answered=frozenset(self._answered),
            seen=self._seen,
            tasks=tuple(self._tasks),
            changed_files=tuple(self._changed_files),
            report=self._report,
            is_afresh=self._is_afresh,
            summary=self._summary,
            meter=self._meter,
        )

    def _open(self, fields: Mapping[str, Any]) -> None:
        refuse_newer(fields)
        self._opening = fields

    def _begin_run(self, fields: Mapping[str, Any]) -> None:
        self._cooling = {}
        self._ask(fields)
        self._first = self._target
        self._writable = tuple(fields.get("writable", ()))

    def _turn_to(self, fields: Mapping[str, Any]) -> None:
        self._cooling = fields["cooling"]
        self._first = fields.get("first", self._first)
        if "head" in fields:
            self._ask(fields)
        else:
            self._target = fields["target"]
            self._ask_in(self._shapes[self._target])

    def _ask(self, fields: Mapping[str, Any]) -> None:
        """Another target, or the same one with another head. Format 1 names neither target nor endpoint."""
        head = fields["head"].encode()[:-1]
        shape = RequestShape(fields["model"], "", (), endpoint=fields.get("endpoint"), recorded_head=head)
        self._target = fields.get("target") or shape.model
        self._shapes[self._target] = shape
        self._ask_in(shape)

    def _ask_in(self, shape: RequestShape) -> None:
        self._shape, self._reading = shape, Reading(shape)
        self._conversation = self._conversation.under(shape)

    def _take_queued(self, fields: Mapping[str, Any]) -> None:
        self._queued = tuple(fields["content"])

    def _take_user(self, fields: Mapping[str, Any]) -> None:
        message = user_message(fields["content"])
        if not message.content:
            raise ValueError("a message without content")
        old: tuple[Block, ...] = ()
        if fields.get("amends"):
            old = self._conversation.messages[-1].content
            self._conversation = self._conversation.amended(message)
            self._tasks = tasks_after(self._tasks, old, message.content)
        else:
            self._conversation = self._conversation.plus(message)
        self._close_answer()
        opening = _opening_of(fields, old)
        if opening:  # it begins a turn of its own
            self._queued = ()
            self._turn_state = TurnState()
        if task := users_own(opening):
            self._tasks.append(task)

    def _take_intent(self, fields: Mapping[str, Any]) -> None:
        change = fields.get("change")
        self._intents[fields["id"]] = FileChange(**change) if change else None

    def _note_event(self, fields: Mapping[str, Any]) -> None:
        event = fields["event"]
        if event.get("subtype") == "attempt" and not _is_unanswered(event):
            self._note_answered(self._shapes.get(event["target"]))

    def _note_answered(self, shape: RequestShape | None) -> None:
        if shape is not None and shape.endpoint is not None:
            self._answered.add(shape.endpoint)

    def _end(self, fields: Mapping[str, Any]) -> None:
        self._ended = fields
        self._is_delivered = fields.get("delivered", True)

    def _note_delivery(self, fields: Mapping[str, Any]) -> None:
        self._is_delivered = fields["state"] != Delivery.FAILED.value

    def _take_answer(self, fields: Mapping[str, Any]) -> None:
        message = fields["message"]
        self._note_answered(self._shape)
        committed = assistant_message(message["content"], self._shape.author if self._shape else None)
        self._count(tokens_of(message["usage"]), committed.size if committed is not None else 0)
        if committed is not None:
            self._conversation = self._conversation.plus(committed)
            self._call_ids.update(committed.tool_use_ids)
        blocks = {block["id"]: block for block in message["content"] if block.get("type") == "tool_use"}
        malformed = {
            name: MalformedCall(name, blocks[name]["name"], raw, why)
            for name, (raw, why) in fields["malformed"].items()
        }
        calls = tuple(
            malformed.get(name) or ToolCall(name, blocks[name]["name"], blocks[name]["input"])
            for name in fields["calls"]
        )
        self._close_answer()
        self._answer = Answer(message, calls, request_id=fields["request_id"])

    def _start_afresh(self, fields: Mapping[str, Any]) -> None:
        self._conversation = self._conversation.emptied().plus(user_message(fields["content"]))
        self._is_afresh = True
        self._summary = fields["summary"]
        self._meter = self._meter.afresh()
        self._close_answer()
        self._turn_state = replace(
            self._turn_state, said=""
        )  # the model does not know what it had begun to say

    def _note_report(self, result: ToolResult) -> None:
        calls = {call.id: call for call in (self._answer.calls if self._answer is not None else ())}
        call = calls.get(result.tool_use_id)
        if isinstance(call, ToolCall) and call.name == FINAL_REPORT and not result.output.is_error:
            self._report = call.arguments

    def _count(self, tokens: TokenUsage, answer_size: int) -> None:
        if self._shape is not None and self._reading is not None:
            model = self._shape.model
            counted = self._meter.counted(model, tokens.prompt, self._reading.of(self._conversation).size)
            self._meter = counted.answered(model, tokens.output, answer_size)

    def _take_result(self, fields: Mapping[str, Any]) -> None:
        result = self._results[fields["tool_use_id"]] = ToolResult.of_block(dict(fields))
        self._note_report(result)
        change = self._intents.get(result.tool_use_id)
        if change is not None and change.is_real and not result.output.is_error:
            self._changed_files[change.path] = None
        self._seen |= fields.get("seen", {})
        asked = self._conversation.messages[-1].tool_use_ids
        if all(name in self._results for name in asked):
            blocks = [self._results[name].as_block() for name in asked]
            self._conversation = self._conversation.plus(user_message(blocks))
            self._close_answer()

    def _close_answer(self) -> None:
        """Something follows it: what it means for the turn is the past now."""
        if self._answer is not None:
            self._turn_state, _ = next_step(self._turn_state, self._answer)
        self._answer = None
        self._results = {}
        self._intents = {}


def _is_unanswered(attempt: Mapping[str, Any]) -> bool:
    """Not even a status came. A clock that fires may have done so before or after one: then nothing is known."""
    return attempt["status"] is None and attempt["kind"] in {"network", "timeout", "interrupted"}


def _opening_of(fields: Mapping[str, Any], old: Sequence[Block]) -> tuple[Block, ...]:
    """The part of a `user` record that begins a task. `old`: the message that it replaces. Formats before 3
    do not mark it: there it is new content that is no result and not in the middle of an answer.
    """
    content: list[Block] = fields["content"]
    if "task" in fields:
        return tuple(content[len(content) - fields["task"] :]) if fields["task"] else ()
    return tuple(
        block
        for block in content[sum(block in content for block in old) :]
        if block.get("type") != "tool_result" and block.get("text") != CONTINUE
    )
