"""Tests what a run records and tells about commands in the background."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ralph.conversation.messages import RequestShape
from ralph.conversation.records import BackgroundRecord, run_record
from ralph.conversation.session import replay
from ralph.values.controls import RunControls
from ralph.values.events import Background, BackgroundEnded, BackgroundStarted, Event
from tests.fakes import ECHO, TOUCH, FakeJournal, FakeToolbox, answer, call
from tests.fakes.played import DONE, Played

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ralph.values.answer import Answer, ToolCall

SHAPE = RequestShape("claude-sonnet-5-5", "system", (ECHO, TOUCH))
STARTED = BackgroundStarted("bash_1", "npm run dev", "t")
DEV = {"bash_1": "npm run dev"}


class Servers(FakeToolbox):
    """A toolbox whose tool Touch starts a command in the background, and whose tool Echo sees it end."""

    def __init__(self) -> None:
        super().__init__(self.change)

    def change(self, calls: Sequence[ToolCall]) -> None:
        if calls[0].name == "Touch":
            self.in_background, self.news = Background(1, DEV), [STARTED]
        else:
            self.in_background, self.news = Background(1), [BackgroundEnded("bash_1", "npm run dev", "t", 0)]


def life(*script: Answer, prompt: str, journal: FakeJournal | None = None, **options: Any) -> Played:
    """One process of a session."""
    if journal is not None:
        journal.append(run_record(SHAPE, "later", 2))
        options["session"] = replay(journal.records)
    return Played(*script, toolbox=Servers(), journal=journal, prompt=prompt, **options)


def told(played: Played) -> list[Event]:
    return [one for one in played.events.events if isinstance(one, BackgroundStarted | BackgroundEnded)]


def test_what_runs_is_recorded_before_the_result_and_stopped_with_the_run() -> None:
    played = life(answer(call("t", "Touch")), DONE, prompt="the task")
    assert played.journal.kinds[-5:] == ["tool_intent", "background", "tool_result", "assistant", "ended"]
    assert played.journal.records[-4] == BackgroundRecord(count=1, running=DEV)
    assert told(played) == [STARTED, BackgroundEnded("bash_1", "npm run dev", stopped_by="run")]
    assert played.ended.background_stopped == 1


def test_the_next_run_tells_the_model_once_which_are_gone() -> None:
    first = life(answer(call("t", "Touch")), DONE, prompt="the task")
    second = life(DONE, journal=first.journal, prompt="and now?")
    gone = "System notice: These background commands of the earlier run are gone: bash_1 (npm run dev)."
    assert second.last_words(0) == ["and now?", gone]
    assert second.ended.background_stopped == 0
    third = life(DONE, journal=second.journal, prompt="and then?")
    assert third.last_words(0) == ["and then?"]
    assert replay(third.journal.records).background == BackgroundRecord(count=1, running={})


def test_between_the_tasks_of_one_process_they_run_on() -> None:
    controls = RunControls()
    controls.may_continue = lambda: True
    played = life(answer(call("t", "Touch")), DONE, DONE, DONE, prompt="one", controls=controls)
    assert (told(played), played.ended.background_stopped) == ([STARTED], 0)
    assert played.run.run("two", run_record(SHAPE, "then", 2)).background_stopped == 0
    assert played.last_words(2) == ["two"], "nothing is gone"
    assert replay(played.journal.records).background.running == DEV
    controls.may_continue = lambda: False
    assert played.run.run("three", run_record(SHAPE, "at last", 2)).background_stopped == 1
    assert len(told(played)) == 2
    later = life(DONE, journal=played.journal, prompt="four")
    assert "bash_1 (npm run dev)" in later.last_words(0)[1]
