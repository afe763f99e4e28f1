"""A session as its journal tells it: the records a run writes, and the state they lead back to. Pure.

The records, in the order of one turn: `assistant` (whole), then for each call `tool_intent` and `tool_result`. When
every call has its result, the results are the next user message; no record repeats them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ralph.core.answer import Answer, MalformedCall
from ralph.core.conversation import Conversation, RequestShape, assistant_message, user_message
from ralph.core.errors import AgentError
from ralph.core.journal_lines import FORMAT
from ralph.core.next_step import CONTINUE, TurnState, next_step
from ralph.core.outcome import Outcome
from ralph.core.tool_calls import FileChange, ToolCall, ToolResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ralph.core.conversation import Message
    from ralph.core.events import RunEnded
    from ralph.core.journal_lines import Record

Entry = tuple[str, dict[str, Any]]
"""A record's kind and fields, before it has a number."""


class SessionError(Exception):
    """A journal that is readable and still cannot be resumed: one line."""


class NewerFormatError(SessionError):
    """Written by a ralph that knows more than this one."""


class NoMessageError(SessionError):
    """Its run was killed before it had anything to go on with."""


def session_entry(
    session_id: str, cwd: str, created_at: str, version: str, forked_from: str | None = None
) -> Entry:
    fields: dict[str, Any] = {
        "format": FORMAT,
        "ralph": version,
        "id": session_id,
        "cwd": cwd,
        "created_at": created_at,
    }
    return "session", fields if forked_from is None else {**fields, "forked_from": forked_from}


def fork_entries(records: Iterable[Record], session_id: str, created_at: str, version: str) -> list[Entry]:
    """A new session that begins with everything of an old one."""
    opening, *rest = records
    first = session_entry(session_id, opening.fields["cwd"], created_at, version, opening.fields["id"])
    return [first, *((record.kind, dict(record.fields)) for record in rest)]


def refuse_newer(opening: Mapping[str, Any]) -> None:
    """Raises NewerFormatError, by the fields of the `session` record."""
    if opening["format"] > FORMAT:
        raise NewerFormatError(
            f"it was made by ralph {opening['ralph']} in format {opening['format']}; this one reads up to {FORMAT}"
        )


def last_run(records: Iterable[Record]) -> Mapping[str, Any] | None:
    """The fields of the newest `run` record."""
    runs = [record.fields for record in records if record.kind == "run"]
    return runs[-1] if runs else None


def run_entry(shape: RequestShape, started_at: str, process_id: int) -> Entry:
    """`head` is every request's beginning, kept whole: what a model is sent must not change under it."""
    return "run", {
        "started_at": started_at,
        "pid": process_id,
        "model": shape.model,
        "head": shape.head().decode() + "}",
    }


def user_entry(message: Message, *, amends: bool = False) -> Entry:
    """`amends`: it takes the place of the last user message, which nothing has answered yet."""
    fields: dict[str, Any] = {"content": list(message.content)}
    return "user", {**fields, "amends": True} if amends else fields


def assistant_entry(answer: Answer) -> Entry:
    malformed = {call.id: [call.raw, call.reason] for call in answer.calls if isinstance(call, MalformedCall)}
    runnable = [call.id for call in answer.calls]
    return "assistant", {
        "message": answer.message,
        "request_id": answer.request_id,
        "calls": runnable,
        "malformed": malformed,
    }


def intent_entry(call: ToolCall, change: FileChange | None) -> Entry:
    fields: dict[str, Any] = {"id": call.id, "name": call.name}
    if change is not None:
        fields["change"] = {"path": change.path, "before": change.before, "after": change.after}
    return "tool_intent", fields


def result_entry(result: ToolResult) -> Entry:
    """The block as the API gets it."""
    return "tool_result", result.as_block()


def event_entry(fields: Mapping[str, Any]) -> Entry:
    """One of `stream-json`'s, in a room of its own: its `kind` is not the record's."""
    return "event", {"event": dict(fields)}


def ended_entry(ended: RunEnded) -> Entry:
    return "ended", {
        "outcome": ended.outcome.value,
        "exit_code": ended.exit_code,
        "result": ended.result,
        "errors": list(ended.errors),
        "num_turns": ended.num_turns,
        "duration_s": round(ended.duration_s, 3),
        "cost_usd": ended.usage.cost_usd,
    }


@dataclass(frozen=True)
class Session:
    """Where a journal has got to."""

    id: str
    cwd: str
    created_at: str
    shape: RequestShape
    """Of the last run: its model, and the head of its requests."""
    conversation: Conversation
    """All committed messages, under the head of the last run."""
    answer: Answer | None = None
    """The last message, where the model has it and nothing has followed it yet."""
    results: Mapping[str, ToolResult] = field(default_factory=dict)
    """Of that answer's calls, those that have one."""
    intents: Mapping[str, FileChange | None] = field(default_factory=dict)
    """Of that answer's calls, those that were about to run."""
    turn_state: TurnState = field(default_factory=TurnState)
    """What answers before that one, or before the next one, left behind."""
    ended: Mapping[str, Any] | None = None
    """How the last run ended; None: it was killed, or is still running."""
    call_ids: frozenset[str] = frozenset()
    """Every call's id so far."""

    @property
    def is_completed(self) -> bool:
        """Nothing is pending: going on needs a prompt."""
        return self.ended is not None and self.ended.get("outcome") == Outcome.COMPLETED.value


def replay(records: Iterable[Record]) -> Session:
    """Raises SessionError for records that no run writes in this order, NewerFormatError for a newer format."""
    replaying = _Replay()
    try:
        for record in records:
            replaying.take(record.kind, record.fields)
    except (KeyError, TypeError, ValueError, AttributeError, AgentError) as error:
        raise SessionError(f"a record of it makes no sense ({type(error).__name__}: {error})") from error
    return replaying.session()


class _Replay:
    """One method for each kind of record that changes the state."""

    def __init__(self) -> None:
        self._opening: Mapping[str, Any] = {}
        self._shape: RequestShape | None = None
        self._conversation = Conversation(b"", marks_cache=False)
        self._answer: Answer | None = None
        self._results: dict[str, ToolResult] = {}
        self._intents: dict[str, FileChange | None] = {}
        self._turn_state = TurnState()
        self._ended: Mapping[str, Any] | None = None
        self._call_ids: set[str] = set()

    def take(self, kind: str, fields: Mapping[str, Any]) -> None:
        if not self._opening and kind != "session":
            raise SessionError("it does not begin as a session's journal does")
        match kind:
            case "session":
                self._open(fields)
            case "run":
                self._begin_run(fields)
            case "user":
                message = user_message(fields["content"])
                grown = self._conversation.amended(message) if fields.get("amends") else None
                self._conversation = grown or self._conversation.plus(message)
                self._close_answer()
                if message.content[-1].get("text") != CONTINUE:  # a prompt begins a turn of its own
                    self._turn_state = TurnState()
            case "assistant":
                self._take_answer(fields)
            case "tool_intent":
                change = fields.get("change")
                self._intents[fields["id"]] = FileChange(**change) if change else None
            case "tool_result":
                self._take_result(fields)
            case "ended":
                self._ended = fields

    def session(self) -> Session:
        if not self._opening or self._shape is None or not self._conversation.messages:
            raise NoMessageError("it ends before its first message")
        return Session(
            self._opening["id"],
            self._opening["cwd"],
            self._opening["created_at"],
            self._shape,
            self._conversation,
            self._answer,
            self._results,
            self._intents,
            self._turn_state,
            self._ended,
            frozenset(self._call_ids),
        )

    def _open(self, fields: Mapping[str, Any]) -> None:
        refuse_newer(fields)
        self._opening = fields

    def _begin_run(self, fields: Mapping[str, Any]) -> None:
        shape = RequestShape(fields["model"], "", (), recorded_head=fields["head"].encode()[:-1])
        if self._shape is not None and shape.model != self._shape.model:
            self._conversation = self._conversation.without_thinking()
        self._conversation = self._conversation.under(shape)
        self._shape = shape
        self._ended = None

    def _take_answer(self, fields: Mapping[str, Any]) -> None:
        message = fields["message"]
        committed = assistant_message(message["content"])
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

    def _take_result(self, fields: Mapping[str, Any]) -> None:
        self._results[fields["tool_use_id"]] = ToolResult.of_block(dict(fields))
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
