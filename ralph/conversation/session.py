"""The state of a session, and `apply(session, record)`, the state after one more record. A run applies what it writes,
and resuming applies the same records again.

The records of a turn are `assistant`, then `tool_intent` and `tool_result` for each call. The results of all calls
become the next user message, which needs no record. The open answer is the last answer until a message follows it, with the
results of its calls so far.

`Reading` selects the part of a conversation that one model can read. It gets no thinking of another model, which has
signed it for itself, nor thinking that its server has refused. The journal keeps both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from ralph.conversation import records as kinds
from ralph.conversation.messages import (
    THINKING,
    Author,
    Conversation,
    GrowingMapping,
    GrowingSequence,
    LeftOutThinking,
    Message,
    RequestHead,
    RequestShape,
    assistant_message,
    make_message,
    to_json,
    user_message,
)
from ralph.conversation.next_step import CONTINUE, LIMIT_LIFTED, TurnState, next_step
from ralph.conversation.records import (
    AssistantRecord,
    CompactedRecord,
    IntentRecord,
    Record,
    ResultRecord,
    SessionError,
    UserRecord,
)
from ralph.values.answer import (
    BASH_OUTPUT,
    COMMANDS,
    FINAL_REPORT,
    KILL_BASH,
    FileChange,
    ToolCall,
    ToolDefinition,
    ToolResult,
)
from ralph.values.outcome import Delivery, Outcome
from ralph.values.usage import ContextMeter, TokenUsage, tokens_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ralph.values.answer import Answer, Block, FileChange, ToolResult


class NoMessageError(SessionError):
    """The run was killed before it recorded a message, so the session cannot be resumed."""


NO_SHAPE = RequestShape("", "", ())


class Session(Struct, frozen=True):
    """The defaults are the state before the first record."""

    id: str = ""
    cwd: str = ""
    created_at: str = ""
    shape: RequestShape = NO_SHAPE
    """The settings for requests to the current target, its request head among them."""
    conversation: Conversation = Conversation()
    """The messages of the current context, with the request head of the current target."""
    reading: Reading = field(default_factory=lambda: Reading(NO_SHAPE))
    pending: OpenAnswer | None = None
    """The last answer, if no message follows it."""
    turn_state: TurnState = field(default_factory=TurnState)
    """The state of the turn before the pending answer, or now if there is none."""
    ended: kinds.EndedRecord | None = None
    """The end of the last run. None if it was killed or still runs, or if the session went on."""
    is_delivered: bool = True
    """False if a delivery failed, or if no record about it follows the end of the run."""
    call_ids: GrowingMapping[None] = GrowingMapping()
    """The ids of all calls so far, as keys."""
    target: str = ""
    first: str = ""
    """The preferred target of the last run."""
    shapes: Mapping[str, RequestShape] = field(default_factory=dict)
    """The last request shape of each target, by the target's name."""
    cooling: Mapping[str, str] = field(default_factory=dict)
    """By target, the end of its cooldown (RFC 3339), until which it is not asked."""
    queued: tuple[Block, ...] = ()
    """A user message that waits for the results of the last answer's calls."""
    tool_patterns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """As in `RunRecord`."""
    writable: tuple[str, ...] = ()
    """Further directories in which file tools of the last run could write."""
    tasks: GrowingSequence[tuple[Block, ...]] = GrowingSequence()
    """All prompts of the user, in order."""
    changed_files: GrowingMapping[None] = GrowingMapping()
    """The files that file tools have changed, as keys in the order of their first change."""
    report: Mapping[str, Any] | None = None
    """The arguments of the accepted final report, until the session goes on."""
    is_afresh: bool = False
    """Whether the context was compacted, so that `conversation` lacks earlier messages."""
    summary: str = ""
    """The model's last summary of earlier contexts, or empty."""
    meter: ContextMeter = field(default_factory=ContextMeter)
    answered: frozenset[str] = frozenset()
    """Base URLs of the endpoints that have answered, even if only with an error."""
    moved_from: str | None = None
    """The earlier working directory, until an answer comes after a move."""
    background: kinds.BackgroundRecord = kinds.BackgroundRecord(count=0, running={})
    gone_commands: Mapping[str, str] = field(default_factory=dict)
    """The background commands, by id, that ran when an earlier run ended. Empty after the next answer."""
    seen: GrowingMapping[str] = GrowingMapping()
    """The files that the model has seen, each with its last content, as in `ToolOutput.seen`."""

    @property
    def is_completed(self) -> bool:
        """Whether the session can be resumed only with a new prompt: its result is delivered, and no message waits."""
        return self.has_ended_as(Outcome.COMPLETED) and self.is_delivered and not self.queued

    @property
    def awaits_delivery(self) -> bool:
        """As `is_completed`, but the result is not delivered."""
        return self.has_ended_as(Outcome.COMPLETED) and not self.is_delivered and not self.queued

    def has_ended_as(self, outcome: Outcome) -> bool:
        return self.ended is not None and self.ended.outcome == outcome.value

    @property
    def answer(self) -> Answer | None:
        return None if self.pending is None else self.pending.answer

    @property
    def results(self) -> Mapping[str, ToolResult]:
        """By call id, those of the pending answer."""
        return {} if self.pending is None else self.pending.results

    @property
    def intents(self) -> Mapping[str, FileChange | None]:
        """By call id, those of the pending answer."""
        return {} if self.pending is None else self.pending.intents

    @property
    def offered_tools(self) -> frozenset[str]:
        """The names of the tools in requests to the preferred target. With an older ralph's Bash, the tools that it
        lacked count too.
        """
        names = frozenset(tool["name"] for tool in self._offered())
        bash = self.offered_tool(COMMANDS)
        is_older = bash is not None and "run_in_background" not in bash.input_schema.get("properties", {})
        return names | {BASH_OUTPUT, KILL_BASH} if is_older else names

    def offered_tool(self, name: str) -> ToolDefinition | None:
        found = (tool for tool in self._offered() if tool["name"] == name)
        return next((ToolDefinition(name, tool["description"], tool["input_schema"]) for tool in found), None)

    def _offered(self) -> Sequence[Mapping[str, Any]]:
        tools: Sequence[Mapping[str, Any]] = self.shapes[self.first].head().fields.get("tools", ())
        return tools


def replay(records: Iterable[Record]) -> Session:
    """The state after all records. Raises SessionError if the first one is no `session` record, if one is impossible
    at its position, or if there is no message.
    """
    session = folded(records)
    if session.shape is NO_SHAPE or not session.conversation.messages:
        raise NoMessageError("it ends before its first message")
    return session


def folded(records: Iterable[Record]) -> Session:
    """As `replay`, but the records need not contain a message."""
    session, without_moves = Session(), 0
    for seq, record in enumerate(records):
        if not seq:
            if not isinstance(record, kinds.SessionRecord):
                raise SessionError("it does not begin as a session's journal does")
            without_moves = record.without_moves
        if isinstance(record, kinds.MovedRecord) and seq <= without_moves:
            continue
        try:
            session = apply(session, record)
        except NonsenseError as error:
            raise SessionError(f"line {seq + 1} makes no sense: {error}") from error
    return session


def asking(session: Session, target: str, shape: RequestShape) -> Session:
    """The session with `shape` for the current requests, and as that of `target`."""
    return _ask_in(replace(session, shapes={**session.shapes, target: shape}), shape)


_CONTINUES = frozenset(
    {
        kinds.QueuedRecord,
        kinds.UserRecord,
        kinds.AssistantRecord,
        kinds.IntentRecord,
        kinds.ResultRecord,
        kinds.CompactedRecord,
    }
)
"""They continue a session behind an `ended` record."""


def apply(session: Session, record: Record) -> Session:
    """A record of an unknown kind has no effect. Raises NonsenseError if the record is impossible here."""
    if type(record) in _CONTINUES:
        # They belong to the answer that contains the report.
        keeps_report = isinstance(record, kinds.IntentRecord | kinds.ResultRecord)
        report = session.report if keeps_report else None
        if session.ended is not None or report is not session.report:
            session = replace(session, ended=None, report=report)
    change = _CHANGES.get(type(record))
    return session if change is None else change(session, record)


def _move(session: Session, record: kinds.MovedRecord) -> Session:
    """The session in another directory, to which known paths and the system prompts of its heads move."""
    old, new = session.cwd, record.directory
    origin = old if session.moved_from is None else session.moved_from

    def moved(path: str) -> str:
        return new + path[len(old) :] if path == old or path.startswith(f"{old}/") else path

    pending = session.pending
    if pending is not None:
        intents = {
            call_id: None if change is None else replace(change, path=moved(change.path))
            for call_id, change in pending.intents.items()
        }
        pending = replace(pending, intents=intents)
    return replace(
        session,
        cwd=new,
        moved_from=None if origin == new else origin,
        pending=pending,
        writable=tuple(map(moved, session.writable)),
        changed_files=GrowingMapping((moved(path), None) for path in session.changed_files),
        seen=GrowingMapping((moved(path), state) for path, state in session.seen.items()),
        **_heads_in(session, new),
    )


def _heads_in(session: Session, cwd: str) -> dict[str, Any]:

    def moved(shape: RequestShape) -> RequestShape:
        said, says = (to_json(f"Working directory: {where}\n")[1:-1] for where in (session.cwd, cwd))
        head = RequestHead.of_body(shape.head().body.replace(said, says, 1))
        return replace(shape, recorded_head=head)

    if session.shape is NO_SHAPE:
        return {}
    shape = moved(session.shape)
    return {
        "shape": shape,
        "shapes": {name: moved(each) for name, each in session.shapes.items()},
        "conversation": session.conversation.under(shape),
        "reading": Reading(shape),
    }


def _begin_run(session: Session, record: kinds.RunRecord) -> Session:
    session = _ask(session, record.target, record.model, record.endpoint, record.head)
    background = session.background
    return replace(
        session,
        background=replace(background, running={}),
        gone_commands={**session.gone_commands, **background.running},
        cooling={},
        first=session.target,
        writable=record.writable,
        tool_patterns=record.tool_patterns,
    )


def _turn_to(session: Session, record: kinds.TargetRecord) -> Session:
    session = replace(session, cooling=record.cooling, first=record.first or session.first)
    if record.head is not None and record.model is not None:
        return _ask(session, record.target, record.model, record.endpoint, record.head)
    if record.target not in session.shapes:
        raise NonsenseError(f"nobody has named the target {record.target!r}")
    return replace(_ask_in(session, session.shapes[record.target]), target=record.target)


def _ask(session: Session, target: str, model: str, endpoint: str | None, head: RequestHead) -> Session:
    shape = RequestShape(model, "", (), endpoint=endpoint, recorded_head=head)
    return replace(asking(session, target, shape), target=target)


def _ask_in(session: Session, shape: RequestShape) -> Session:
    conversation = session.conversation.under(shape)
    return replace(session, shape=shape, reading=Reading(shape), conversation=conversation)


def _take_user(session: Session, record: kinds.UserRecord) -> Session:
    message = user_message(record.content)
    messages = session.conversation.messages
    if not message.content or (record.amends and not messages):
        raise NonsenseError("a message without content, or in the place of none")
    old: tuple[Block, ...] = ()
    tasks = session.tasks
    if record.amends:
        old = messages[-1].content
        conversation = session.conversation.amended(message)
        tasks = _tasks_after(tasks, old, message.content)
    else:
        conversation = session.conversation.plus(message)
    if not any(block.get("type") == "tool_result" for block in message.content):
        conversation = conversation.thinking_again()
    session = replace(_without_answer(session), conversation=conversation)
    opening = _opening_of(record, old)
    # Without ralph's own notices, these are the blocks that the user wrote.
    if task := tuple(block for block in opening if block.get("text") != LIMIT_LIFTED):
        tasks = tasks.plus(task)
    if opening:  # the message begins a new turn
        session = replace(session, queued=(), turn_state=TurnState())
    return replace(session, tasks=tasks)


def _tasks_after(
    tasks: GrowingSequence[tuple[Block, ...]], old: Sequence[Block], new: Sequence[Block]
) -> GrowingSequence[tuple[Block, ...]]:
    """The prompts without the images that are in `old`, but not in `new`, the content that replaces it."""
    gone = [block for block in old if block.get("type") == "image" and block not in new]
    if not gone:
        return tasks
    kept = (tuple(block for block in task if block not in gone) for task in tasks)
    return GrowingSequence(task for task in kept if task)


def _opening_of(record: kinds.UserRecord, old: Sequence[Block]) -> tuple[Block, ...]:
    """The blocks that begin a task in a user message whose content replaces `old`, or empty. Records of formats 1 and 2
    do not say: then those that are not in `old`, except results and the request to continue a cut-off answer.
    """
    content = record.content
    if record.task is not None:
        return content[len(content) - record.task :]
    return tuple(
        block
        for block in content[sum(block in content for block in old) :]
        if block.get("type") != "tool_result" and block.get("text") != CONTINUE
    )


def _take_event(session: Session, record: kinds.EventRecord) -> Session:
    attempt = record.event
    if not record.is_attempt:
        return session
    if attempt["status"] is None and attempt["kind"] in {"network", "timeout", "interrupted"}:
        return session  # the server gave no sign of an answer
    return _answered_by(session, session.shapes.get(attempt["target"]))


def _answered_by(session: Session, shape: RequestShape | None) -> Session:
    if shape is None or shape.endpoint is None or shape.endpoint in session.answered:
        return session
    return replace(session, answered=session.answered | {shape.endpoint})


def _take_answer(session: Session, record: kinds.AssistantRecord) -> Session:
    author = None if session.shape is NO_SHAPE else session.shape.author
    committed = assistant_message(record.blocks, author)
    size = committed.size if committed is not None else 0
    conversation, call_ids = session.conversation, session.call_ids
    if committed is not None:
        conversation = conversation.plus(committed)
        call_ids = call_ids.plus(dict.fromkeys(committed.tool_use_ids))
    return replace(
        _answered_by(session, session.shape),
        moved_from=None,
        gone_commands={},
        meter=_counted(session, tokens_of(record.message["usage"]), size),
        conversation=conversation,
        call_ids=call_ids,
        turn_state=_state_behind(session.turn_state, session.answer),
        pending=open_answer(None, record),
    )


def _start_afresh(session: Session, record: kinds.CompactedRecord) -> Session:
    session = _without_answer(session)
    return replace(
        session,
        conversation=session.conversation.emptied().plus(user_message(record.content)),
        is_afresh=True,
        summary=record.summary,
        meter=session.meter.afresh(),
        turn_state=replace(session.turn_state, said=""),  # the new context lacks the answer that was cut off
    )


def _leave_out_thinking(session: Session, record: kinds.ThinkingRecord) -> Session:
    reader = Author(record.model, record.endpoint)
    conversation = session.conversation.without_thinking(reader, is_off=record.is_off)
    return replace(session, conversation=conversation)


def _counted(session: Session, tokens: TokenUsage, answer_size: int) -> ContextMeter:
    if session.shape is NO_SHAPE:
        return session.meter
    model = session.shape.model
    sent = session.reading.of(session.conversation).size
    return session.meter.counted(model, tokens.prompt, sent).answered(model, tokens.output, answer_size)


def _take_result(session: Session, record: kinds.ResultRecord) -> Session:
    pending, conversation, turn_state = (
        open_answer(session.pending, record),
        session.conversation,
        session.turn_state,
    )
    if pending is not None and pending.is_over:
        results = [pending.results[call_id].as_block() for call_id in pending.answer.call_ids]
        conversation = conversation.plus(user_message(results))
        turn_state = _state_behind(turn_state, pending.answer)
        pending = None
    change = session.intents.get(record.tool_use_id)
    is_real = change is not None and change.is_real and not record.is_error
    return replace(
        session,
        report=_report_in(session, record),
        changed_files=session.changed_files.plus({change.path: None})
        if change and is_real
        else session.changed_files,
        seen=session.seen.plus(record.seen),
        conversation=conversation,
        turn_state=turn_state,
        pending=pending,
    )


def _report_in(session: Session, record: kinds.ResultRecord) -> Mapping[str, Any] | None:
    if session.answer is None or record.is_error:
        return session.report
    reports = (
        call.arguments
        for call in session.answer.calls
        if call.id == record.tool_use_id and isinstance(call, ToolCall) and call.name == FINAL_REPORT
    )
    return next(reports, session.report)


def _without_answer(session: Session) -> Session:
    return replace(session, turn_state=_state_behind(session.turn_state, session.answer), pending=None)


def _state_behind(state: TurnState, answer: Answer | None) -> TurnState:
    return state if answer is None else next_step(state, answer)[0]


def _note_background(session: Session, record: kinds.BackgroundRecord) -> Session:
    """The session with the commands that run now. They were not gone: their run has got another task."""
    gone = {one: line for one, line in session.gone_commands.items() if one not in record.running}
    return replace(session, background=record, gone_commands=gone)


_CHANGES: Mapping[type[Record], Callable[[Session, Any], Session]] = {
    kinds.SessionRecord: lambda session, record: replace(
        session, id=record.id, cwd=record.first_directory, created_at=record.created_at
    ),
    kinds.MovedRecord: _move,
    kinds.RunRecord: _begin_run,
    kinds.TargetRecord: _turn_to,
    kinds.QueuedRecord: lambda session, record: replace(session, queued=record.content),
    kinds.UserRecord: _take_user,
    kinds.AssistantRecord: _take_answer,
    kinds.IntentRecord: lambda session, record: replace(
        session, pending=open_answer(session.pending, record)
    ),
    kinds.ResultRecord: _take_result,
    kinds.CompactedRecord: _start_afresh,
    kinds.ThinkingRecord: _leave_out_thinking,
    kinds.EventRecord: _take_event,
    kinds.BackgroundRecord: _note_background,
    kinds.EndedRecord: lambda session, record: replace(session, ended=record, is_delivered=record.delivered),
    kinds.DeliveryRecord: lambda session, record: replace(
        session, is_delivered=record.state is not Delivery.FAILED
    ),
}


# --- What one model can read, and the open answer


class Reading:
    """Keeps the last conversation that it made for the model, so that only new messages need time."""

    def __init__(self, shape: RequestShape) -> None:
        self._shape = shape
        self._forget()

    def _forget(self) -> None:
        self._read = GrowingSequence[Message]()
        """The messages from which `_view` was made."""
        self._view = Conversation.start(self._shape)
        self._left_out = 0
        """The number of messages whose thinking `_view` lacks, because the server has refused it."""

    def of(self, conversation: Conversation) -> Conversation:
        """The conversation with the model's own head, and without the blocks that it cannot read."""
        shape = self._shape
        left = conversation.left_out.get(shape.author, _NOTHING)
        is_whole = all(_reads_thinking_of(author, shape.author) for author in conversation.thinkers)
        if is_whole and not left.messages:
            self._forget()  # the remembered messages may belong to an earlier context
            return conversation if conversation.head == shape.head() else conversation.under(shape)
        if not conversation.messages.begins_with(self._read) or self._left_out != left.messages:
            self._forget()  # the end of the conversation was repaired, its last message was replaced, or more is left out
        self._left_out = left.messages
        for index in range(len(self._read), len(conversation.messages)):
            readable = _readable_part(
                conversation.messages[index], shape.author, is_left_out=index < left.messages
            )
            if readable is not None:
                self._view = self._view.plus(readable)
        self._read = conversation.messages
        if not left.is_off:
            return self._view
        without = {**shape.head().fields, "thinking": {"type": "disabled"}}
        return replace(self._view, head=RequestHead.of_fields(without))


_NOTHING = LeftOutThinking(0)


def _readable_part(message: Message, reader: Author, *, is_left_out: bool) -> Message | None:
    """The message without the thinking that `reader` cannot read, or without any. None if nothing remains."""
    author = message.author
    if not message.thinks or not (is_left_out or (author and not _reads_thinking_of(author, reader))):
        return message
    kept = [block for block in message.content if block.get("type") not in THINKING]
    return make_message(message.role, kept, author) if kept else None


def _reads_thinking_of(author: Author, reader: Author) -> bool:
    """Whether `reader` and `author` are the same model on the same server, as far as the servers are known."""
    is_one_place = None in (author.endpoint, reader.endpoint) or author.endpoint == reader.endpoint
    return author.model == reader.model and is_one_place


class NonsenseError(Exception):
    """A record is impossible at its position. The message is one line."""


class OpenAnswer(Struct, frozen=True):
    answer: Answer
    ids: frozenset[str]
    """Those of all its calls."""
    results: GrowingMapping[ToolResult] = GrowingMapping()
    """By call id."""
    closed: int = 0
    """The number of calls with results."""
    intents: GrowingMapping[FileChange | None] = GrowingMapping()
    """By call id, each with the planned change of a file, or None."""

    @property
    def open_calls(self) -> tuple[Block, ...]:
        """The calls without a result, malformed ones too."""
        return tuple(
            block
            for block in self.answer.content
            if block.get("type") == "tool_use" and block["id"] not in self.results
        )

    @property
    def is_over(self) -> bool:
        """Whether all calls have results, which then form the next message."""
        return 0 < len(self.ids) == self.closed


_COUNTS = frozenset({AssistantRecord, IntentRecord, ResultRecord, UserRecord, CompactedRecord})


def open_answer(before: OpenAnswer | None, record: Record) -> OpenAnswer | None:
    """The open answer after `record`, or None. Raises NonsenseError for a result that belongs to no call of it."""
    if type(record) not in _COUNTS:
        return before
    match record:
        case AssistantRecord():
            return OpenAnswer(record.answer, frozenset(record.answer.call_ids))
        case IntentRecord() if before is not None:
            return replace(before, intents=before.intents.plus({record.id: record.change}))
        case ResultRecord():
            if before is None or before.is_over or record.tool_use_id not in before.ids:
                raise NonsenseError("the result of no call")
            results = before.results.plus({record.tool_use_id: record.result})
            return replace(
                before, results=results, closed=before.closed + (record.tool_use_id not in before.results)
            )
        case UserRecord() | CompactedRecord():
            return None
    return before
