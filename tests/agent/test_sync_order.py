"""Nothing is told or run before its record is on the disk, and one sync serves an answer and its command."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ralph.values.answer import ToolDefinition
from ralph.values.events import AnswerAccepted, RequestSent, ToolFinished, ToolStarted, TurnStarted
from ralph.values.limits import LimitSettings
from ralph.values.ports import JournalError
from tests.agent.test_turn_lock import RecordedLock
from tests.fakes import (
    ECHO,
    TOUCH,
    FakeJournal,
    FakeToolbox,
    FakeWaiter,
    RecordingEvents,
    ScriptedClient,
    answer,
    call,
    text,
)
from tests.fakes.played import PLAIN_FORM, Played, roster_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ralph.conversation.messages import RequestBody
    from ralph.conversation.records import Record
    from ralph.conversation.target import ModelDescription, Target
    from ralph.values.answer import Answer, ToolCall
    from ralph.values.events import Event, RunEnded
    from ralph.values.ports import Events, TurnLock
    from ralph.values.report import ReportForm

BASH = ToolDefinition("Bash", "Runs a command.", {"type": "object", "properties": {}})
DONE = answer(text("All done."))
PLACE = Path("/journal")


class CountingJournal(FakeJournal):
    def __init__(self) -> None:
        super().__init__()
        self.syncs: list[list[str]] = []
        """The kinds of the records that each sync has made last."""
        self.fails_at: str | None = None
        self._has_failed = False
        """As with a real journal, each call after the first failure fails too."""

    @property
    def lasting(self) -> list[str]:
        """The kinds of the records on the disk, without the two of the opening."""
        return [record.kind for record in self.records[: self.synced]][2:]

    def append(self, *records: Record, sync: bool = True) -> None:
        unsynced = [record.kind for record in (*self.records[self.synced :], *records)]
        if sync and f"sync of {unsynced[0] if unsynced else ''}" == self.fails_at:
            self._has_failed = True
        self._has_failed |= any(record.kind == self.fails_at for record in records)
        if self._has_failed:
            raise JournalError(PLACE, OSError(28, "No space left on device"))
        before = self.synced
        super().append(*records, sync=sync)
        if sync:
            self.syncs.append([record.kind for record in self.records[before:]])


class OrderedEvents(RecordingEvents):
    """Keeps each event with the kinds of the records that were on the disk when it was told."""

    def __init__(self, journal: CountingJournal) -> None:
        super().__init__()
        self._journal = journal
        self.told: list[tuple[type[Event], list[str]]] = []

    def emit(self, event: Event) -> None:
        super().emit(event)
        self.told.append((type(event), self._journal.lasting))


class LookingClient(ScriptedClient):
    """Notes the kinds of the records that are on the disk when a request begins, and when a model is described."""

    def __init__(self, script: Sequence[Answer], journal: CountingJournal) -> None:
        super().__init__(script)
        self._journal = journal
        self.at_request: list[list[str]] = []
        self.at_description: list[list[str]] = []

    def send_message(self, target: Target, key: int, body: RequestBody, events: Events, **how: Any) -> Answer:
        self.at_request.append(self._journal.lasting)
        return super().send_message(target, key, body, events, **how)

    def describe_model(self, target: Target, key: int) -> ModelDescription | None:
        self.at_description.append(self._journal.lasting)
        return super().describe_model(target, key)


class LookingWaiter(FakeWaiter):
    """Notes the kinds of the records that are on the disk when a sleep begins."""

    def __init__(self, journal: CountingJournal, run_ends_s: float) -> None:
        super().__init__(run_ends_s=run_ends_s)
        self._journal = journal
        self.at_sleep: list[list[str]] = []

    def sleep(self, seconds: float, *, waiting_for: str) -> None:
        self.at_sleep.append(self._journal.lasting)
        super().sleep(seconds, waiting_for=waiting_for)


class Unchecked(Played):
    """A task whose journal may be incomplete."""

    def task(self, prompt: str | None) -> RunEnded:
        self.ended = self.run.run(prompt)
        return self.ended


class Watched:
    """A run whose calls take a second each."""

    def __init__(
        self,
        *script: Answer,
        fails_at: str | None = None,
        turn_lock: TurnLock | None = None,
        form: ReportForm | None = None,
        max_turns: int | None = None,
        run_ends_s: float = math.inf,
    ) -> None:
        toolbox = FakeToolbox(self._runs)
        toolbox.definitions = (ECHO, TOUCH, BASH)
        roster = roster_for((), (), toolbox, form, "fallback")
        self.journal: CountingJournal = CountingJournal.of_run(roster.first_shape)  # type: ignore[assignment]
        self.journal.fails_at = fails_at
        self.events = OrderedEvents(self.journal)
        self.at_run: dict[str, list[str]] = {}
        self.at_check: list[list[str]] = []
        self.client = LookingClient(script, self.journal)
        self.waiter = LookingWaiter(self.journal, run_ends_s)
        self.played = Unchecked(
            client=self.client,
            journal=self.journal,
            toolbox=toolbox,
            events=self.events,
            turn_lock=turn_lock,
            form=None if form is None else replace(form, validator=self._check),
            limits=LimitSettings(max_turns=max_turns),
            waiter=self.waiter,
        )

    def _runs(self, calls: Sequence[ToolCall]) -> None:
        for one in calls:
            self.at_run[one.id] = self.journal.lasting
            self.waiter.clock.seconds += 1

    def _check(self, _report: object) -> list[str]:
        self.at_check.append(self.journal.lasting)
        return []

    def syncs(self) -> list[list[str]]:
        """The syncs after that of the opening."""
        return self.journal.syncs[1:]

    def lasting_at(self, kind: type[Event]) -> list[str]:
        return self.all_lasting_at(kind)[0]

    def all_lasting_at(self, kind: type[Event]) -> list[list[str]]:
        return [lasting for told, lasting in self.events.told if told is kind]


def test_one_sync_serves_an_answer_and_the_intent_of_its_command() -> None:
    watched = Watched(answer(call("b", "Bash")), DONE)
    assert watched.syncs() == [
        ["user"],
        ["assistant", "tool_intent"],
        ["tool_result"],
        ["assistant"],
        ["ended"],
    ]


def test_no_event_and_no_command_comes_before_its_record_is_on_the_disk() -> None:
    watched = Watched(answer(text("I try."), call("b", "Bash"), call("c", "Bash")), DONE)
    assert watched.lasting_at(AnswerAccepted) == ["user", "assistant", "tool_intent"]
    assert watched.lasting_at(ToolStarted) == ["user", "assistant", "tool_intent"]
    assert watched.at_run["b"] == ["user", "assistant", "tool_intent"]
    assert watched.at_run["c"] == ["user", "assistant", "tool_intent", "tool_result", "tool_intent"]
    assert watched.lasting_at(ToolFinished)[:4] == ["user", "assistant", "tool_intent", "tool_result"]
    told = [kind for kind, _ in watched.events.told if kind in (AnswerAccepted, ToolStarted, ToolFinished)]
    assert told == [AnswerAccepted, *[ToolStarted, ToolFinished] * 2, AnswerAccepted], "in their order"


def test_the_last_result_is_synced_while_the_next_request_is_on_its_way() -> None:
    watched = Watched(answer(call("b", "Bash"), call("t", "Touch")), DONE)
    ran = ["user", "assistant", "tool_intent", "tool_result", "tool_intent"]
    assert watched.client.at_request[1] == ran
    assert watched.all_lasting_at(RequestSent)[1] == [*ran, "tool_result"]
    assert watched.all_lasting_at(ToolFinished) == [ran[:4], [*ran, "tool_result"]]
    assert watched.all_lasting_at(TurnStarted)[1] == [*ran, "tool_result"]


def test_the_last_result_is_synced_before_anything_else_is_waited_for() -> None:
    ran = ["user", "assistant", "tool_intent", "tool_result"]
    with_lock = Watched(answer(call("b", "Bash")), DONE, turn_lock=RecordedLock())
    assert with_lock.client.at_request[1] == ran, "another program may look at the files"
    many_tokens = answer(call("b", "Bash"), usage={"input_tokens": 500_000, "output_tokens": 10})
    described = Watched(many_tokens, DONE)
    assert described.client.at_description == [ran]
    too_long = Watched(answer(call("b", "Bash")), run_ends_s=0.5)
    assert too_long.waiter.at_sleep == [ran], "which raises TimeIsUp"


def test_an_answer_is_synced_before_the_report_in_it_is_checked() -> None:
    """The check of a report may have a process of its own, and take seconds."""
    report = text('{"status": "success", "summary": "Did it."}')
    watched = Watched(
        answer(call("b")), answer(report, call("c", "Bash")), DONE, form=PLAIN_FORM, max_turns=1
    )
    assert watched.at_check[0][-1] == "assistant"


def test_if_the_disk_fails_at_the_late_sync_the_run_ends_and_tells_what_ran() -> None:
    watched = Watched(answer(call("b", "Bash")), DONE, fails_at="sync of tool_result")
    assert watched.played.ended.exit_code == 74
    assert watched.at_run.keys() == {"b"}
    told = [kind for kind, _ in watched.events.told if kind in (AnswerAccepted, ToolStarted, ToolFinished)]
    assert told == [AnswerAccepted, ToolStarted, ToolFinished]
    assert [attempt.kind for attempt in watched.played.attempts] == [None, "interrupted"], "it may be billed"


def test_if_the_disk_fails_at_the_intent_nothing_runs_and_the_answer_is_told_all_the_same() -> None:
    """It came, it was paid, and the end of the run says that the journal could not be written."""
    watched = Watched(answer(call("b", "Bash")), fails_at="tool_intent")
    assert watched.played.ended.exit_code == 74
    assert watched.at_run == {}
    told = [kind for kind, _ in watched.events.told if kind in (AnswerAccepted, ToolStarted, ToolFinished)]
    assert told == [AnswerAccepted, ToolStarted]
