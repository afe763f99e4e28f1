"""The records of a session's journal, one type per kind, and the functions by which a run makes them. Pure.

Fields have the names and the order of the JSON; a field that has its default value is left out.
`conversation/session.py` defines what a record means, `conversation/journal_lines.py` reads and writes lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

from msgspec import Struct
from msgspec.structs import replace

from ralph.conversation.messages import RequestHead  # noqa: TC001 - records are read by their hints
from ralph.values.answer import Answer, MalformedCall
from ralph.values.outcome import Delivery
from ralph.values.tool_calls import Block, FileChange, ToolCall, ToolOutput, ToolResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ralph.conversation.messages import Message, RequestShape
    from ralph.values.events import ContextCompacted, RunEnded

FORMAT = 3
"""The journal's format, raised when older ralphs could not read a newer journal."""


class SessionError(Exception):
    """A readable journal that cannot be resumed; its text is one line."""


class NewerFormatError(SessionError):
    """A journal in a format that only newer ralphs know."""


class Recorded(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    """A record of a kind that this ralph knows."""

    @property
    def kind(self) -> str:
        return str(self.__struct_config__.tag)


class SessionRecord(Recorded, frozen=True, kw_only=True, tag="session"):
    """The first record: the session's identity and its working directory."""

    format: int
    ralph: str
    id: str
    cwd: str
    created_at: str
    forked_from: str | None = None
    cwd_bytes: str | None = None
    """The directory's path, percent-encoded; None: it is valid UTF-8."""
    copied: int | None = None
    """The number of records after this one that a fork has copied from the old session. None: the session is no
    fork, or an older ralph made the fork."""

    @property
    def directory(self) -> str:
        return _named(self.cwd, self.cwd_bytes)


class MovedRecord(Recorded, frozen=True, kw_only=True, tag="moved"):
    """The session's new working directory."""

    cwd: str
    cwd_bytes: str | None = None

    @property
    def directory(self) -> str:
        return _named(self.cwd, self.cwd_bytes)


class RunRecord(Recorded, frozen=True, kw_only=True, tag="run"):
    """The beginning of a run: one task."""

    started_at: str
    pid: int
    target: str
    """The name of the first target."""
    model: str
    endpoint: str | None
    head: RequestHead
    """The head of every request, kept whole, so that a resumed session sends the same bytes."""
    writable: tuple[str, ...] = ()
    """Directories besides the working directory where file tools may write."""
    again: dict[str, str] = {}
    """Command-line options that the next run needs too."""


class TargetRecord(Recorded, frozen=True, kw_only=True, tag="target"):
    """The target of the next requests. Model, endpoint and head are left out if the run has recorded them already."""

    target: str
    model: str | None = None
    endpoint: str | None = None
    head: RequestHead | None = None
    cooling: dict[str, str]
    """The end of each target's cooldown in RFC 3339, by the target's name."""
    first: str | None
    """The name of the preferred target; None: not recorded by an older ralph."""


class QueuedRecord(Recorded, frozen=True, kw_only=True, tag="queued"):
    """The user's messages that came while calls were pending; they follow the results."""

    content: tuple[Block, ...]


class UserRecord(Recorded, frozen=True, kw_only=True, tag="user"):
    content: tuple[Block, ...]
    task: int | None
    """The number of blocks at the end that are the user's prompt; 0: the message is ralph's own. None: the record
    has a format before 3, which does not have this number."""
    amends: bool = False
    """The message replaces the last user message, which has no answer yet."""


class AssistantRecord(Recorded, frozen=True, kw_only=True, tag="assistant"):
    """A whole answer."""

    message: dict[str, Any]
    """The API's message object."""
    request_id: str | None
    calls: tuple[str, ...]
    """The ids of the calls that the stop reason allows to run."""
    malformed: dict[str, tuple[str, str]]
    """The malformed calls among `calls`, by id, each with the input as the model wrote it and the reason. They must
    not run."""

    @property
    def blocks(self) -> list[Block]:
        blocks: list[Block] = self.message["content"]
        return blocks

    @property
    def answer(self) -> Answer:
        named = {block["id"]: block for block in self.blocks if block["type"] == "tool_use"}
        calls = tuple(self._call(named[call_id]) for call_id in self.calls)
        return Answer(self.message, calls, request_id=self.request_id)

    def _call(self, block: Block) -> ToolCall | MalformedCall:
        if block["id"] in self.malformed:
            return MalformedCall(block["id"], block["name"], *self.malformed[block["id"]])
        return ToolCall(block["id"], block["name"], block["input"])


class IntentRecord(Recorded, frozen=True, kw_only=True, tag="tool_intent"):
    """A call that is about to run."""

    id: str
    name: str
    change: FileChange | None = None


class ResultRecord(Recorded, frozen=True, kw_only=True, tag="tool_result"):
    """A call's result: the block as the API gets it, and the file contents that the model knows from it."""

    type: str
    tool_use_id: str
    content: str | tuple[Block, ...]
    is_error: bool = False
    seen: dict[str, str] = {}

    @property
    def result(self) -> ToolResult:
        return ToolResult(self.tool_use_id, ToolOutput(self.content, self.is_error, self.seen))


class CompactedRecord(Recorded, frozen=True, kw_only=True, tag="compacted"):
    """The first message of a fresh context."""

    content: tuple[Block, ...]
    summary: str
    trigger: str
    source: str
    pre_tokens: int
    post_tokens: int


class EventRecord(Recorded, frozen=True, kw_only=True, tag="event"):
    """An event as in `stream-json`, in a field of its own, because an event may have a `kind` too."""

    event: dict[str, Any]

    @property
    def is_attempt(self) -> bool:
        return self.event.get("subtype") == "attempt"


class EndedRecord(Recorded, frozen=True, kw_only=True, tag="ended"):
    """The end of the work, written before the result is delivered; a `DeliveryRecord` follows."""

    outcome: str
    exit_code: int
    result: str | None
    errors: tuple[str, ...]
    num_turns: int
    duration_s: int | float
    cost_usd: int | float | None
    delivered: bool
    """True for records of older ralphs, which recorded no deliveries."""


class DeliveryRecord(Recorded, frozen=True, kw_only=True, tag="delivery"):
    """The delivery of the run's result, as far as it is known."""

    state: Delivery
    exit_code: int | None = None
    """The exit code of the process, if the delivery failed; None: it did not fail."""
    errors: tuple[str, ...] = ()


class UnknownRecord(Struct, frozen=True):
    """A record of an unknown kind, perhaps from a newer ralph. It changes nothing."""

    kind: str
    fields: dict[str, Any]


Record = (
    SessionRecord
    | MovedRecord
    | RunRecord
    | TargetRecord
    | QueuedRecord
    | UserRecord
    | AssistantRecord
    | IntentRecord
    | ResultRecord
    | CompactedRecord
    | EventRecord
    | EndedRecord
    | DeliveryRecord
    | UnknownRecord
)


# --- How a run makes them


def session_record(session_id: str, cwd: str, created_at: str, version: str) -> SessionRecord:
    return SessionRecord(
        format=FORMAT, ralph=version, id=session_id, created_at=created_at, **_directory_fields(cwd)
    )


def forked_record(opening: SessionRecord, old_id: str, copied: int) -> SessionRecord:
    """The first record of a fork. `copied`: the number of the old session's records that follow it."""
    return replace(opening, forked_from=old_id, copied=copied)


def moved_record(cwd: str) -> MovedRecord:
    return MovedRecord(**_directory_fields(cwd))


def run_record(
    shape: RequestShape,
    started_at: str,
    process_id: int,
    *,
    target: str | None = None,
    writable: Iterable[str] = (),
    again: Mapping[str, str] | None = None,
) -> RunRecord:
    """The record of a run's beginning. `target`: the name of the first target; None: the model's name."""
    return RunRecord(
        started_at=started_at,
        pid=process_id,
        target=target or shape.model,
        model=shape.model,
        endpoint=shape.endpoint,
        head=shape.head(),
        writable=tuple(writable),
        again=dict(again or {}),
    )


def target_record(
    target: str, shape: RequestShape | None, cooling: Mapping[str, str], first: str
) -> TargetRecord:
    """The record of a change of target. `shape`: the target's request shape; None: the run has recorded it already."""
    if shape is None:
        return TargetRecord(target=target, cooling=dict(cooling), first=first)
    return TargetRecord(
        target=target,
        model=shape.model,
        endpoint=shape.endpoint,
        head=shape.head(),
        cooling=dict(cooling),
        first=first,
    )


def user_record(message: Message, *, amends: bool = False, task: int = 0) -> UserRecord:
    return UserRecord(content=message.content, task=task, amends=amends)


def compacted_record(message: Message, summary: str, event: ContextCompacted) -> CompactedRecord:
    return CompactedRecord(
        content=message.content,
        summary=summary,
        trigger=event.trigger,
        source=event.source,
        pre_tokens=event.pre_tokens,
        post_tokens=event.post_tokens,
    )


def assistant_record(answer: Answer) -> AssistantRecord:
    return AssistantRecord(
        message=answer.message,
        request_id=answer.request_id,
        calls=tuple(call.id for call in answer.calls),
        malformed={
            call.id: (call.raw, call.reason) for call in answer.calls if isinstance(call, MalformedCall)
        },
    )


def intent_record(call: ToolCall, change: FileChange | None) -> IntentRecord:
    return IntentRecord(id=call.id, name=call.name, change=change)


def result_record(result: ToolResult) -> ResultRecord:
    output = result.output
    return ResultRecord(
        type="tool_result",
        tool_use_id=result.tool_use_id,
        content=output.content,
        is_error=output.is_error,
        seen=dict(output.seen),
    )


def ended_record(ended: RunEnded) -> EndedRecord:
    return EndedRecord(
        outcome=ended.outcome.value,
        exit_code=ended.exit_code,
        result=ended.result,
        errors=ended.errors,
        num_turns=ended.num_turns,
        duration_s=round(ended.duration_s, 3),
        cost_usd=ended.usage.cost_usd,
        delivered=False,
    )


def delivery_record(delivery: Delivery, ended: RunEnded) -> DeliveryRecord:
    """The record of a delivery. `ended`: the end of the process. A failed delivery may have changed that end."""
    if delivery is not Delivery.FAILED:
        return DeliveryRecord(state=delivery)
    return DeliveryRecord(state=delivery, exit_code=ended.exit_code, errors=ended.errors)


def _directory_fields(cwd: str) -> dict[str, Any]:
    try:
        cwd.encode()
    except UnicodeEncodeError:
        return {"cwd": cwd, "cwd_bytes": quote_from_bytes(cwd.encode("utf-8", "surrogateescape"))}
    return {"cwd": cwd}


def _named(cwd: str, cwd_bytes: str | None) -> str:
    """The directory's path. Bytes that are no UTF-8 are restored from `cwd_bytes`."""
    return cwd if cwd_bytes is None else unquote_to_bytes(cwd_bytes).decode("utf-8", "surrogateescape")
