"""Limits on turns, money and time end a run exactly where the specification says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ralph.conversation.next_step import ANSWER_IN_TEXT, CALL_THE_REPORT, LIMIT_LIFTED
from ralph.conversation.session import replay
from ralph.conversation.target import Target
from ralph.values.errors import HttpError
from ralph.values.events import (
    Notice,
)
from ralph.values.limits import LimitSettings
from ralph.values.servers import Price
from tests.fakes import FakeClock, FakeWaiter, answer, call, text
from tests.fakes.played import DONE, PLAIN_FORM, Played
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


@every_row(("form", "words"), [(None, ANSWER_IN_TEXT), (PLAIN_FORM, CALL_THE_REPORT)])
def test_other_tools_are_refused_in_the_final_turn_and_nothing_runs(form, words) -> None:
    stubborn = [answer(call("x", "Touch"), call("y"), call("z", "Launch")) for _ in range(4)]
    played = Played(*turns_of(1), *stubborn, limits=LimitSettings(max_turns=2), form=form)
    assert played.ran == ["c0"]
    refused = played.results_in(2)
    assert [block["is_error"] for block in refused] == [True] * 3
    assert all(words in block["content"] for block in refused)
    assert played.calls_made == 1 + 4, "the first of the final turn and three more"
    assert (played.ended.exit_code, played.ended.limit) == (3, "max_turns")


# A dollar a token makes a budget a number of tokens.
DOLLARS = Price(1e6, 1e6, 1e6, 1e6, 1e6)


def target(name: str = "m", price: Price = DOLLARS, **more: Any) -> Target:
    return Target(name, name, "http://127.0.0.1:1", price=price, **more)


def max_tokens(played: Played, index: int) -> int:
    wanted: int = played.request(index)["max_tokens"]
    return wanted


def timed(*script: Any, max_time_s: float = 600, tool_s: float = 0, **more: Any) -> Played:
    clock = FakeClock()

    def works(calls) -> None:
        clock.seconds += tool_s

    waiter = FakeWaiter(clock, run_ends_s=max_time_s)
    limits = LimitSettings(max_time_s=max_time_s)
    return Played(*script, on_run=works, waiter=waiter, limits=limits, **more)


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


@every_row("limits", [LimitSettings(max_turns=2), LimitSettings(max_turns=5)])
def test_a_task_after_one_that_was_told_of_its_limit_is_told_that_it_is_lifted(limits) -> None:
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
