"""Answers of no use: ralph asks again at most three times per turn, and such answers leave no trace in the
conversation.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ralph.conversation.next_step import FAILURES
from ralph.retry.backoff import off
from ralph.values.errors import AgentError, HttpError, Json, StreamParse
from ralph.values.events import (
    AnswerAccepted,
    ResponseDiscarded,
    RetryExhausted,
    RetryRecovered,
    RetryScheduled,
    SyntheticRetry,
    UserMessageCommitted,
)
from ralph.values.limits import LimitSettings
from ralph.values.outcome import Outcome
from tests.fakes import answer, call, text
from tests.fakes.played import DONE, PLAIN_FORM, Played, report
from tests.rows import every_row

if TYPE_CHECKING:
    from ralph.values.answer import Answer

THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
EMPTY = answer()
BLANK = answer(text(" \n "))
THINKING = answer(THOUGHT)
WORDS = answer(text("It is done, I think."))
STOPPED = answer(text("Let me look."), stop_reason="tool_use")
BAD_REPORT = answer(report("b", summary=""))

# What each kind of useless answer is called, and a word of what the model is told. None: a result tells it.
USELESS: dict[str, tuple[Answer, str, str, Any]] = {
    "nothing at all": (EMPTY, "empty", "was empty", None),
    "white space": (BLANK, "empty", "was empty", None),
    "thinking": (THINKING, "thinking_only", "held thinking only", None),
    "text that stopped for a tool": (STOPPED, "no_call", "stopped for a tool call, held none", None),
    "text for a report": (WORDS, "no_report", "plain text does not end this task", PLAIN_FORM),
    "nothing for a report": (EMPTY, "empty", "was empty", PLAIN_FORM),
}


def retries(played: Played) -> list[tuple[int, int, str]]:
    return [(event.turn, event.number, event.reason) for event in played.events.of(SyntheticRetry)]


@every_row("name", USELESS)
def test_a_useless_answer_is_dropped_and_asked_for_again_with_a_notice(name) -> None:
    useless, reason, words, form = USELESS[name]
    good = answer(report()) if form else DONE
    played = Played(useless, good, form=form)
    assert played.ended.exit_code == 0
    assert retries(played) == [(1, 1, reason)]
    [notice] = played.last_words(1)[1:]
    assert words in notice
    named = [name for name in FAILURES if "_" in name and name.encode() in played.client.bodies[1]]
    assert named == [], "the reason is for events and journal"
    assert len(played.events.of(ResponseDiscarded)) == 1
    assert len(played.events.of(AnswerAccepted)) == 1
    roles = [message.role for message in played.run.conversation.messages]
    assert roles[:2] == ["user", "assistant"], "the useless answer is not in it"
    assert played.says.count(words) == 1, "the notice is, with the answer that it led to"


def test_every_reason_is_one_of_the_named() -> None:
    others = {"invalid_report", "refused_calls", "damaged"}
    assert {reason for _, reason, _, _ in USELESS.values()} | others == set(FAILURES)


def test_an_equal_notice_is_told_once_and_another_one_beside_it() -> None:
    played = Played(EMPTY, EMPTY, THINKING, DONE)
    assert [len(played.last_words(n)) for n in range(4)] == [1, 2, 2, 3]
    assert played.client.bodies[1] == played.client.bodies[2]


def test_a_notice_that_no_answer_came_of_is_not_kept() -> None:
    played = Played(EMPTY, HttpError(401, None, ""))
    assert played.ended.outcome is Outcome.AUTH
    assert "was empty" not in played.says
    assert [message.role for message in played.run.conversation.messages] == ["user"]
    assert played.events.of(UserMessageCommitted) == []


def test_notices_go_into_one_message_with_the_results_before_them() -> None:
    played = Played(answer(call("a")), EMPTY, DONE)
    kinds = [block["type"] for block in played.sent(2)[-1]["content"]]
    assert kinds == ["tool_result", "text"]
    [_, told] = played.events.of(UserMessageCommitted)
    assert [block["type"] for block in told.content] == ["text"], "the results were told before"


def test_a_failed_request_and_a_useless_answer_are_counted_apart() -> None:
    busy = [HttpError(529, None, "")] * 4
    played = Played(*busy, EMPTY, *busy, EMPTY, *busy, DONE)
    assert played.ended.exit_code == 0
    assert played.ended.retries == 12
    assert [number for _, number, _ in retries(played)] == [1, 2]


def test_failed_reports_and_missing_ones_count_together() -> None:
    played = Played(WORDS, BAD_REPORT, EMPTY, answer(report()), form=PLAIN_FORM)
    assert played.ended.exit_code == 0
    assert retries(played) == [(1, 1, "no_report"), (1, 2, "invalid_report"), (1, 3, "empty")]
    over = Played(WORDS, BAD_REPORT, EMPTY, WORDS, answer(report("late")), form=PLAIN_FORM)
    assert len(retries(over)) == 3
    assert over.result["final_report"]["source"] == "tool_call", "in the final turn that follows"


DAMAGED = [Json("x"), StreamParse("odd")]


@every_row("damaged", DAMAGED)
def test_a_turn_asks_three_times_on_account_of_damage_and_the_third_time_for_a_whole_answer(damaged) -> None:
    once = Played(damaged, answer(call("a")), damaged, DONE)
    assert once.ended.exit_code == 0
    assert retries(once) == [(1, 1, "damaged"), (2, 1, "damaged")]
    assert once.client.bodies[0] == once.client.bodies[1]
    twice = Played(damaged, damaged, DONE)
    assert (twice.ended.exit_code, retries(twice)) == (0, [(1, 1, "damaged"), (1, 2, "damaged")])
    assert [is_whole(body) for body in twice.client.bodies] == [False, False, True]
    assert [how["is_whole"] for how in twice.client.how] == [False, False, True]
    thrice = Played(damaged, damaged, damaged, DONE)
    assert (thrice.ended.outcome, thrice.calls_made) == (Outcome.API_REJECTED, 3)
    between = Played(damaged, EMPTY, damaged, damaged, DONE)
    assert (between.ended.outcome, between.calls_made) == (Outcome.API_REJECTED, 4)
    assert [is_whole(body) for body in between.client.bodies] == [False, False, False, True]
    each = Played(damaged, damaged, answer(call("a")), damaged, damaged, DONE)
    assert (each.ended.exit_code, each.calls_made) == (0, 6)
    assert [is_whole(body) for body in each.client.bodies] == [False, False, True] * 2


def is_whole(body: bytes) -> bool:
    return json.loads(body)["stream"] is False


def test_a_whole_answer_has_at_most_16000_tokens_and_fewer_if_the_budget_pays_for_fewer() -> None:
    played = Played(Json("x"), Json("x"), DONE)
    assert [json.loads(body)["max_tokens"] for body in played.client.bodies] == [32_000, 32_000, 16_000]
    poor = Played(Json("x"), Json("x"), DONE, limits=LimitSettings(max_budget_usd=0.11))
    assert json.loads(poor.client.bodies[-1])["max_tokens"] < 16_000
    assert (
        Played(Json("x"), DONE, limits=LimitSettings(max_budget_usd=0.0001)).ended.outcome
        is Outcome.LIMIT_REACHED
    )


def test_the_retries_of_a_turn_that_asks_past_damage_count_together() -> None:
    busy = HttpError(529, None, "")
    played = Played(busy, Json("x"), busy, Json("x"), busy, busy, DONE)
    assert (played.ended.exit_code, played.ended.waited_s) == (0, 2 + 4 + 8 + 16)
    scheduled = played.events.of(RetryScheduled)
    assert [(one.attempt, one.wait_s) for one in scheduled] == [(1, 2), (2, 4), (3, 8), (4, 16)]
    closed = [type(one) for one in played.events.events if isinstance(one, RetryRecovered | RetryExhausted)]
    assert closed == [RetryExhausted, RetryExhausted, RetryRecovered], "one for each chain that was open"
    over = Played(busy, Json("x"), busy, Json("x"), busy, busy, busy, DONE)
    assert (over.ended.exit_code, over.calls_made) == (75, 7)
    afresh = Played(*[busy] * 4, Json("x"), answer(call("a")), *[busy] * 4, DONE)
    assert afresh.ended.exit_code == 0, "the next turn has retries of its own"
    useless = Played(*[busy] * 4, Json("x"), EMPTY, *[busy] * 4, DONE)
    assert useless.ended.exit_code == 0, "and so has what is asked for another reason"


def test_a_run_whose_answers_nearly_all_come_damaged_ends() -> None:
    """Two targets are asked in turn, so that a turn may meet more damage than it has asks."""

    def played(*script: Answer | AgentError) -> Played:
        return Played(*script, models=("a", "b"), strategy="round_robin", policy=off())

    damage: list[AgentError] = [Json("x")] * 4
    spared = played(*damage, answer(call("a")), *damage[:3], answer(call("b")), DONE)
    assert (spared.ended.exit_code, spared.calls_made) == (0, 10), "7 of 8 is not yet enough"
    late = played(*damage, answer(call("a")), *damage[:3], answer(call("b")), *damage[:2], DONE)
    assert (late.ended.exit_code, late.calls_made) == (69, 11), "8 of 10"
    ended = played(*damage, answer(call("a")), *damage, answer(call("b")), DONE)
    assert (ended.ended.outcome, ended.calls_made) == (Outcome.API_REJECTED, 9), "8 of 9"
