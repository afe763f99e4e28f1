"""The final report: when it is accepted, what a failed one costs, and what replaces it if none came."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ralph.agent.run_end import LAST_WORDS
from ralph.conversation.session import replay
from ralph.conversation.target import Target
from ralph.values.answer import FINAL_REPORT
from ralph.values.errors import HttpError
from ralph.values.events import (
    FinalTurnEntered,
    MalformedCallRefused,
    ReportAccepted,
    ResponseDiscarded,
    SyntheticRetry,
    TurnsCollapsed,
)
from ralph.values.limits import LimitSettings
from ralph.values.ports import SignalReceived, TimeIsUp
from ralph.values.servers import Price
from tests.fakes import FakeJournal, FakeWaiter, answer, call, text
from tests.fakes.played import ANY_FORM, DONE, PAYLOAD_FORM, PLAIN_FORM, Played, report
from tests.rows import every_row

if TYPE_CHECKING:
    from ralph.values.answer import Answer

GOOD = {"files": ["a.py"]}
IN_TEXT = answer(text('```json\n{"files": ["a.py"]}\n```'))
BAD = answer(report("bad", payload={"files": "a.py"}))
CUT = answer(
    {"type": "tool_use", "id": "cut", "name": FINAL_REPORT, "input": {"status": "success"}},
    stop_reason="max_tokens",
)


TWO_TURNS: dict[str, Any] = {"limits": LimitSettings(max_turns=2)}


def echo(number: int = 1) -> Answer:
    return answer(call(f"e{number}", text=f"step {number}"))


# -- Failed attempts. --------------------------------------------------------------------------------------------


def test_a_report_that_does_not_fit_is_told_where_and_what_was_expected() -> None:
    bad = report("bad", payload={"files": "a.py", "more": 1})
    played = Played(answer(bad), answer(report(payload=GOOD)), form=PAYLOAD_FORM)
    [refused] = played.results_in(1)
    assert "payload.files: expected an array" in refused["content"]
    assert '"more"' in refused["content"]
    assert played.events.of(SyntheticRetry) == [SyntheticRetry(1, 1, "invalid_report")]


def test_a_bad_report_leaves_nothing_behind_for_the_next_attempt_of_its_turn() -> None:
    script = [BAD, answer(call("x", "Unknown")), echo(), answer(report(payload=GOOD))]
    played = Played(*script, form=PAYLOAD_FORM)
    assert played.events.of(SyntheticRetry) == [SyntheticRetry(1, 1, "invalid_report")], "not the second one"
    assert played.ran == ["e1"]
    assert [event.new_max_turns for event in played.events.of(TurnsCollapsed)] == [2], "by the first alone"
    assert played.ended.num_turns == 2
    assert played.ended.exit_code == 0


@every_row("bad", [BAD, CUT])
def test_a_malformed_report_is_an_attempt_too(bad) -> None:
    played = Played(bad, answer(report(payload=GOOD)), form=PAYLOAD_FORM)
    assert played.results_in(1)[0]["is_error"] is True
    assert played.events.of(TurnsCollapsed) == [TurnsCollapsed(1, "report_failed", None, 2)]
    assert played.events.of(ReportAccepted)[0].attempts == 2
    assert len(played.events.of(MalformedCallRefused)) == 1
    assert played.ended.exit_code == 0


@every_row(("max_turns", "told"), [(9, [(9, 3)]), (4, [(4, 3)]), (3, []), (2, [])])
def test_a_failed_attempt_collapses_the_turns_that_are_left_to_one(max_turns, told) -> None:
    played = Played(
        echo(1),
        answer(report("bad", summary=""), call("e2", text="beside it")),
        *[answer(text("well..."))] * 4,
        form=PLAIN_FORM,
        limits=LimitSettings(max_turns=max_turns),
    )
    collapsed = played.events.of(TurnsCollapsed)
    assert [(event.old_max_turns, event.new_max_turns) for event in collapsed] == told
    expected = 1 if told else 3
    assert played.ended.exit_code == expected, "of the user's own limit the code is its own"


def test_the_turn_of_four_bad_reports_becomes_final_and_has_one_answer_left() -> None:
    bad = [answer(report(f"b{n}", summary="")) for n in range(8)]
    played = Played(*bad, form=PLAIN_FORM)
    retries = [(retry.turn, retry.number) for retry in played.events.of(SyntheticRetry)]
    assert retries == [(1, 1), (1, 2), (1, 3)]
    assert played.calls_made == 5
    assert played.events.of(FinalTurnEntered) == [FinalTurnEntered(1, "report")]
    assert played.ended.exit_code == 1
    details = played.result["final_report"]
    assert details["reason"] == "no_report"
    assert details["final_report_attempts"] == 5
    assert "summary" in details["last_error"]


def test_the_final_turn_asks_for_nothing_but_the_report() -> None:
    played = Played(
        echo(),
        answer(text("words")),
        answer(),
        answer(call("x", "Touch")),
        answer(report()),
        form=PLAIN_FORM,
        **TWO_TURNS,
    )
    assert played.ran == ["e1"]
    told = " ".join(played.last_words(3))
    assert "nothing but a call of final_report is accepted" in told
    assert "Go on with the tools" not in told
    assert "as text" not in told
    assert played.ended.exit_code == 0
    assert played.events.of(ReportAccepted) == [ReportAccepted("tool_call", "success", 2, 2, "max_turns")]


# -- Reports in text. --------------------------------------------------------------------------------------------


def test_a_payload_in_text_counts_for_nothing_before_the_final_turn() -> None:
    played = Played(IN_TEXT, answer(report(summary="By the tool.", payload=GOOD)), form=PAYLOAD_FORM)
    assert played.result["final_report"]["source"] == "tool_call"
    assert "```json" not in played.says, "the text was dropped"


def test_a_payload_in_the_final_turns_text_is_accepted_and_committed() -> None:
    played = Played(echo(), IN_TEXT, form=PAYLOAD_FORM, **TWO_TURNS)
    assert (played.ended.exit_code, played.result["structured_output"]) == (0, GOOD)
    assert played.events.of(ReportAccepted) == [ReportAccepted("text", "success", 2, 1, "max_turns")]
    assert "```json" in played.says
    assert played.events.of(ResponseDiscarded) == []


def test_a_payload_of_an_earlier_turn_is_forgotten_where_the_final_turn_brings_nothing() -> None:
    played = Played(IN_TEXT, echo(), *[answer()] * 4, form=PAYLOAD_FORM, **TWO_TURNS)
    assert played.ended.exit_code == 3
    assert "structured_output" not in played.result
    assert played.result["final_report"]["source"] == "synthetic"
    assert len(played.events.of(ResponseDiscarded)) == 5, "what was shown of a dropped answer is marked"


@every_row(
    "last_words",
    [answer(text("The tests fail; it is not done.")), answer(report("bad", payload={}))],
)
def test_what_the_model_says_last_takes_an_earlier_payload_back(last_words) -> None:
    script = [IN_TEXT, echo(), *[last_words] * 4]
    played = Played(*script, form=PAYLOAD_FORM, **TWO_TURNS)
    assert played.ended.exit_code == 3
    assert "structured_output" not in played.result
    assert played.result["final_report"]["source"] == "synthetic"


def test_the_tool_call_of_the_final_turn_wins_over_an_earlier_text() -> None:
    own = answer(report(payload={"files": []}))
    played = Played(IN_TEXT, echo(), own, form=PAYLOAD_FORM, **TWO_TURNS)
    assert played.result["structured_output"] == {"files": []}
    assert played.result["final_report"]["source"] == "tool_call"


SUCCESS = text('{"status": "success", "summary": "All tests pass."}')
PROMISES = {
    "plain": (PLAIN_FORM, answer(SUCCESS)),
    "payload": (PAYLOAD_FORM, IN_TEXT),
    "anything": (ANY_FORM, answer(text("[1, 2]"))),
}
TAKEN_BACK = answer(text("I was wrong: 3 tests fail."), call("back"))


@every_row("name", PROMISES)
def test_a_report_that_a_call_took_back_gives_way_to_another_and_is_no_end_without_one(name) -> None:
    form, promise = PROMISES[name]
    refused = [answer(call(f"x{n}", "Touch")) for n in range(4)]
    own = answer(report(status="failure", summary="3 tests fail."))
    for last, exit_code, source in (([*refused[:1], own], 1, "tool_call"), (refused, 3, "synthetic")):
        played = Played(promise, TAKEN_BACK, *last, form=form, **TWO_TURNS)
        assert (played.ended.exit_code, played.calls_made) == (exit_code, 2 + len(last))
        assert (played.result["final_report"]["source"], played.ran) == (source, ["back"])
        assert "structured_output" not in played.result


def test_a_report_that_was_dropped_is_forgotten_once_the_model_is_told() -> None:
    """The final turn follows at once, and its requests get empty answers."""
    played = Played(*[IN_TEXT] * 4, *[answer()] * 4, form=PAYLOAD_FORM)
    assert (played.ended.exit_code, played.result["final_report"]["source"]) == (1, "synthetic")
    assert "structured_output" not in played.result


@every_row(("stop", "exit_code"), [(TimeIsUp("over"), 0), (SignalReceived(15), 143)])
def test_a_report_that_was_accepted_outlives_what_stops_the_calls_beside_it(stop, exit_code) -> None:
    def stopped(calls: Any) -> None:
        raise stop

    played = Played(answer(report(payload=GOOD), call("t", "Touch")), on_run=stopped, form=PAYLOAD_FORM)
    assert played.ended.exit_code == exit_code, "a signal's code stays, a limit's does not"
    assert played.result["final_report"]["source"] == "tool_call"
    assert played.result["structured_output"] == GOOD


WORDS, NOTHING = answer(text("words")), answer()
COSTS = Target("m", "m", "http://127.0.0.1:1", price=Price(0, 1e6, 0, 0, 0), max_tokens=2_000)
SPENT = answer(call("e1"), usage={"input_tokens": 0, "output_tokens": 2_000})
IN_BUDGET = {"targets": [COSTS], "limits": LimitSettings(max_budget_usd=3_000)}
IN_TIME = {"waiter": FakeWaiter(run_ends_s=2), "limits": LimitSettings(max_time_s=2)}
REFUSAL = answer(text("No."), report(), stop_reason="refusal")
DOWN, DENIED, INVALID = (HttpError(status, None, "") for status in (529, 401, 400))
ENDS: dict[str, tuple[Any, ...]] = {
    # name: (script, options, exit code, reason, turns, attempts, last stop reason, a part of the last error)
    "turns": ([echo(), *[WORDS] * 4], TWO_TURNS, 3, "max_turns", 1, 4, "end_turn", "plain text"),
    "budget": ([SPENT], IN_BUDGET, 3, "max_budget_usd", 1, 0, "tool_use", "budget"),
    "time": ([echo(), DOWN], IN_TIME, 124, "max_time", 1, 0, "tool_use", "--max-time"),
    "guards": ([answer(call(f"e{n}")) for n in range(9)], {}, 4, "no_progress", 9, 0, "tool_use", "circles"),
    "empty": ([echo(), *[NOTHING] * 4], {}, 4, "no_progress", 1, 0, "end_turn", "empty"),
    "no report": ([echo(), *[WORDS] * 5], {}, 1, "no_report", 1, 5, "end_turn", "plain text"),
    "API": ([echo(), answer(report("bad", summary="")), DENIED], {}, 77, "auth", 1, 1, "tool_use", "401"),
    "API at once": ([INVALID], {}, 69, "api_rejected", 0, 0, None, "400"),
    "signal": ([echo(), SignalReceived(15)], {}, 143, "interrupted", 1, 0, "tool_use", "SIGTERM"),
    "refusal": ([REFUSAL], {}, 4, "no_progress", 1, 0, "refusal", "refused"),
}


@every_row("name", ENDS)
def test_every_end_without_a_report_has_one_synthetic_failure_report(name) -> None:
    script, options, exit_code, reason, turns, attempts, stop_reason, error = ENDS[name]
    played = Played(*script, form=PLAIN_FORM, **options)
    assert played.ended.exit_code == exit_code
    said = played.result["final_report"]
    summary, last_error = said.pop("summary"), said.pop("last_error")
    assert said == {
        "source": "synthetic",
        "status": "failure",
        "reason": reason,
        "turns_completed": turns,
        "final_report_attempts": attempts,
        "last_stop_reason": stop_reason,
    }
    assert error in last_error
    words = {"turns": "words", "no report": "words", "refusal": "No."}.get(name)
    told = summary if words is None else LAST_WORDS.format(summary=summary, words=words)
    assert played.result["result"] == told, "what the model did say is not lost"
    assert "structured_output" not in played.result
    assert played.result["subtype"] != "success"
    [event] = played.events.of(ReportAccepted)
    assert (event.source, event.status, event.attempts) == ("synthetic", "failure", attempts)
    assert event.turn == max(played.ended.num_turns, 1)


# -- Several tasks, and resumed sessions. ---------------------------------------------------------------------


def test_each_task_has_a_report_of_its_own_and_counts_afresh() -> None:
    bad = answer(report("b1", summary=""))
    second_bad = answer(report("b2", summary=""), call("e2"))
    played = Played(
        echo(),
        bad,
        answer(report("r1")),
        second_bad,
        answer(report("r2", status="failure", summary="Could not.")),
        *[answer(text("words"))] * 8,
        form=PLAIN_FORM,
        limits=LimitSettings(max_turns=5),
    )
    assert (played.ended.exit_code, played.ended.num_turns) == (0, 2)
    second = played.task("the second")
    assert (second.exit_code, second.result, second.num_turns) == (1, "Could not.", 2)
    third = played.task("the third")
    assert third.report is not None
    assert (third.exit_code, third.report.source) == (1, "synthetic")
    assert third.report.details["final_report_attempts"] == 5
    assert third.report.details["turns_completed"] == 0
    assert [event.attempts for event in played.events.of(ReportAccepted)] == [2, 2, 5]
    assert [event.old_max_turns for event in played.events.of(TurnsCollapsed)] == [5, 5, 5]


def killed_behind(*script: Answer, kinds_cut: int = 1) -> FakeJournal:
    """A journal that ends with the last answer, without the results of its calls and without an end."""
    played = Played(*script, DONE, form=PLAIN_FORM)
    records = played.journal.records
    last = max(n for n, record in enumerate(records) if record.kind == "assistant")
    return FakeJournal.of(records[: last + kinds_cut])


def resumed(journal: FakeJournal, *script: Answer, prompt: str | None = None) -> Played:
    session = replay(journal.records)
    return Played(*script, session=session, journal=journal, prompt=prompt, form=PLAIN_FORM)


def test_a_pending_report_is_received_when_its_session_continues() -> None:
    played = resumed(killed_behind(answer(report())))
    assert (played.ended.exit_code, played.calls_made) == (0, 0)
    assert played.result["final_report"]["source"] == "tool_call"


@every_row(("records", "ran"), [(2, ["e"]), (4, [])])
def test_a_report_whose_result_was_written_before_the_end_is_not_forgotten(records, ran) -> None:
    journal = killed_behind(answer(report(), call("e", "Touch")), kinds_cut=records)
    assert journal.kinds[-1] == "tool_result"
    played = resumed(journal)
    assert played.ran == ran
    assert (played.ended.exit_code, played.calls_made) == (0, 0)
    assert played.result["final_report"]["source"] == "tool_call"


def test_a_report_that_was_refused_counts_as_none_when_its_session_continues() -> None:
    played = resumed(
        killed_behind(answer(report(status="nearly")), kinds_cut=2), answer(report(summary="In order now."))
    )
    assert (played.ended.exit_code, played.calls_made) == (0, 1)
    assert played.result["final_report"]["summary"] == "In order now."
