"""Fakes of the agent's ports: a clock that tests set, a waiter that only moves this clock, and a client with
scripted answers.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from ralph.agent.session_log import SessionLog
from ralph.api.stream import answer_from_message
from ralph.conversation.journal_lines import decoded, line_of
from ralph.conversation.records import run_record, session_record
from ralph.conversation.session import Session
from ralph.conversation.target import Target
from ralph.retry.targets import Roster
from ralph.values.answer import FileChange, ToolCall, ToolDefinition, ToolOutput
from ralph.values.events import Background, BackgroundEnded, BackgroundStarted, RequestSent
from ralph.values.ports import TIMED_OUT, SignalReceived, TimeIsUp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ralph.conversation.messages import RequestBody, RequestShape
    from ralph.conversation.records import Record
    from ralph.conversation.target import ModelDescription
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

    def watch(self, descriptor: int, item: Any) -> None:
        raise AssertionError("a descriptor needs the real waiter")

    def unwatch(self, descriptor: int) -> None:
        raise AssertionError("nothing is watched")

    def close(self) -> None:
        self.items.clear()


class FakeWaiter:
    """A waiter that moves its clock instead of sleeping.

    It raises SignalReceived when the clock would reach `interrupt_at_s`. When the clock reaches `run_ends_s`, it
    raises TimeIsUp once, like the real waiter.
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
        self.was_stopped = False

    def stop_left_s(self) -> float:
        return math.inf

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
    """A journal in memory. Keeps each record as it would be read from disk. `synced` is the number of records that
    would survive a power failure.
    """

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.synced = 0

    def append(self, *records: Record, sync: bool = True) -> None:
        for record in records:
            self.append_as_written(record.kind, as_written(record))
        self.synced = len(self.records) if sync else self.synced

    def append_as_written(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Adds a record with the fields that another version of ralph has written."""
        self.records.append(decoded(kind, fields))

    @classmethod
    def of_run(cls, shape: RequestShape, **run: Any) -> FakeJournal:
        """A journal with the first two records of a new session's first run."""
        journal = cls()
        journal.append(session_record("s1", "/work", "now", "0"), run_record(shape, "now", 1, **run))
        return journal

    @classmethod
    def of(cls, records: Iterable[Any]) -> FakeJournal:
        """A journal with these records, such as a run leaves that is killed after them."""
        journal = cls()
        journal.records = list(records)
        return journal

    @property
    def kinds(self) -> list[str]:
        return [record.kind for record in self.records]


def new_log() -> SessionLog:
    """The log of a session without any records."""
    return SessionLog(FakeJournal(), Session())


def as_written(record: Record, without: str = "") -> dict[str, Any]:
    """The fields of a record as they are on disk. `without` is the name of a field to leave out, because older
    versions of ralph did not write it.
    """
    fields = json.loads(line_of(0, record))
    return {name: value for name, value in fields.items() if name not in {"seq", "kind", "crc", without}}


class ScriptedClient:
    """A client that returns answers and raises errors in the given order. Keeps the bodies that it was sent, and
    their targets.
    """

    def __init__(
        self,
        script: Iterable[Answer | AgentError | BaseException],
        descriptions: Mapping[str, ModelDescription] | None = None,
    ) -> None:
        """`descriptions` has the description of each model by its name. For other models there is none."""
        self._script = list(script)
        self._descriptions = descriptions or {}
        self.bodies: list[bytes] = []
        self.how: list[dict[str, Any]] = []
        """The further arguments of each request."""
        self.asked: list[tuple[str, int]] = []
        """The name of the target and the number of the key, for each call."""
        self.described: list[tuple[str, int]] = []
        """The name of the target and the number of the key, for each question about a model."""
        self._took_s, self._clock = 0.0, FakeClock()

    def takes(self, seconds: float, clock: FakeClock) -> None:
        """From now on, each request takes these seconds of `clock`."""
        self._took_s, self._clock = seconds, clock

    def send_message(self, target: Target, key: int, body: RequestBody, events: Events, **how: Any) -> Answer:
        self._clock.seconds += self._took_s
        self.bodies.append(b"".join(body.pieces()))
        self.how.append(how)
        self.asked.append((target.name, key))
        events.emit(RequestSent())
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
    """A roster with one target for each model. The name of a target is that of its model. The targets have no
    keys.
    """
    targets = [Target(model, model, "http://127.0.0.1:1") for model in models or ("claude-sonnet-5-5",)]
    return Roster(targets, system=system, tools=(ECHO, TOUCH), **options)


class FakeToolbox:
    """A toolbox with two tools. Echo is read-only, and Touch is not. `ran` contains the ids of the calls in each
    batch, in order.
    """

    def __init__(self, on_run: Callable[[Sequence[ToolCall]], None] | None = None) -> None:
        self.definitions: Sequence[ToolDefinition] = (ECHO, TOUCH)
        self.ran: list[list[str]] = []
        self.changes: dict[str, FileChange] = {}
        self.settled: dict[str, ToolOutput] = {}
        self.outputs: dict[str, ToolOutput] = {}
        """Outputs by the id of the call. Other calls return their argument `text`, or "done" without one."""
        self._on_run = on_run
        self.in_background = Background()
        self.news: list[BackgroundStarted | BackgroundEnded] = []

    @property
    def background(self) -> Background:
        return self.in_background

    def background_news(self) -> Sequence[BackgroundStarted | BackgroundEnded]:
        news, self.news = self.news, []
        return news

    def stop_background(self) -> None:
        """Ends the commands in the background."""
        running = self.in_background.running
        self.news += [BackgroundEnded(one, line, stopped_by="run") for one, line in running.items()]
        self.in_background = replace(self.in_background, running={})

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
    """A complete answer. The stop reason defaults to the one that fits the blocks."""
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
