"""Tests what a run must still do at its end, and what a synthetic report says."""

from __future__ import annotations

import math

from msgspec.structs import replace

from ralph.agent.run_end import FORCES, Ending, Finishing, Tally, hints_for
from ralph.conversation.target import Target
from ralph.values.answer import ToolCall
from ralph.values.errors import Api, HttpError, NetworkCause, StreamParse
from ralph.values.events import TurnsCollapsed
from ralph.values.limits import Budget
from ralph.values.outcome import Outcome
from ralph.values.report import Report, ReportReceiver, plain_problems
from ralph.values.servers import ANTHROPIC, OPENAI_CHAT, OPENAI_RESPONSES
from tests.rows import every_row

REPORT = Report("success", "Did it.", None, "tool_call")
AT_WORK = {Outcome.LIMIT_REACHED, Outcome.TIMED_OUT, Outcome.NO_PROGRESS, Outcome.TASK_FAILED}


@every_row("outcome", Outcome)
def test_a_run_that_was_at_work_owes_an_answer(outcome) -> None:
    assert Ending(outcome).lacks_answer(needs_report=False) is (outcome in AT_WORK)
    assert not Ending(outcome, result="So far.").lacks_answer(needs_report=False)


@every_row("outcome", Outcome)
def test_where_a_report_is_required_every_end_without_one_owes_it(outcome) -> None:
    assert Ending(outcome, result="Words.").lacks_answer(needs_report=True)
    assert not Ending(outcome, report=REPORT).lacks_answer(needs_report=True)


def refused_receiver() -> ReportReceiver:
    receiver = ReportReceiver(plain_problems, has_payload=False)
    receiver.receive(ToolCall("r", "final_report", {"status": "success"}))
    return receiver


@every_row(
    ("ending", "is_about_the_report"),
    [
        (Ending(Outcome.TASK_FAILED, error="why"), True),
        (Ending(Outcome.LIMIT_REACHED, error="why", limit="max_turns"), True),
        (Ending(Outcome.LIMIT_REACHED, error="why", limit="context"), True),
        (Ending(Outcome.LIMIT_REACHED, error="why", limit="max_budget_usd"), False),
        (Ending(Outcome.TIMED_OUT, error="why"), False),
        (Ending(Outcome.NO_PROGRESS, error="why"), False),
        (Ending(Outcome.AUTH, error="why", cause=HttpError(401, None, "")), False),
        (
            Ending(Outcome.LIMIT_REACHED, error="why", cause=HttpError(413, None, ""), limit="context"),
            False,
        ),
    ],
)
def test_the_last_error_is_the_one_that_came_last(ending, is_about_the_report) -> None:
    last_error = ending.stand_in(refused_receiver(), Tally(), None).details["last_error"]
    assert ("summary" in str(last_error)) is is_about_the_report
    assert (last_error == "why") is not is_about_the_report


def test_a_report_stands_where_the_answer_would() -> None:
    ended = Ending(Outcome.COMPLETED, result="Words.", report=REPORT).told(Tally(), 1.0, ())
    assert (ended.result, ended.report) == ("Did it.", REPORT)
    without = replace(Ending(Outcome.COMPLETED, result="Words."), error=None).told(Tally(), 1.0, ())
    assert (without.result, without.errors) == ("Words.", ())


@every_row(
    ("outcome", "expected"),
    [(Outcome.API_UNAVAILABLE, 30.0), (Outcome.AUTH, None), (Outcome.LIMIT_REACHED, None)],
)
def test_only_who_may_come_back_later_is_told_when(outcome, expected) -> None:
    assert Ending(outcome, cause=HttpError(429, 30.0, "")).retry_after_s == expected


@every_row(
    ("error", "advice"),
    [
        (HttpError(404, None, ""), "there is no {api} API at this address (--base-url, --api)"),
        (HttpError(405, None, ""), "Is that a {api} API? Check --base-url, {variable} and --api."),
        (StreamParse("a page"), "Is that a {api} API? Check --base-url, {variable} and --api."),
        (Api(NetworkCause.BAD_URL, ""), "Check --base-url and {variable}: "),
        (Api(NetworkCause.DNS_UNKNOWN_HOST, ""), "(--base-url, {variable}), and whether"),
    ],
)
@every_row(
    ("api", "name", "variable"),
    [
        (ANTHROPIC, "Messages", "ANTHROPIC_BASE_URL"),
        (OPENAI_CHAT, "Chat Completions", "OPENAI_BASE_URL"),
        (OPENAI_RESPONSES, "Responses", "OPENAI_BASE_URL"),
    ],
)
def test_the_advice_is_about_the_api_of_the_target(api, name, variable, error, advice) -> None:
    (hint,) = hints_for(error, Target("m", "m", "http://host.test/v1", api=api), "K")
    assert advice.format(api=name, variable=variable) in hint


# --- The final turn and the limits


@every_row(
    ("max_turns", "turn", "is_over"),
    [(None, 10**6, False), (1, 1, False), (1, 2, True), (5, 5, False), (5, 6, True)],
)
def test_turns_are_used_up_after_the_last_allowed_one(max_turns, turn, is_over) -> None:
    assert Finishing(max_turns).is_over(turn) is is_over


@every_row(
    ("max_turns", "turn", "follows_tools", "reason"),
    [
        (None, 10**6, True, None),
        (3, 2, True, None),
        (3, 3, True, "max_turns"),
        (3, 3, False, None),
        (1, 1, False, None),
        (1, 1, True, "max_turns"),  # a session that is resumed behind its tools' results
    ],
)
def test_the_last_allowed_turn_is_the_final_one_where_tools_came_before(
    max_turns, turn, follows_tools, reason
) -> None:
    assert Finishing(max_turns).makes_final(turn, follows_tools=follows_tools) == reason


def test_a_final_turn_does_not_become_final_again() -> None:
    finishing = Finishing(3, reason="context")
    assert finishing.is_final
    assert finishing.makes_final(3, follows_tools=True) is None


@every_row(
    ("max_turns", "turn", "new"),
    [(None, 4, 5), (9, 4, 5), (6, 4, 5), (5, 4, None), (4, 4, None), (1, 1, None)],
)
def test_a_failed_report_leaves_one_turn_more_and_never_adds_one(max_turns, turn, new) -> None:
    finishing = Finishing(max_turns)
    collapsed = finishing.collapse(turn, "report_failed")
    if new is None:
        assert collapsed is None
        assert finishing.max_turns == max_turns
        return
    assert collapsed == TurnsCollapsed(turn, "report_failed", max_turns, new)
    assert finishing.max_turns == new
    assert finishing.makes_final(new, follows_tools=True) == "report"
    assert finishing.collapse(turn, "report_failed") is None, "once"


@every_row(
    ("finishing", "reason", "outcome", "limit"),
    [
        (Finishing(3), None, Outcome.LIMIT_REACHED, "max_turns"),
        (Finishing(3, reason="max_turns"), None, Outcome.LIMIT_REACHED, "max_turns"),
        (Finishing(3, reason="context"), None, Outcome.LIMIT_REACHED, "context"),
        (Finishing(None), "context", Outcome.LIMIT_REACHED, "context"),
        (Finishing(3, reason="max_turns"), "context", Outcome.LIMIT_REACHED, "max_turns"),
        (Finishing(3, reason="report"), None, Outcome.TASK_FAILED, None),
    ],
)
def test_a_forced_end_counts_as_what_forced_it(finishing, reason, outcome, limit) -> None:
    end = finishing.forced_end(reason)
    assert end.error is not None
    assert (end.outcome, end.limit) == (outcome, limit)
    assert "None" not in end.error


def test_turns_that_a_report_has_shortened_are_no_limit_of_the_users() -> None:
    finishing = Finishing(9)
    finishing.collapse(4, "report_failed")
    assert finishing.forced_end().outcome is Outcome.TASK_FAILED


def test_a_limit_that_a_failed_report_could_not_shorten_is_still_the_users() -> None:
    finishing = Finishing(5)
    finishing.collapse(4, "report_failed")
    assert finishing.makes_final(5, follows_tools=True) == "max_turns"
    assert finishing.forced_end().outcome is Outcome.LIMIT_REACHED


def test_every_reason_is_one_of_the_named() -> None:
    assert {"max_turns", "context", "report"} == set(FORCES)


# -- The notice at 90 %. -----------------------------------------------------------------------------------------


def near(
    finishing: Finishing,
    *,
    turn: int = 1,
    spent: float = 0,
    time_left_s: float = math.inf,
    max_time_s: float | None = None,
) -> str | None:
    return finishing.newly_near(turn, Budget(100, spent_usd=spent), time_left_s, max_time_s)


@every_row(
    ("max_turns", "first"),
    [(3, 2), (4, 3), (10, 9), (11, 10), (20, 18), (100, 90)],
)
def test_a_turn_limit_is_near_at_its_ninth_tenth_and_always_before_the_final_turn(max_turns, first) -> None:
    turns = [turn for turn in range(1, max_turns + 1) if near(Finishing(max_turns), turn=turn)]
    assert turns[0] == first
    assert first < max_turns


@every_row("max_turns", [None, 1, 2])
def test_a_limit_of_two_turns_has_no_turn_to_warn_in(max_turns) -> None:
    assert near(Finishing(max_turns), turn=max_turns or 10**6) is None


@every_row(("spent", "is_near"), [(89.9, False), (90, True), (99, True)])
def test_a_budget_is_near_when_a_tenth_is_left(spent, is_near) -> None:
    said = near(Finishing(), spent=spent)
    assert (said is not None) is is_near
    assert not is_near or "$100" in str(said)


@every_row(
    ("time_left_s", "max_time_s", "is_near"),
    [(61, 600, False), (60, 600, True), (1, 600, True), (1, None, False)],
)
def test_a_time_limit_is_near_when_a_tenth_is_left(time_left_s, max_time_s, is_near) -> None:
    said = near(Finishing(), time_left_s=time_left_s, max_time_s=max_time_s)
    assert (said is not None) is is_near
    assert not is_near or str(said) == "the time limit of 10m"


def test_it_is_told_once_whatever_comes_near_next() -> None:
    finishing = Finishing(10)
    assert near(finishing, turn=9) is not None
    assert near(finishing, turn=9, spent=95) is None
    assert near(finishing, turn=9, time_left_s=1, max_time_s=600) is None


def test_the_final_turn_is_not_told() -> None:
    assert near(Finishing(10, reason="context"), turn=9, spent=95) is None
