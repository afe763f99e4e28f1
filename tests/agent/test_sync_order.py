"""Nothing is told or run before its record is on the disk, and one sync serves an answer and its command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ralph.values.events import AnswerAccepted, ToolFinished, ToolStarted
from ralph.values.ports import JournalError
from ralph.values.tool_calls import ToolDefinition
from tests.fakes import ECHO, TOUCH, FakeJournal, FakeToolbox, RecordingEvents, answer, call, text
from tests.fakes.played import Played, roster_for
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ralph.conversation.records import Record
    from ralph.values.events import Event, RunEnded
    from ralph.values.tool_calls import ToolCall

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

    def append(self, *records: Record, sync: bool = True) -> None:
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
        lasting = [record.kind for record in self._journal.records[: self._journal.synced]]
        self.told.append((type(event), lasting[2:]))


class Unchecked(Played):
    """A task whose journal may be incomplete."""

    def task(self, prompt: str | None) -> RunEnded:
        self.ended = self.run.run(prompt)
        return self.ended


class Watched:
    def __init__(self, *script: object, fails_at: str | None = None) -> None:
        toolbox = FakeToolbox(self._runs)
        toolbox.definitions = (ECHO, TOUCH, BASH)
        roster = roster_for((), (), toolbox, None, "fallback")
        self.journal: CountingJournal = CountingJournal.of_run(roster.first_shape)  # type: ignore[assignment]
        self.journal.fails_at = fails_at
        self.events = OrderedEvents(self.journal)
        self.at_run: dict[str, list[str]] = {}
        self.played = Unchecked(*script, journal=self.journal, toolbox=toolbox, events=self.events)  # type: ignore[arg-type]

    def _runs(self, calls: Sequence[ToolCall]) -> None:
        for one in calls:
            self.at_run[one.id] = [record.kind for record in self.journal.records[: self.journal.synced]][2:]

    def syncs(self) -> list[list[str]]:
        """The syncs after that of the opening."""
        return self.journal.syncs[1:]

    def lasting_at(self, kind: type[Event]) -> list[str]:
        return next(lasting for told, lasting in self.events.told if told is kind)


def test_one_sync_serves_an_answer_and_the_intent_of_its_command() -> None:
    watched = Watched(answer(call("b", "Bash")), DONE)
    assert watched.syncs() == [
        ["user"],
        ["assistant", "tool_intent"],
        ["tool_result"],
        ["assistant"],
        ["ended"],
    ]


@every_row(
    ("first", "syncs"),
    [
        ("Echo", [["assistant"], ["tool_intent", "tool_result"]]),
        ("Touch", [["assistant"], ["tool_intent"], ["tool_result"]]),
    ],
)
def test_other_calls_may_be_waited_for_so_the_answer_is_synced_before(first, syncs) -> None:
    watched = Watched(answer(call("b", first)), DONE)
    assert watched.syncs() == [["user"], *syncs, ["assistant"], ["ended"]]


def test_no_event_and_no_command_comes_before_its_record_is_on_the_disk() -> None:
    watched = Watched(answer(text("I try."), call("b", "Bash"), call("c", "Bash")), DONE)
    assert watched.lasting_at(AnswerAccepted) == ["user", "assistant", "tool_intent"]
    assert watched.lasting_at(ToolStarted) == ["user", "assistant", "tool_intent"]
    assert watched.at_run["b"] == ["user", "assistant", "tool_intent"]
    assert watched.at_run["c"] == ["user", "assistant", "tool_intent", "tool_result", "tool_intent"]
    assert watched.lasting_at(ToolFinished)[:4] == ["user", "assistant", "tool_intent", "tool_result"]
    told = [kind for kind, _ in watched.events.told if kind in (AnswerAccepted, ToolStarted, ToolFinished)]
    assert told == [AnswerAccepted, *[ToolStarted, ToolFinished] * 2, AnswerAccepted], "in their order"


def test_an_event_that_cannot_wait_syncs_the_answer_first() -> None:
    """The refusal of a repeated call is an event with a record of its own, which comes before the call's result."""
    script = [answer(call(f"b{number}", "Bash")) for number in range(4)]
    watched = Watched(*script, DONE)
    refused = watched.syncs()[-4:-2]
    assert refused == [["assistant"], ["tool_result"]]
    assert [*watched.at_run] == ["b0", "b1", "b2"]


def test_if_the_disk_fails_at_the_intent_nothing_runs_and_the_answer_is_told_all_the_same() -> None:
    """It came, it was paid, and the end of the run says that the journal could not be written."""
    watched = Watched(answer(call("b", "Bash")), fails_at="tool_intent")
    assert watched.played.ended.exit_code == 74
    assert watched.at_run == {}
    told = [kind for kind, _ in watched.events.told if kind in (AnswerAccepted, ToolStarted, ToolFinished)]
    assert told == [AnswerAccepted, ToolStarted]
