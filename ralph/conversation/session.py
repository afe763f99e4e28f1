"""The state of a session, and the one function that changes it: `apply(session, record)`. Pure.

The run that writes a record applies it, and so does who reads the journal later: a resumed session is what the live one
was. The records, in the order of one turn: `assistant` (whole), then for each call `tool_intent` and `tool_result`. When
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
    from collections.abc import Callable, Iterable, Mapping, Sequence

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


NO_SHAPE = RequestShape("", "", ())


class Session(Struct, frozen=True):
    """The state to which the records so far lead. Empty: nothing was recorded."""

    id: str = ""
    cwd: str = ""
    created_at: str = ""
    shape: RequestShape = NO_SHAPE
    """The model and the head of requests of the target that answered last."""
    conversation: Conversation = Conversation(b"", marks_cache=False)
    """All committed messages, under that head; `reading` tells what of them that model is sent."""
    reading: Reading = field(default_factory=lambda: Reading(NO_SHAPE))
    """The part of the conversation that this target is sent."""
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
    session = Session()
    try:
        for record in records:
            if not session.created_at and record.kind != "session":
                raise SessionError("it does not begin as a session's journal does")
            session = apply(session, record.kind, record.fields)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, AgentError) as error:
        raise SessionError(f"a record of it makes no sense ({type(error).__name__}: {error})") from error
    if session.shape is NO_SHAPE or not session.conversation.messages:
        raise NoMessageError("it ends before its first message")
    return session


def asking(session: Session, target: str, shape: RequestShape) -> Session:
    """The session, as it asks this target from here on."""
    return _ask_in(replace(session, shapes={**session.shapes, target: shape}), shape)


_CONTINUES = frozenset({"queued", "user", "assistant", "tool_intent", "tool_result", "compacted"})
"""Records after which the end before them is no longer where the session is."""


def apply(session: Session, kind: str, fields: Mapping[str, Any]) -> Session:
    """The session after one more record. Records of unknown kinds change nothing: a newer ralph may have written them.

    Raises LookupError, TypeError, ValueError, AttributeError and AgentError for fields that no run writes.
    """
    if kind in _CONTINUES:
        report = session.report if kind == "tool_result" else None
        session = replace(session, ended=None, report=report)
    change = _CHANGES.get(kind)
    return session if change is None else change(session, fields)


def _open(session: Session, fields: Mapping[str, Any]) -> Session:
    refuse_newer(fields)
    return replace(session, id=fields["id"], cwd=fields["cwd"], created_at=fields["created_at"])


def _begin_run(session: Session, fields: Mapping[str, Any]) -> Session:
    session = _ask(session, fields)
    return replace(session, cooling={}, first=session.target, writable=tuple(fields.get("writable", ())))


def _turn_to(session: Session, fields: Mapping[str, Any]) -> Session:
    session = replace(session, cooling=fields["cooling"], first=fields.get("first", session.first))
    if "head" in fields:
        return _ask(session, fields)
    target = fields["target"]
    return replace(_ask_in(session, session.shapes[target]), target=target)


def _ask(session: Session, fields: Mapping[str, Any]) -> Session:
    """Another target, or the same one with another head. Format 1 names neither target nor endpoint."""
    head = fields["head"].encode()[:-1]
    shape = RequestShape(fields["model"], "", (), endpoint=fields.get("endpoint"), recorded_head=head)
    target = fields.get("target") or shape.model
    return replace(asking(session, target, shape), target=target)


def _ask_in(session: Session, shape: RequestShape) -> Session:
    conversation = session.conversation.under(shape)
    return replace(session, shape=shape, reading=Reading(shape), conversation=conversation)


def _take_queued(session: Session, fields: Mapping[str, Any]) -> Session:
    return replace(session, queued=tuple(fields["content"]))


def _take_user(session: Session, fields: Mapping[str, Any]) -> Session:
    message = user_message(fields["content"])
    if not message.content:
        raise ValueError("a message without content")
    old: tuple[Block, ...] = ()
    tasks = session.tasks
    if fields.get("amends"):
        old = session.conversation.messages[-1].content
        conversation = session.conversation.amended(message)
        tasks = tuple(tasks_after(tasks, old, message.content))
    else:
        conversation = session.conversation.plus(message)
    session = replace(_without_answer(session), conversation=conversation)
    opening = _opening_of(fields, old)
    if task := users_own(opening):
        tasks = (*tasks, task)
    if opening:  # it begins a turn of its own
        session = replace(session, queued=(), turn_state=TurnState())
    return replace(session, tasks=tasks)


def _take_intent(session: Session, fields: Mapping[str, Any]) -> Session:
    change = fields.get("change")
    intent = FileChange(**change) if change else None
    return replace(session, intents={**session.intents, fields["id"]: intent})


def _take_event(session: Session, fields: Mapping[str, Any]) -> Session:
    event = fields["event"]
    if event.get("subtype") == "attempt" and not _is_unanswered(event):
        return _answered_by(session, session.shapes.get(event["target"]))
    return session


def _answered_by(session: Session, shape: RequestShape | None) -> Session:
    if shape is None or shape.endpoint is None or shape.endpoint in session.answered:
        return session
    return replace(session, answered=session.answered | {shape.endpoint})


def _end(session: Session, fields: Mapping[str, Any]) -> Session:
    return replace(session, ended=fields, is_delivered=fields.get("delivered", True))


def _deliver(session: Session, fields: Mapping[str, Any]) -> Session:
    return replace(session, is_delivered=fields["state"] != Delivery.FAILED.value)


def _take_answer(session: Session, fields: Mapping[str, Any]) -> Session:
    message = fields["message"]
    author = None if session.shape is NO_SHAPE else session.shape.author
    committed = assistant_message(message["content"], author)
    size = committed.size if committed is not None else 0
    meter = _counted(session, tokens_of(message["usage"]), size)
    session = _answered_by(replace(session, meter=meter), session.shape)
    if committed is not None:
        call_ids = session.call_ids.union(committed.tool_use_ids)
        session = replace(session, conversation=session.conversation.plus(committed), call_ids=call_ids)
    blocks = {block["id"]: block for block in message["content"] if block.get("type") == "tool_use"}
    malformed = {
        name: MalformedCall(name, blocks[name]["name"], raw, why)
        for name, (raw, why) in fields["malformed"].items()
    }
    calls = tuple(
        malformed.get(name) or ToolCall(name, blocks[name]["name"], blocks[name]["input"])
        for name in fields["calls"]
    )
    return replace(_without_answer(session), answer=Answer(message, calls, request_id=fields["request_id"]))


def _start_afresh(session: Session, fields: Mapping[str, Any]) -> Session:
    session = _without_answer(session)
    return replace(
        session,
        conversation=session.conversation.emptied().plus(user_message(fields["content"])),
        is_afresh=True,
        summary=fields["summary"],
        meter=session.meter.afresh(),
        turn_state=replace(session.turn_state, said=""),  # the model does not know what it had begun to say
    )


def _counted(session: Session, tokens: TokenUsage, answer_size: int) -> ContextMeter:
    if session.shape is NO_SHAPE:
        return session.meter
    model = session.shape.model
    sent = session.reading.of(session.conversation).size
    return session.meter.counted(model, tokens.prompt, sent).answered(model, tokens.output, answer_size)


def _take_result(session: Session, fields: Mapping[str, Any]) -> Session:
    result = ToolResult.of_block(dict(fields))
    session = replace(
        session,
        results={**session.results, result.tool_use_id: result},
        report=_report_in(session, result),
        changed_files=_changed_by(session, result),
        seen={**session.seen, **fields["seen"]} if "seen" in fields else session.seen,
    )
    asked = session.conversation.messages[-1].tool_use_ids
    if not all(name in session.results for name in asked):
        return session
    blocks = [session.results[name].as_block() for name in asked]
    conversation = session.conversation.plus(user_message(blocks))
    return replace(_without_answer(session), conversation=conversation)


def _report_in(session: Session, result: ToolResult) -> Mapping[str, Any] | None:
    calls = {call.id: call for call in (session.answer.calls if session.answer is not None else ())}
    call = calls.get(result.tool_use_id)
    is_report = isinstance(call, ToolCall) and call.name == FINAL_REPORT and not result.output.is_error
    return call.arguments if is_report and isinstance(call, ToolCall) else session.report


def _changed_by(session: Session, result: ToolResult) -> tuple[str, ...]:
    change = session.intents.get(result.tool_use_id)
    is_real = change is not None and change.is_real and not result.output.is_error
    if change is None or not is_real or change.path in session.changed_files:
        return session.changed_files
    return (*session.changed_files, change.path)


def _without_answer(session: Session) -> Session:
    """Something follows it: what it means for the turn is the past now."""
    state = session.turn_state
    if session.answer is not None:
        state, _ = next_step(state, session.answer)
    return replace(session, turn_state=state, answer=None, results={}, intents={})


_CHANGES: Mapping[str, Callable[[Session, Mapping[str, Any]], Session]] = {
    "session": _open,
    "run": _begin_run,
    "target": _turn_to,
    "queued": _take_queued,
    "user": _take_user,
    "assistant": _take_answer,
    "tool_intent": _take_intent,
    "tool_result": _take_result,
    "compacted": _start_afresh,
    "event": _take_event,
    "ended": _end,
    "delivery": _deliver,
}
"""By a record's kind."""


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
