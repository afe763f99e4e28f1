"""Tests what a run records and tells about commands in the background."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ralph.agent.task import AgentLoop
from ralph.conversation.messages import RequestShape
from ralph.conversation.records import BackgroundRecord, run_record
from ralph.conversation.session import replay
from ralph.permissions.gate import CallGate
from ralph.retry.backoff import off
from ralph.values.controls import RunControls
from ralph.values.events import Background, BackgroundEnded, BackgroundStarted, Event
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
    roster_of,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ralph.values.answer import Answer, ToolCall

SHAPE = RequestShape("claude-sonnet-5-5", "system", (ECHO, TOUCH))
DONE = answer(text("All done."))
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


class Life:
    """One process of a session."""

    def __init__(
        self,
        *script: Answer,
        journal: FakeJournal | None = None,
        prompt: str | None = None,
        may_continue: bool = False,
    ) -> None:
        self.client = ScriptedClient(script)
        self.events = RecordingEvents()
        self.journal = journal or FakeJournal.of_run(SHAPE)
        session = replay(self.journal.records) if journal else None
        if journal:
            journal.append(run_record(SHAPE, "later", 2))
            session = replay(journal.records)
        waiter = FakeWaiter()
        self.controls = RunControls()
        self.run = AgentLoop(
            roster_of("claude-sonnet-5-5"),
            off(),
            client=self.client,
            toolbox=Servers(),
            waiter=waiter,
            clock=waiter.clock,
            journal=self.journal,
            events=self.events,
            controls=self.controls,
            gate=CallGate(RunControls(), RecordingEvents()),
            session=session,
        )
        self.controls.may_continue = lambda: may_continue
        self.ended = self.run.run(prompt)

    @property
    def background(self) -> list[Event]:
        return [one for one in self.events.events if isinstance(one, BackgroundStarted | BackgroundEnded)]

    def told(self, request: int = 0) -> list[str]:
        blocks = json.loads(self.client.bodies[request])["messages"][-1]["content"]
        return [str(block["text"]) for block in blocks if block["type"] == "text"]


def records_of(life: Life) -> list[BackgroundRecord]:
    return [one for one in life.journal.records if isinstance(one, BackgroundRecord)]


def test_what_runs_is_recorded_before_the_result_and_stopped_with_the_run() -> None:
    life = Life(answer(call("t", "Touch")), DONE, prompt="the task")
    assert life.journal.kinds[-5:] == ["tool_intent", "background", "tool_result", "assistant", "ended"]
    assert records_of(life) == [BackgroundRecord(count=1, running=DEV)]
    assert life.background == [STARTED, BackgroundEnded("bash_1", "npm run dev", stopped_by="run")]
    assert life.ended.background_stopped == 1


def test_the_next_run_tells_the_model_once_which_are_gone() -> None:
    first = Life(answer(call("t", "Touch")), DONE, prompt="the task")
    second = Life(DONE, journal=first.journal, prompt="and now?")
    gone = "System notice: These background commands of the earlier run are gone: bash_1 (npm run dev)."
    assert second.told() == ["and now?", gone]
    assert second.ended.background_stopped == 0
    third = Life(DONE, journal=second.journal, prompt="and then?")
    assert third.told() == ["and then?"]
    assert replay(third.journal.records).background == BackgroundRecord(count=1, running={})


def test_between_the_tasks_of_one_process_they_run_on() -> None:
    life = Life(answer(call("t", "Touch")), DONE, DONE, DONE, prompt="one", may_continue=True)
    assert (life.background, life.ended.background_stopped) == ([STARTED], 0)
    assert life.run.run("two", run_record(SHAPE, "then", 2)).background_stopped == 0
    assert life.told(2) == ["two"], "nothing is gone"
    assert replay(life.journal.records).background.running == DEV
    life.controls.may_continue = lambda: False
    assert life.run.run("three", run_record(SHAPE, "at last", 2)).background_stopped == 1
    assert len(life.background) == 2
    later = Life(DONE, journal=life.journal, prompt="four")
    assert "bash_1 (npm run dev)" in later.told()[1]
