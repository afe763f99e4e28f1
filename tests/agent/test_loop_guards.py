"""The guards in the real agent loop: a run that repeats itself must end, and a long run that makes progress must
not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.conversation.records import result_record
from ralph.conversation.session import replay
from ralph.values.answer import ToolOutput, ToolResult
from ralph.values.events import GuardTripped
from tests.fakes import FakeJournal, answer, call
from tests.fakes.played import DONE, PLAIN_FORM, Played, report

if TYPE_CHECKING:
    from ralph.values.answer import Answer


def same(count: int, first: int = 0) -> list[Answer]:
    """One call again and again, each time in an answer of its own."""
    return [answer(call(f"s{first + n}")) for n in range(count)]


def refusals(played: Played) -> list[int]:
    return [event.refusals for event in played.events.of(GuardTripped)]


def test_what_stands_behind_the_last_refusal_is_not_run() -> None:
    last = answer(call("s8"), call("b", "Touch"), call("c", text="new"), call("d", "Launch"))
    played = Played(*same(8), last)
    assert played.ended.exit_code == 4
    assert played.ran == ["s0", "s1", "s2"]
    assert [block["is_error"] for block in played.last_results] == [True] * 4
    assert all("the run ends here" in block["content"] for block in played.last_results[1:])


def test_a_report_behind_the_last_refusal_is_not_received() -> None:
    played = Played(*same(8), answer(call("s8"), report()), form=PLAIN_FORM)
    assert played.ended.exit_code == 4
    assert played.result["final_report"]["source"] == "synthetic"
    assert played.result["guard"]["name"] == "repetition"


def test_each_task_has_guards_of_its_own() -> None:
    played = Played(*same(4), DONE, *same(3, 4), DONE)
    assert played.task("again").exit_code == 0
    assert refusals(played) == [1]


def test_calls_that_an_earlier_process_ran_count() -> None:
    pending = Played(answer(*[call(f"s{n}") for n in range(4)]), DONE)
    behind_the_answer = pending.journal.kinds.index("assistant") + 1
    killed = FakeJournal.of(pending.journal.records[:behind_the_answer])
    killed.append(*(result_record(ToolResult(f"s{n}", ToolOutput("hi"))) for n in range(3)))
    played = Played(DONE, session=replay(killed.records), journal=killed, prompt=None)
    assert played.ran == []
    assert refusals(played) == [1]
    assert [block.get("is_error", False) for block in played.results_in(0)] == [False, False, False, True]
