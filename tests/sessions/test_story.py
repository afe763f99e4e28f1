"""The history of a session for people, from its records: of a completed, a killed, a forked and a newer session."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ralph.conversation.journal_lines import JournalDamage
from ralph.conversation.messages import user_message
from ralph.conversation.records import UserRecord, user_record
from ralph.sessions.story import NOT_DELIVERED, CallOutcome, ModelText, Prompt, SessionStory
from ralph.sessions.story_text import session_export
from ralph.values.outcome import Delivery
from tests.fakes import call, text
from tests.journals.reading import forked_record
from tests.rows import every_row
from tests.sessions.session_journals import JournalBuilder, completed, killed


def told(journal: JournalBuilder) -> SessionStory:
    return journal.story


def happenings(journal: JournalBuilder) -> list[object]:
    return [step for run in told(journal).runs for step in (*run.steps, *run.open_calls())]


def test_an_ended_run_says_itself_what_it_took() -> None:
    history = told(completed())
    assert (history.end, history.turns, history.task) == ("completed", 2, "fix the failing test")
    assert history.cost_usd == history.runs[0].cost_usd == pytest.approx(0.003)
    assert history.is_completed


def test_without_an_end_turns_and_cost_are_those_of_the_answers() -> None:
    history = told(killed())
    assert history.end is None
    assert history.turns == 0, "the next run counts the answer that nothing has followed"
    assert history.cost_usd == pytest.approx(0.0003)
    assert told(killed().result("c2", "ok").result("c3", "ok")).turns == 1


def test_a_fork_counts_its_own_runs_only() -> None:
    journal = (
        JournalBuilder(forked_from="older")
        .run("2026-11-20T00:00:00+00:00")
        .prompt("old")
        .answers(text("x"))
        .ends()
    )
    assert (told(journal).turns, told(journal).cost_usd) == (0, 0)
    journal.run("2026-11-21T13:00:00+00:00").prompt("new").answers(text("y")).ends()
    assert ([run.is_copied for run in told(journal).runs], told(journal).turns) == ([True, False], 2)
    assert told(journal).task == "old"


def forked(new: JournalBuilder, old: JournalBuilder) -> list[Any]:
    return [forked_record(new.records[0], old.records), *old.records[1:]]


@every_row("started_at", ["2026-11-20T00:00:00+00:00", "2026-11-22T00:00:00+00:00"])
def test_what_a_fork_has_copied_is_told_by_number_whatever_the_clock_said(started_at) -> None:
    old = JournalBuilder().run(started_at).prompt("old").answers(text("x")).ends()
    fork = JournalBuilder("s2")
    fork.records = forked(fork, old)
    fork.run("2026-11-21T11:00:00+00:00").prompt("new").answers(text("y")).ends()
    assert [run.is_copied for run in told(fork).runs] == [True, False]
    fork.run("2026-11-23T00:00:00+00:00")  # and was killed at once
    again = JournalBuilder("s3")
    again.records = forked(again, fork)
    assert told(again).own_runs == []


def test_a_session_that_has_only_begun_is_empty_and_no_error() -> None:
    assert (told(JournalBuilder()).runs, told(JournalBuilder()).task) == ([], "")
    assert session_export(JournalBuilder().look())["messages"] == []


def test_a_result_of_no_call_is_damage_in_its_line() -> None:
    journal = completed().result("c9", "of no call").prompt("more")
    with pytest.raises(JournalDamage, match="line 18 makes no sense: the result of no call"):
        happenings(journal)


def test_the_story_has_each_call_where_its_result_came() -> None:
    story = happenings(completed())
    kinds = [type(happening).__name__ for happening in story]
    assert kinds == ["Prompt", "ModelText", "CallOutcome", "CallOutcome", *["EventStep"] * 6, "ModelText"]
    called = [happening for happening in story if isinstance(happening, CallOutcome)]
    assert [each.call.arguments for each in called] == [{"command": "pytest -q"}, {"file_path": "a.py"}]
    assert all(each.result is not None for each in called)


def test_a_killed_run_ends_with_the_calls_that_have_no_result() -> None:
    called = [happening for happening in happenings(killed()) if isinstance(happening, CallOutcome)]
    assert [(each.call.id, each.result is not None, each.was_started) for each in called] == [
        ("c1", True, True),
        ("c2", False, True),
        ("c3", False, False),
    ]


def test_a_result_of_the_next_run_belongs_to_a_call_of_the_one_before() -> None:
    journal = killed().run("2026-11-22T00:00:00+00:00").result("c2", "interrupted", is_error=True)
    last = happenings(journal)[-1]
    assert isinstance(last, CallOutcome)
    assert last.call.arguments == {"command": "make c2"}
    first, _ = told(journal).runs
    assert [each.call.id for each in first.open_calls()] == ["c2", "c3"], "it had no result in its own run"


def test_what_ralph_says_to_the_model_in_between_is_no_prompt() -> None:
    journal = JournalBuilder().run().prompt("go").answers(text("half"))
    journal.append(user_record(user_message("Go on exactly where it stopped.")))
    prompts = [happening for happening in happenings(journal) if isinstance(happening, Prompt)]
    assert [prompt.is_automatic for prompt in prompts] == [False, True]


def test_of_a_message_that_takes_anothers_place_only_what_it_adds_is_told() -> None:
    journal = JournalBuilder().run().prompt("the task")
    added = [{"type": "text", "text": "the task"}, {"type": "text", "text": "hurry"}]
    journal.append(UserRecord(content=tuple(added), amends=True, task=1))
    assert happenings(journal) == [Prompt("the task"), Prompt("hurry")]


def test_an_older_journal_does_not_tell_who_spoke() -> None:
    journal = JournalBuilder().run()
    journal.append_as_written("user", {"content": [text("go")]})
    journal.answers(text("half"))
    journal.append_as_written("user", {"content": [text("Go on exactly where it stopped.")]})
    prompts = [happening for happening in happenings(journal) if isinstance(happening, Prompt)]
    assert [prompt.is_automatic for prompt in prompts] == [False, True]


def test_messages_are_what_the_api_gets() -> None:
    messages = session_export(completed().look())["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant"]
    assert [block["type"] for block in messages[2]["content"]] == ["tool_result", "tool_result"]


def test_a_call_that_nothing_could_be_made_of_is_told_as_it_was_written() -> None:
    journal = JournalBuilder().run().prompt("go").answers(call("c1", "Bash", command="x"))
    malformed = {"c1": ('{"comm', "it is not JSON")}
    journal.records[-1] = replace(journal.records[-1], malformed=malformed)
    journal.result("c1", "not run", is_error=True)
    [called] = [happening for happening in happenings(journal) if isinstance(happening, CallOutcome)]
    assert called.call.arguments == {"INVALID_JSON": '{"comm'}
    assert ModelText("x") not in happenings(journal)


def test_a_result_that_reached_nobody_is_told_beside_the_end_of_the_work() -> None:
    failed = told(JournalBuilder().run().prompt("x").answers(text("a")).ends(delivery=Delivery.FAILED))
    assert (failed.end, failed.is_completed) == (NOT_DELIVERED, False)
    assert failed.runs[0].undelivered == "the result was not delivered (exit 74): no room"
    killed = told(JournalBuilder().run().prompt("x").answers(text("a")).ends(delivery=None))
    assert (killed.end, killed.is_completed) == (NOT_DELIVERED, False)
    assert killed.runs[0].undelivered == "it is unknown whether the result was delivered"


@every_row("delivery", [Delivery.DELIVERED, Delivery.READER_LEFT, Delivery.UNREAD])
def test_a_reader_that_had_the_result_or_did_not_want_it_leaves_the_end_as_it_was(delivery) -> None:
    history = told(JournalBuilder().run().prompt("x").answers(text("a")).ends(delivery=delivery))
    assert (history.end, history.is_completed, history.runs[0].undelivered) == ("completed", True, None)


@every_row(
    ("last", "pid", "is_known"),
    [(Delivery.DELIVERED, 1, True), (Delivery.FAILED, 1, False), (Delivery.DELIVERED, 2, False)],
)
def test_what_a_process_sent_before_a_result_that_was_delivered_was_delivered_too(
    last, pid, is_known
) -> None:
    journal = JournalBuilder().run(pid=1).prompt("x").answers(text("a")).ends(delivery=None)
    first, _ = told(journal.run(pid=pid).prompt("y").answers(text("b")).ends(delivery=last)).runs
    assert (first.undelivered is None) is is_known


def test_a_result_that_is_told_again_counts_its_turns_once() -> None:
    journal = JournalBuilder().run().prompt("x").answers(text("a")).ends(turns=1, delivery=Delivery.FAILED)
    history = told(journal.run().ends(turns=1))
    assert (history.turns, history.end) == (1, "completed")
    was_killed = JournalBuilder().run().prompt("x").answers(text("a"), call("b")).run().ends(turns=1)
    assert told(was_killed).turns == 1, "the run that was killed has counted none of it"
