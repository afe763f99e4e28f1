"""Stand-ins for the ports: a clock that is told the time, a waiter that sleeps by moving it, scripted answers."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from ralph.agent.session_log import SessionLog
from ralph.api.stream import answer_from_message
from ralph.conversation.decoding import decoded
from ralph.conversation.journal_lines import line_of
from ralph.conversation.records import run_record, session_record
from ralph.conversation.session import Session
from ralph.conversation.target import Target
from ralph.retry.roster import Roster
from ralph.values.ports import TIMED_OUT, SignalReceived, TimeIsUp
from ralph.values.tool_calls import FileChange, ToolCall, ToolDefinition, ToolOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ralph.conversation.messages import RequestBody, RequestShape
    from ralph.conversation.model_description import ModelDescription
    from ralph.conversation.records import Record
    from ralph.values.answer import Answer
    from ralph.values.errors import AgentError
    from ralph.values.events import Event
    from ralph.values.ports import Events

T = TypeVar("T")

EPOCH = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


class FakeClock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now_s(self) -> float:
        return self.seconds

    def utc_now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.seconds)


class FakeMailbox:
    def __init__(self) -> None:
        self.items: list[Any] = []

    def put(self, item: Any) -> None:
        self.items.append(item)

    def close(self) -> None:
        self.items.clear()


class FakeWaiter:
    """Sleeping moves the clock. `interrupt_at_s` raises Interrupted when the clock would pass it.

    It ends the run when its time is over, once, as the real one does.
    """

    def __init__(
        self,
        clock: FakeClock | None = None,
        interrupt_at_s: float | None = None,
        run_ends_s: float = math.inf,
    ) -> None:
        self.clock = clock or FakeClock()
        self.interrupt_at_s = interrupt_at_s
        self.run_ends_s = run_ends_s
        self.sleeps: list[float] = []

    def mailbox(self) -> FakeMailbox:
        return FakeMailbox()

    def wait(self, mailbox: Any, *, until_s: float | None, waiting_for: str) -> Any:
        if mailbox.items:
            return mailbox.items.pop(0)
        assert until_s is not None, f"would wait for ever for {waiting_for}"
        self._move_to(until_s)
        return TIMED_OUT

    def sleep(self, seconds: float, *, waiting_for: str) -> None:
        assert waiting_for
        self.sleeps.append(seconds)
        self._move_to(self.clock.seconds + seconds)

    def time_left_s(self) -> float:
        return self.run_ends_s - self.clock.seconds

    def _move_to(self, moment_s: float) -> None:
        if self.interrupt_at_s is not None and moment_s >= self.interrupt_at_s:
            self.clock.seconds = self.interrupt_at_s
            raise SignalReceived(15)
        if moment_s >= self.run_ends_s:
            self.clock.seconds = max(self.clock.seconds, self.run_ends_s)
            self.run_ends_s = math.inf
            raise TimeIsUp("the time limit (--max-time) is used up")
        self.clock.seconds = max(self.clock.seconds, moment_s)


class RecordingEvents:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type[T]) -> list[T]:
        return [event for event in self.events if isinstance(event, kind)]


class FakeJournal:
    """Keeps the records, each as it would be read from the disk, and how many of them a power cut would leave.

    Tests may read any field of any record.
    """

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.synced = 0

    def append(self, *records: Record, sync: bool = True) -> None:
        for record in records:
            self.append_as_written(record.kind, as_written(record))
        self.synced = len(self.records) if sync else self.synced

    def append_as_written(self, kind: str, fields: Mapping[str, Any]) -> None:
        """A record as another ralph wrote it."""
        self.records.append(decoded(kind, fields))

    @classmethod
    def of_run(cls, shape: RequestShape) -> FakeJournal:
        """As it is when a new session's first run begins."""
        journal = cls()
        journal.append(session_record("s1", "/work", "now", "0"), run_record(shape, "now", 1))
        return journal

    @property
    def kinds(self) -> list[str]:
        return [record.kind for record in self.records]


def new_log() -> SessionLog:
    """Of a session in which nothing was recorded yet."""
    return SessionLog(FakeJournal(), Session())


def as_written(record: Record, without: str = "") -> dict[str, Any]:
    """A record's fields, as they stand on the disk. `without`: the name of one that older ralphs did not write."""
    fields = json.loads(line_of(0, record))
    return {name: value for name, value in fields.items() if name not in {"seq", "kind", "crc", without}}


class ScriptedClient:
    """Plays answers and errors in order; keeps the bodies it was sent, and whom they were for."""

    def __init__(
        self,
        script: Iterable[Answer | AgentError | BaseException],
        descriptions: Mapping[str, ModelDescription] | None = None,
    ) -> None:
        """`descriptions`: by model; of others the server says nothing."""
        self._script = list(script)
        self._descriptions = descriptions or {}
        self.bodies: list[bytes] = []
        self.asked: list[tuple[str, int]] = []
        """Target and key of each call."""
        self.described: list[tuple[str, int]] = []
        """Target and key of each question about a model."""

    def send_message(self, target: Target, key: int, body: RequestBody, events: Events) -> Answer:
        self.bodies.append(b"".join(body))
        self.asked.append((target.name, key))
        step = self._script.pop(0)
        if isinstance(step, BaseException):
            raise step
        return step

    def describe_model(self, target: Target, key: int) -> ModelDescription | None:
        self.described.append((target.name, key))
        return self._descriptions.get(target.model)


ECHO = ToolDefinition(
    "Echo",
    "Say it again.",
    {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    is_read_only=True,
)
TOUCH = ToolDefinition("Touch", "Has an effect.", {"type": "object", "properties": {}})


def roster_of(*models: str, system: str = "system", **options: Any) -> Roster:
    """Targets that are called like their models, without keys."""
    targets = [Target(model, model, "http://127.0.0.1:1") for model in models or ("claude-sonnet-5-5",)]
    return Roster(targets, system=system, tools=(ECHO, TOUCH), **options)


class FakeToolbox:
    """Echo is read-only, Touch is not. `ran` holds the batches in order."""

    def __init__(self, on_run: Callable[[Sequence[ToolCall]], None] | None = None) -> None:
        self.definitions: Sequence[ToolDefinition] = (ECHO, TOUCH)
        self.ran: list[list[str]] = []
        self.changes: dict[str, FileChange] = {}
        self.settled: dict[str, ToolOutput] = {}
        self.outputs: dict[str, ToolOutput] = {}
        """By the call's id; other calls say what they were told to, or "done"."""
        self._on_run = on_run

    def plan(self, call: ToolCall) -> FileChange | None:
        return self.changes.get(call.id)

    def settle(self, change: FileChange) -> ToolOutput | None:
        return self.settled.get(change.path)

    def run(self, calls: Sequence[ToolCall]) -> Sequence[tuple[ToolOutput, float]]:
        self.ran.append([call.id for call in calls])
        if self._on_run is not None:
            self._on_run(calls)
        return [
            (self.outputs.get(call.id) or ToolOutput(str(call.arguments.get("text", "done"))), 0.1)
            for call in calls
        ]


def answer(*content: dict[str, Any], stop_reason: str = "", **fields: Any) -> Answer:
    """A whole answer. The stop reason defaults to what the blocks imply."""
    implied = "tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn"
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-5-5",
        "content": list(content),
        "stop_reason": stop_reason or implied,
        "usage": {"input_tokens": 100, "output_tokens": 10},
        **fields,
    }
    return answer_from_message(message)


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def call(call_id: str, name: str = "Echo", **arguments: Any) -> dict[str, Any]:
    if name == "Echo":
        arguments.setdefault("text", "hi")
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}
