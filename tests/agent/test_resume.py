"""A run that was killed after any of its records must be resumed there: nothing is lost, and no effect happens
twice.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from ralph.agent.call_rules import CallRules
from ralph.agent.run_end import Finishing
from ralph.agent.session_log import SessionLog
from ralph.agent.tool_turn import INTERRUPTED, ToolTurn
from ralph.conversation.messages import NOT_RUN, GrowingMapping, RequestShape
from ralph.conversation.records import DeliveryRecord, SessionError, run_record
from ralph.conversation.session import OpenAnswer, Session, replay
from ralph.permissions.gate import CallGate
from ralph.retry.backoff import off
from ralph.values.answer import FileChange, Runnable, ToolCall, ToolDefinition, ToolOutput
from ralph.values.controls import RunControls
from ralph.values.errors import HttpError
from ralph.values.outcome import Delivery, Outcome
from ralph.values.ports import HookStopped, SignalReceived
from tests.fakes import (
    ECHO,
    TOUCH,
    FakeJournal,
    FakeToolbox,
    RecordingEvents,
    answer,
    call,
    text,
)
from tests.fakes.played import DONE, Played
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.conversation.records import Record
    from ralph.values.answer import Answer, Ruling

WRITE = ToolDefinition("Write", "Changes a file.", {"type": "object", "properties": {}})
CHANGE = FileChange("/work/a", None, "after")
SHAPE = RequestShape("claude-sonnet-5-5", "system", (ECHO, TOUCH, WRITE))


def life(
    *script: Answer | BaseException,
    journal: FakeJournal | None = None,
    prompt: Any = None,
    settled: dict[str, ToolOutput] | None = None,
    gate: CallGate | None = None,
) -> Played:
    """One process of a session. It resumes the session of `journal`, if there is one."""
    toolbox = FakeToolbox()
    toolbox.definitions = SHAPE.tools
    toolbox.changes = {"w": CHANGE}
    toolbox.settled = settled or {}
    session = replay(journal.records) if journal else None
    if journal is not None:
        journal.append(run_record(SHAPE, "later", 2))
    return Played(
        *script, journal=journal, session=session, prompt=prompt, toolbox=toolbox, gate=gate, policy=off()
    )


def results_of(played: Played) -> dict[str, str]:
    return {
        block["tool_use_id"]: block["content"]
        for message in played.run.conversation.messages
        for block in message.content
        if block["type"] == "tool_result"
    }


FIRST = answer(text("I look."), call("e"), call("t", "Touch"), call("w", "Write"))
SECOND = answer(call("t2", "Touch"))
WHOLE = life(FIRST, SECOND, DONE, prompt="the task")


def cut(records: int) -> FakeJournal:
    return FakeJournal.of(WHOLE.journal.records[:records])


@every_row("length", range(3, len(WHOLE.journal.records)))
@every_row("had_effect", [False, True])
def test_p2_a_run_killed_after_any_record_ends_as_it_would_have(length, had_effect) -> None:
    journal = cut(length)
    intents = [record.id for record in journal.records if record.kind == "tool_intent"]
    results = [record.tool_use_id for record in journal.records if record.kind == "tool_result"]
    hanging = set(intents) - set(results)
    done = {CHANGE.path: ToolOutput("was done")} if had_effect else {}
    asked = sum(record.kind == "assistant" for record in journal.records)
    again = life(*[FIRST, SECOND, DONE][asked:], journal=journal, settled=done)
    assert again.ended.outcome is Outcome.COMPLETED
    ran = again.ran
    assert not set(ran) & set(results), "what has its result does not run again"
    for call_id in hanging:
        assert (call_id in ran) == (call_id == "e" or (call_id == "w" and not had_effect))
    assert results_of(again)["t"] == (INTERRUPTED if "t" in hanging else "done")
    assert results_of(again)["w"] == ("was done" if "w" in hanging and had_effect else "done")
    assert set(intents) | set(ran) == {"e", "t", "w", "t2"}


class TouchForbidden(CallGate):
    """A gate that forbids each call of Touch. If `stop` is given, it arrives when the call has just been judged."""

    def __init__(self, stop: BaseException | None = None) -> None:
        super().__init__(RunControls(), RecordingEvents())
        self._stop = stop

    def judge(self, checked: Runnable, check: Callable[[ToolCall], Ruling]) -> Ruling:
        if self._stop is not None:
            raise self._stop
        return ToolOutput("forbidden", is_error=True) if checked.call.name == "Touch" else checked


def test_each_call_is_judged_immediately_before_its_own_intent() -> None:
    order: list[str] = []

    class Gate(TouchForbidden):
        def judge(self, checked: Runnable, check: Callable[[ToolCall], Ruling]) -> Ruling:
            order.append(f"judge {checked.call.id}")
            return super().judge(checked, check)

    class Journal(FakeJournal):
        def append(self, *records: Record, sync: bool = True) -> None:
            super().append(*records, sync=sync)
            added = self.records[len(self.records) - len(records) :]
            order.extend(f"{one.kind} {one.id}" for one in added if one.kind == "tool_intent")
            order.extend(f"{one.kind} {one.tool_use_id}" for one in added if one.kind == "tool_result")
            order.extend(["sync"] if sync else [])

    journal = Journal.of_run(SHAPE)
    order.clear()
    toolbox = FakeToolbox(lambda calls: order.append(f"run {' '.join(one.id for one in calls)}"))
    toolbox.definitions = SHAPE.tools
    rules = CallRules(SHAPE.tools, Finishing(), None, RecordingEvents(), Gate())
    names = {"e": "Echo", "e2": "Echo", "w": "Write", "t": "Touch", "e3": "Echo"}
    calls = [ToolCall(one, name, {"text": one} if name == "Echo" else {}) for one, name in names.items()]
    opened = OpenAnswer(answer(*(call(one.id, one.name) for one in calls)), frozenset(names))
    log = SessionLog(journal, Session(pending=opened))
    ToolTurn(calls, toolbox, log, RecordingEvents(), rules).run()
    assert order == [
        *("judge e", "tool_intent e", "judge e2", "tool_intent e2"),
        *("run e e2", "tool_result e", "tool_result e2", "sync"),
        *("judge w", "tool_intent w", "sync", "run w", "tool_result w", "sync"),
        *("judge t", "tool_result t", "sync"),
        *("judge e3", "tool_intent e3", "run e3", "tool_result e3", "sync"),
    ]


PARALLEL = life(answer(call("e"), call("e2"), call("x", "None"), call("e3")), DONE, prompt="the task")


@every_row("length", range(4, len(PARALLEL.journal.records)))
def test_p2_a_run_killed_between_the_intents_of_parallel_calls_runs_each_of_them(length) -> None:
    journal = FakeJournal.of(PARALLEL.journal.records[:length])
    results = [record.tool_use_id for record in journal.records if record.kind == "tool_result"]
    again = life(DONE, journal=journal)
    assert results_of(again) == results_of(PARALLEL)
    ran = again.ran
    assert ran == [call_id for call_id in ("e", "e2", "e3") if call_id not in results]


@every_row("stop", [SignalReceived(15), HookStopped("enough")])
def test_a_stop_at_the_judgement_of_a_parallel_call_leaves_those_before_it_not_run(stop) -> None:
    class Stops(CallGate):
        def judge(self, checked: Runnable, check: Callable[[ToolCall], Ruling]) -> Ruling:
            if checked.call.id == "e2":
                raise stop
            return checked

    gate = Stops(RunControls(), RecordingEvents())
    stopped = life(answer(call("e"), call("e2")), prompt="the task", gate=gate)
    assert [record.id for record in stopped.journal.records if record.kind == "tool_intent"] == ["e"]
    assert stopped.toolbox.ran == []
    assert set(results_of(stopped).values()) == {NOT_RUN}


def test_a_prompt_after_a_refusal_with_calls_answers_them_unrun() -> None:
    refused = life(answer(call("t", "Touch"), stop_reason="refusal"), prompt="the task")
    killed = FakeJournal.of(
        record for record in refused.journal.records if record.kind not in {"tool_result", "ended"}
    )
    again = life(DONE, journal=killed, prompt="try this")
    assert results_of(again) == {"t": NOT_RUN}
    assert again.toolbox.ran == []


def test_a_record_that_no_run_writes_there_is_an_error_with_its_line() -> None:
    result = next(record for record in WHOLE.journal.records if record.kind == "tool_result")
    with pytest.raises(SessionError, match="line 4 makes no sense: the result of no call"):
        replay([*cut(3).records, result])


@every_row(("state", "is_completed"), [("delivered", 1), ("reader_left", 1), ("unread", 1), ("failed", 0)])
def test_a_session_is_completed_once_its_answer_has_reached_somebody(state, is_completed) -> None:
    told = FakeJournal.of(list(WHOLE.journal.records))
    before = replay(told.records)
    assert (before.is_completed, before.awaits_delivery) == (False, True)
    told.append(DeliveryRecord(state=Delivery(state)))
    after = replay(told.records)
    assert (after.is_completed, after.awaits_delivery) == (bool(is_completed), not is_completed)


def test_an_image_that_the_api_refused_is_not_sent_again_with_what_is_said_next() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    refused = life(HttpError(400, None, ""), prompt=[{"type": "text", "text": "see"}, image])
    assert refused.ended.outcome is Outcome.API_REJECTED
    again = life(DONE, journal=refused.journal, prompt="forget the image")
    [message] = json.loads(again.client.bodies[0])["messages"]
    assert [block.get("text", "image") for block in message["content"]] == ["see", "forget the image"]
    overloaded = life(HttpError(529, None, ""), prompt=[{"type": "text", "text": "see"}, image])
    kept = life(DONE, journal=overloaded.journal, prompt="well?")
    assert b'"image"' in kept.client.bodies[0], "an outage is no refusal"


def test_the_newest_thing_seen_of_a_file_counts_and_is_no_part_of_the_conversation() -> None:
    first = life(answer(call("e")), answer(call("e2")), DONE, prompt="go")
    records = list(first.journal.records)
    older, newer = [at for at, record in enumerate(records) if record.kind == "tool_result"]
    for at, seen in ((older, {"/a": "1", "/b": "1"}), (newer, {"/a": "2"})):
        records[at] = replace(records[at], seen=seen)
    session = replay(records)
    assert session.seen == {"/a": "2", "/b": "1"}
    assert session.conversation.messages == replay(first.journal.records).conversation.messages


class InterruptedToolbox(FakeToolbox):
    def settle(self, change: FileChange) -> ToolOutput | None:
        raise SignalReceived(15)


def test_p7_a_signal_while_a_write_is_settled_leaves_its_effects_unknown() -> None:
    journal = FakeJournal.of_run(SHAPE)
    toolbox = InterruptedToolbox()
    toolbox.definitions = SHAPE.tools
    events = RecordingEvents()
    rules = CallRules(SHAPE.tools, Finishing(), None, events, CallGate(RunControls(), events))
    turn = ToolTurn(
        [ToolCall("w", "Write", {})],
        toolbox,
        SessionLog(
            journal,
            Session(
                pending=OpenAnswer(
                    answer(call("w", "Write")), frozenset("w"), intents=GrowingMapping({"w": CHANGE})
                )
            ),
        ),
        events,
        rules,
    )
    with pytest.raises(SignalReceived):
        turn.run()
    assert turn.finished["w"].output == ToolOutput(INTERRUPTED, is_error=True)
