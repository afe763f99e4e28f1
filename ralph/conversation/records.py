"""The types of the records in a session's journal, and the functions that make records.

Fields have the names and the order of the JSON, which lacks those with their default value. `session.py` defines the
effect of each record, and `journal_lines.py` converts them to lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

from msgspec import Struct
from msgspec.structs import replace

from ralph.conversation.messages import RequestHead  # noqa: TC001 - records are read by their hints
from ralph.values.answer import Answer, Block, FileChange, MalformedCall, ToolCall, ToolOutput, ToolResult
from ralph.values.outcome import Delivery
from ralph.values.redaction import LookedCommit  # noqa: TC001 - records are read by their hints

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ralph.conversation.messages import Message, RequestShape
    from ralph.values.events import Background, ContextCompacted, RunEnded

FORMAT = 3
"""The version of the journal's format. Increased when older ralphs cannot read new journals."""


class SessionError(Exception):
    """The journal is readable, but its session cannot be resumed. The message is one line."""


class NewerFormatError(SessionError):
    """The format of the journal is newer than this ralph can read."""


class KnownRecord(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    @property
    def kind(self) -> str:
        return str(self.__struct_config__.tag)


class SessionRecord(KnownRecord, frozen=True, kw_only=True, tag="session"):
    """The first record of a journal."""

    format: int
    ralph: str
    id: str
    cwd: str
    created_at: str
    forked_from: str | None = None
    cwd_bytes: str | None = None
    """Percent-encoded. None if the path is valid UTF-8."""
    copied: int | None = None
    """In a fork, the number of records behind this one that were copied. Older ralphs wrote none."""
    copied_cwd: str | None = None
    """The working directory in which the copied records begin, unless all are in `cwd`. A `moved` record follows them
    if they end elsewhere. Older ralphs wrote none: then copied `moved` records have no effect."""
    copied_cwd_bytes: str | None = None

    @property
    def directory(self) -> str:
        """The working directory, until a `moved` record of the session's own names another one."""
        return _named(self.cwd, self.cwd_bytes)

    @property
    def first_directory(self) -> str:
        """The working directory in which the next record is to be read."""
        return self.directory if self.copied_cwd is None else _named(self.copied_cwd, self.copied_cwd_bytes)

    @property
    def without_moves(self) -> int:
        """How many copied records' moves have no effect: the fork does not say in which directory they begin."""
        return (self.copied or 0) if self.copied_cwd is None else 0


class MovedRecord(KnownRecord, frozen=True, kw_only=True, tag="moved"):
    cwd: str
    cwd_bytes: str | None = None

    @property
    def directory(self) -> str:
        return _named(self.cwd, self.cwd_bytes)


class RunRecord(KnownRecord, frozen=True, kw_only=True, tag="run"):
    """A run, the work on one task, has begun."""

    started_at: str
    pid: int
    target: str
    model: str
    endpoint: str | None
    head: RequestHead
    """The request head for the first target. A resumed session sends the same bytes again."""
    writable: tuple[str, ...] = ()
    """Further directories in which file tools may write."""
    again: dict[str, str] = {}
    """Command-line options that the next run of the session needs too."""
    title: str | None = None
    """Given by the user for this run and later ones."""
    tool_patterns: dict[str, tuple[str, ...]] = {}
    """The lists `allowed` and `disallowed` with patterns such as `Bash(git *)`, which the next run uses too."""


class TargetRecord(KnownRecord, frozen=True, kw_only=True, tag="target"):
    """The target for the next requests, and the cooldowns. Without `model`, `endpoint` and `head` if the same run has
    recorded them for this target.
    """

    target: str
    model: str | None = None
    endpoint: str | None = None
    head: RequestHead | None = None
    cooling: dict[str, str]
    """By target, the end of its cooldown (RFC 3339), until which it is not asked."""
    first: str | None
    """The preferred target. None in records of older ralphs."""


class QueuedRecord(KnownRecord, frozen=True, kw_only=True, tag="queued"):
    """A user message that is sent when the calls of the last answer have results."""

    content: tuple[Block, ...]


class UserRecord(KnownRecord, frozen=True, kw_only=True, tag="user"):
    content: tuple[Block, ...]
    task: int | None
    """The number of blocks at the end that are the user's prompt; 0: ralph wrote all. None in formats 1 and 2."""
    amends: bool = False
    """Whether it replaces the last message, a user message without an answer."""


class AssistantRecord(KnownRecord, frozen=True, kw_only=True, tag="assistant"):
    """A complete answer of the model."""

    message: dict[str, Any]
    """The API's object."""
    request_id: str | None
    calls: tuple[str, ...]
    """The ids of the calls that need a result. Empty if the stop reason allows no call."""
    malformed: dict[str, tuple[str, str]]
    """By id, the calls that must not run because their input is faulty: the input as written, and the fault."""

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


class IntentRecord(KnownRecord, frozen=True, kw_only=True, tag="tool_intent"):
    """Says that a call is about to run."""

    id: str
    name: str
    change: FileChange | None = None


class ResultRecord(KnownRecord, frozen=True, kw_only=True, tag="tool_result"):
    """The result of a call: the block for the API, and the files that the model was shown."""

    type: str
    tool_use_id: str
    content: str | tuple[Block, ...]
    is_error: bool = False
    seen: dict[str, str] = {}

    @property
    def result(self) -> ToolResult:
        return ToolResult(self.tool_use_id, ToolOutput(self.content, self.is_error, self.seen))


class BackgroundRecord(KnownRecord, frozen=True, kw_only=True, tag="background"):
    """The commands in the background. Older ralphs ignore it."""

    count: int
    """The number of commands that the session has started so far."""
    running: dict[str, str]
    """Command lines by id."""


class CompactedRecord(KnownRecord, frozen=True, kw_only=True, tag="compacted"):
    """The context was compacted. `content` is the first message of the new one."""

    content: tuple[Block, ...]
    summary: str
    trigger: str
    source: str
    pre_tokens: int
    post_tokens: int


class ThinkingRecord(KnownRecord, frozen=True, kw_only=True, tag="thinking_refused"):
    """A server refused the thinking so far, which is then left out for this model there. Older ralphs send it again."""

    model: str
    endpoint: str | None
    is_off: bool = False
    """Whether the model must not think either, until the next user message without tool results."""


class EventRecord(KnownRecord, frozen=True, kw_only=True, tag="event"):
    """An event of `stream-json`, in a field of its own, because record and event may both have a key `kind`."""

    event: dict[str, Any]

    @property
    def is_attempt(self) -> bool:
        return self.event.get("subtype") == "attempt"


class EndedRecord(KnownRecord, frozen=True, kw_only=True, tag="ended"):
    """A run has ended. Written before the result is delivered. Usually a `DeliveryRecord` follows."""

    outcome: str
    exit_code: int
    result: str | None
    errors: tuple[str, ...]
    num_turns: int
    duration_s: int | float
    cost_usd: int | float | None
    delivered: bool
    """True only in journals of early ralphs, which recorded no deliveries."""
    run_bytes: int | None = None
    """The bytes from the run's first line to this one, added by the journal. None from older ralphs, and in a run's
    second record."""
    denied: tuple[str, ...] = ()
    """The ids of the calls that the permission mode refused, or in which the sandbox denied an operation."""


class DeliveryRecord(KnownRecord, frozen=True, kw_only=True, tag="delivery"):
    """Says whether the result of a run was delivered."""

    state: Delivery
    exit_code: int | None = None
    """The exit code of the process if the delivery failed, otherwise None."""
    errors: tuple[str, ...] = ()
    looked: tuple[LookedCommit, ...] = ()
    """Where secrets are in the commits that were made in the time of the run."""


class UnknownRecord(Struct, frozen=True):
    """A kind that this ralph does not know, without effect."""

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
    | BackgroundRecord
    | CompactedRecord
    | ThinkingRecord
    | EventRecord
    | EndedRecord
    | DeliveryRecord
    | UnknownRecord
)


# --- Functions that make records


def session_record(session_id: str, cwd: str, created_at: str, version: str) -> SessionRecord:
    return SessionRecord(
        format=FORMAT, ralph=version, id=session_id, created_at=created_at, **_directory_fields(cwd)
    )


def forked_record(
    opening: SessionRecord, first: Record | None, copied: int, *, has_moved: bool
) -> SessionRecord:
    """The first record of a fork. `opening` has the fork's own id and directory. `first` is the first record of the old
    session, of which the next `copied` records are copied. `has_moved`: a `moved` record is among them.
    """
    if not isinstance(first, SessionRecord):
        raise SessionError("it does not begin as a session's journal does")
    fork = replace(opening, forked_from=first.id, copied=copied)
    if not has_moved and first.first_directory == opening.directory:
        return fork
    if has_moved and first.copied is not None and first.copied_cwd is None:
        return fork  # a fork by an older ralph, in which copied moves have no effect, and so in this one
    began = _directory_fields(first.first_directory)
    return replace(fork, copied_cwd=began["cwd"], copied_cwd_bytes=began.get("cwd_bytes"))


def moved_record(cwd: str) -> MovedRecord:
    return MovedRecord(**_directory_fields(cwd))


def run_record(
    shape: RequestShape,
    started_at: str,
    process_id: int,
    *,
    target: str | None = None,
    writable: Iterable[str] = (),
) -> RunRecord:
    """`target` is the name of the first target, by default that of its model."""
    return RunRecord(
        started_at=started_at,
        pid=process_id,
        target=target or shape.model,
        model=shape.model,
        endpoint=shape.endpoint,
        head=shape.head(),
        writable=tuple(writable),
    )


def target_record(
    target: str, shape: RequestShape | None, cooling: Mapping[str, str], first: str
) -> TargetRecord:
    """`shape` is None if this run has already recorded it for the target."""
    record = TargetRecord(target=target, cooling=dict(cooling), first=first)
    if shape is None:
        return record
    return replace(record, model=shape.model, endpoint=shape.endpoint, head=shape.head())


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


def background_record(background: Background) -> BackgroundRecord:
    return BackgroundRecord(count=background.count, running=dict(background.running))


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
        denied=tuple(call.id for call in ended.denied),
    )


def delivery_record(
    delivery: Delivery, ended: RunEnded, looked: tuple[LookedCommit, ...] = ()
) -> DeliveryRecord:
    """`ended` already contains a failure of the delivery."""
    if delivery is not Delivery.FAILED:
        return DeliveryRecord(state=delivery, looked=looked)
    return DeliveryRecord(state=delivery, exit_code=ended.exit_code, errors=ended.errors, looked=looked)


def _directory_fields(cwd: str) -> dict[str, Any]:
    try:
        cwd.encode()
    except UnicodeEncodeError:
        return {"cwd": cwd, "cwd_bytes": quote_from_bytes(cwd.encode("utf-8", "surrogateescape"))}
    return {"cwd": cwd}


def _named(cwd: str, cwd_bytes: str | None) -> str:
    return cwd if cwd_bytes is None else unquote_to_bytes(cwd_bytes).decode("utf-8", "surrogateescape")
