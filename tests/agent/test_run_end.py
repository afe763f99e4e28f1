"""Tests what a run must still do at its end, and what a synthetic report says."""

from __future__ import annotations

from msgspec.structs import replace

from ralph.agent.run_end import Ending, Tally, hints_for
from ralph.conversation.target import Target
from ralph.values.answer import ToolCall
from ralph.values.errors import Api, HttpError, NetworkCause, StreamParse
from ralph.values.outcome import Outcome
from ralph.values.report import Report, ReportReceiver, plain_problems
from ralph.values.servers.endpoint import ANTHROPIC, OPENAI_CHAT, OPENAI_RESPONSES
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
