"""Limits on turns, money and time end a run exactly where the specification says."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from ralph.conversation.notices import ANSWER_IN_TEXT, CALL_THE_REPORT, LIMIT_LIFTED
from ralph.conversation.session import replay
from ralph.conversation.target import Target
from ralph.values.errors import AgentError, HttpError, StreamTransient
from ralph.values.events import (
    FinalTurnEntered,
    Notice,
    RetryExhausted,
    TurnAsked,
    TurnStarted,
)
from ralph.values.limits import LimitSettings
from ralph.values.outcome import Outcome
from ralph.values.servers.models import Price
from ralph.values.usage import TokenUsage
from tests.fakes import FakeClock, FakeWaiter, answer, call, text
from tests.fakes.played import DONE, PLAIN_FORM, Played, report
from tests.rows import every_row

if TYPE_CHECKING:
    from ralph.values.answer import Answer

FINAL = "This is the final turn"
SAVE = "Save your work now"


def turns_of(count: int) -> list[Answer]:
    """Answers with one call each, all of them different."""
    return [answer(call(f"c{n}", text=f"step {n}")) for n in range(count)]


def told(played: Played, words: str) -> list[int]:
    """The indices of the requests whose last message contains these words."""
    return [n for n in range(played.calls_made) if words in json.dumps(played.sent(n)[-1])]


# -- Turns. ------------------------------------------------------------------------------------------------------


def test_turn_1_of_1_may_be_the_answer() -> None:
    played = Played(DONE, limits=LimitSettings(max_turns=1))
    assert (played.ended.exit_code, played.ended.result) == (0, "All done.")
    assert told(played, FINAL) == []


@every_row("max_turns", [2, 3, 7])
def test_the_last_allowed_turn_is_told_that_it_is_the_final_one(max_turns: int) -> None:
    closing = answer(text("Half of it is done."))
    played = Played(*turns_of(max_turns - 1), closing, limits=LimitSettings(max_turns=max_turns))
    assert told(played, FINAL) == [max_turns - 1]
    assert played.events.of(FinalTurnEntered) == [FinalTurnEntered(max_turns, "max_turns")]
    assert (played.ended.exit_code, played.ended.limit) == (3, "max_turns")
    assert (played.ended.result, played.ended.report) == ("Half of it is done.", None)
    assert played.ended.num_turns == max_turns
    assert FINAL in played.says, "the notice is committed with the answer to it"


@every_row(("form", "words"), [(None, ANSWER_IN_TEXT), (PLAIN_FORM, CALL_THE_REPORT)])
def test_other_tools_are_refused_in_the_final_turn_and_nothing_runs(form, words: str) -> None:
    stubborn = [answer(call("x", "Touch"), call("y"), call("z", "Launch")) for _ in range(4)]
    played = Played(*turns_of(1), *stubborn, limits=LimitSettings(max_turns=2), form=form)
    assert played.ran == ["c0"]
    refused = played.results_in(2)
    assert [block["is_error"] for block in refused] == [True] * 3
    assert all(words in block["content"] for block in refused)
    assert played.calls_made == 1 + 4, "the first of the final turn and three more"
    assert (played.ended.exit_code, played.ended.limit) == (3, "max_turns")


def test_the_tool_list_is_the_same_to_the_byte_in_every_request() -> None:
    played = Played(
        *turns_of(2), answer(call("x")), answer(report()), limits=LimitSettings(max_turns=3), form=PLAIN_FORM
    )
    heads = {body.split(b'"messages":')[0] for body in played.client.bodies}
    assert len(heads) == 1
    assert played.calls_made == 4


# -- Money. ------------------------------------------------------------------------------------------------------

# A dollar a token makes a budget a number of tokens.
DOLLARS = Price(1e6, 1e6, 1e6, 1e6, 1e6)


def target(name: str = "m", price: Price = DOLLARS, **more: Any) -> Target:
    return Target(name, name, "http://127.0.0.1:1", price=price, **more)


def max_tokens(played: Played, index: int) -> int:
    wanted: int = played.request(index)["max_tokens"]
    return wanted


def billed(error: AgentError, tokens: int) -> AgentError:
    error.tokens = TokenUsage(output=tokens)
    return error


def test_a_retry_that_the_budget_no_longer_buys_ends_the_run_at_once() -> None:
    played = Played(
        billed(StreamTransient("cut"), 10),
        billed(StreamTransient("cut"), 19_000),
        targets=[target(max_tokens=9_000)],
        limits=LimitSettings(max_budget_usd=20_000),
    )
    assert played.calls_made == 2
    assert (played.ended.exit_code, played.ended.limit) == (3, "max_budget_usd")
    [closed] = played.events.of(RetryExhausted)
    assert (closed.retries, closed.total_wait_s) == (1, 2), "one was made, the second was not"
    assert played.waiter.sleeps == [2], "nobody waits for what cannot be paid"
    assert [asked.attempts for asked in played.events.of(TurnAsked)] == [2]
    assert "cut" in played.ended.errors[0], "the error before it is told too"


# -- Time. -------------------------------------------------------------------------------------------------------


def timed(*script: Any, max_time_s: float = 600, tool_s: float = 0, **more: Any) -> Played:
    clock = FakeClock()

    def works(calls) -> None:
        clock.seconds += tool_s

    waiter = FakeWaiter(clock, run_ends_s=max_time_s)
    limits = LimitSettings(max_time_s=max_time_s)
    return Played(*script, on_run=works, waiter=waiter, limits=limits, **more)


def test_nobody_is_asked_once_the_time_is_over() -> None:
    played = timed(*turns_of(1), tool_s=600)
    assert played.calls_made == 1
    assert played.ran == ["c0"]
    assert (played.ended.exit_code, played.ended.outcome) == (124, Outcome.TIMED_OUT)
    assert played.result["final_report"]["reason"] == "max_time"
    assert played.result["result"]


# -- Nearly used up. ---------------------------------------------------------------------------------------------


def spending(*shares: float) -> list[Answer]:
    """Answers that cost the given shares of 10,000 output tokens."""
    return [
        answer(call(f"s{n}", text=str(n)), usage={"input_tokens": 0, "output_tokens": round(share * 1e4)})
        for n, share in enumerate(shares)
    ]


def test_each_limit_asks_once_to_save_the_work() -> None:
    closing = answer(text("closing"))
    by_turns = Played(*turns_of(9), closing, limits=LimitSettings(max_turns=10))
    assert told(by_turns, SAVE) == [8]
    assert told(by_turns, FINAL) == [9]

    budget = LimitSettings(max_budget_usd=100_000)
    cheap = [target(max_tokens=2_000)]
    by_budget = Played(*spending(4, 4.9, 0.1, 0.1, 0.1), closing, targets=cheap, limits=budget)
    assert told(by_budget, SAVE) == [3]

    by_time = timed(*turns_of(5), closing, max_time_s=600, tool_s=110)
    assert told(by_time, SAVE) == [5]

    for played in (by_turns, by_budget, by_time):
        assert len([notice for notice in played.events.of(Notice) if "nearly used up" in notice.text]) == 1
        assert played.says.count(SAVE) == 1, "committed with the answer that followed it"


def test_every_turn_is_announced_with_its_number() -> None:
    played = Played(*turns_of(3), answer(text("closing")), limits=LimitSettings(max_turns=4))
    assert [event.turn for event in played.events.of(TurnStarted)] == [1, 2, 3, 4]
    assert math.isinf(played.waiter.time_left_s())


# -- Words that no longer hold. ------------------------------------------------------------------------------------


@every_row("limits", [LimitSettings(max_turns=2), LimitSettings(max_turns=5)])
def test_a_task_after_one_that_was_told_of_its_limit_is_told_that_it_is_lifted(limits: LimitSettings) -> None:
    # With a limit of two turns, the last one is final. With five, the fourth is told that the limit is near.
    first = [*turns_of((limits.max_turns or 0) - 1), answer(text("So far."))]
    played = Played(*first, DONE, DONE, limits=limits)
    assert played.ended.exit_code == 3
    assert played.task("and now?").exit_code == 0
    said = [block["text"] for block in played.sent(len(first))[-1]["content"]]
    assert said == [LIMIT_LIFTED, "and now?"]
    assert played.task("and then?").exit_code == 0
    assert [block["text"] for block in played.sent(len(first) + 1)[-1]["content"]] == ["and then?"]
    assert LIMIT_LIFTED not in json.dumps([list(task) for task in replay(played.journal.records).tasks])


# -- A server that says how much it can hold. ----------------------------------------------------------------------

TOO_MUCH_TOGETHER = HttpError(
    400,
    None,
    "",
    message="input length and `max_tokens` exceed context limit: 900 + 32000 > 32768, decrease input length",
)


def test_a_prompt_that_fits_with_a_shorter_answer_is_asked_again_with_one() -> None:
    played = Played(TOO_MUCH_TOGETHER, DONE, models=["local"])
    assert played.ended.exit_code == 0
    assert [max_tokens(played, index) for index in (0, 1)] == [32_000, 32_768 - 900]
    assert played.ended.retries == 0, "an overflow never counts as one"


# -- A server that does not count. ---------------------------------------------------------------------------------
