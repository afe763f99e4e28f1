"""Limits on turns, money and time end a run exactly where the specification says."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from itertools import count
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ralph.conversation.notices import ANSWER_IN_TEXT, CALL_THE_REPORT, LIMIT_LIFTED
from ralph.conversation.session import replay
from ralph.conversation.target import Target
from ralph.values.errors import AgentError, HttpError, StreamTransient
from ralph.values.events import (
    AttemptEnded,
    FinalTurnEntered,
    Notice,
    RetryExhausted,
    RetryRecovered,
    RetryScheduled,
    TurnAsked,
    TurnStarted,
)
from ralph.values.limits import LimitSettings
from ralph.values.models import Price
from ralph.values.outcome import Outcome
from ralph.values.usage import TokenUsage
from tests.fakes import FakeClock, FakeJournal, FakeWaiter, answer, call, text
from tests.fakes.played import DONE, PLAIN_FORM, Played, report
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Callable

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


def test_turn_1_of_1_runs_its_tools_and_asks_nobody_again() -> None:
    played = Played(*turns_of(1), limits=LimitSettings(max_turns=1))
    assert played.calls_made == 1
    assert played.ran == ["c0"]
    assert (played.ended.outcome, played.ended.exit_code) == (Outcome.LIMIT_REACHED, 3)
    assert (played.ended.num_turns, played.ended.limit) == (1, "max_turns")
    assert played.result["subtype"] == "error_max_turns"
    assert played.events.of(FinalTurnEntered) == []
    assert "1 turn" in played.result["result"], "the result says why there is no answer"


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


def test_an_answer_before_the_last_allowed_turn_is_unforced() -> None:
    played = Played(*turns_of(1), DONE, limits=LimitSettings(max_turns=3))
    assert played.ended.exit_code == 0
    assert told(played, FINAL) == []


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


@every_row("empties", [[answer()] * 4, [answer(text("x"), stop_reason="max_tokens")] * 4])
def test_a_final_turn_that_gives_no_closing_answer_ends_as_its_limit(empties: list[Answer]) -> None:
    played = Played(*turns_of(1), *empties, limits=LimitSettings(max_turns=2))
    assert (played.ended.exit_code, played.ended.limit) == (3, "max_turns")
    assert played.result["result"]


def test_a_session_that_goes_on_behind_results_has_its_last_turn_as_the_final_one() -> None:
    first = Played(*turns_of(1), limits=LimitSettings(max_turns=1))
    again = FakeJournal()
    again.records = list(first.journal.records)
    played = Played(
        answer(text("closing")),
        session=replay(again.records),
        journal=again,
        prompt=None,
        limits=LimitSettings(max_turns=1),
    )
    assert told(played, FINAL) == [0]
    assert (played.ended.exit_code, played.ended.result) == (3, "closing")


def test_limits_are_of_an_invocation_and_turns_of_a_task() -> None:
    played = Played(*turns_of(1), *turns_of(1), DONE, limits=LimitSettings(max_turns=1))
    assert played.ended.exit_code == 3
    assert played.task(LIMIT_LIFTED).exit_code == 3
    assert played.task("and now?").exit_code == 0


# -- Money. ------------------------------------------------------------------------------------------------------

# A dollar a token makes a budget a number of tokens.
DOLLARS = Price(1e6, 1e6, 1e6, 1e6, 1e6)


def target(name: str = "m", price: Price = DOLLARS, **more: Any) -> Target:
    return Target(name, name, "http://127.0.0.1:1", price=price, **more)


def max_tokens(played: Played, index: int) -> int:
    wanted: int = played.request(index)["max_tokens"]
    return wanted


@every_row(("left", "is_asked"), [(1023, False), (1024, True), (1025, True)])
def test_an_answer_under_1024_tokens_is_not_bought(left: int, is_asked: bool) -> None:
    # How large the estimate is exactly is its own tests' business: here it is what a run grants of a large budget.
    large = Played(DONE, targets=[target()], limits=LimitSettings(max_budget_usd=20_000))
    estimate = 20_000 - max_tokens(large, 0)
    played = Played(DONE, targets=[target()], limits=LimitSettings(max_budget_usd=estimate + left))
    assert played.calls_made == int(is_asked)
    if is_asked:
        assert max_tokens(played, 0) == left
        return
    assert (played.ended.exit_code, played.ended.limit) == (3, "max_budget_usd")
    assert played.result["subtype"] == "error_max_budget_usd"
    assert "budget" in played.result["result"]
    assert played.cost_usd == 0


def test_max_tokens_is_left_alone_where_the_budget_is_no_matter() -> None:
    assert max_tokens(Played(DONE), 0) == 32_000
    assert max_tokens(Played(DONE, limits=LimitSettings(max_budget_usd=1000)), 0) == 32_000


def test_an_answer_that_is_meant_to_be_short_may_be_so() -> None:
    short = target(max_tokens=500)
    played = Played(DONE, targets=[short], limits=LimitSettings(max_budget_usd=20_000))
    assert (played.ended.exit_code, max_tokens(played, 0)) == (0, 500)


def billed(error: AgentError, tokens: int) -> AgentError:
    error.tokens = TokenUsage(output=tokens)
    return error


def test_retries_to_one_target_send_identical_bytes_though_the_budget_shrinks() -> None:
    cut = [billed(StreamTransient("cut"), 100) for _ in range(2)]
    played = Played(*cut, DONE, targets=[target()], limits=LimitSettings(max_budget_usd=1e5))
    assert played.ended.exit_code == 0
    assert len(set(played.client.bodies)) == 1


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


def test_a_fallback_that_the_budget_does_not_buy_is_not_asked() -> None:
    dear = target("dear", Price(1e9, 1e9, 1e9, 1e9, 1e9))
    played = Played(
        HttpError(529, None, ""), targets=[target(), dear], limits=LimitSettings(max_budget_usd=50_000)
    )
    assert played.client.asked == [("m", 0)]
    assert (played.ended.exit_code, played.ended.limit) == (3, "max_budget_usd")


def test_the_budget_is_one_over_all_tasks_of_a_process() -> None:
    spent = answer(text("dear"), usage={"input_tokens": 50, "output_tokens": 15_000})
    played = Played(spent, targets=[target(max_tokens=15_000)], limits=LimitSettings(max_budget_usd=17_000))
    assert played.ended.exit_code == 0
    assert played.task("more").limit == "max_budget_usd"
    assert played.calls_made == 1


class HonestServer:
    """A server that never bills more than the worst case, which is one token for two bytes of the request, and
    `max_tokens`. It fails now and then.
    """

    def __init__(self, draw: Callable[..., Any]) -> None:
        self.draw = draw
        # One tokenizer: what it counts of the same text does not change from request to request.
        self.divisor = draw(st.sampled_from([1, 3]), label="two bytes a token, or six")
        self.numbers = count(1)

    def next(self, body: bytes) -> Answer:
        draw = self.draw
        asked = json.loads(body)
        # The worst case is drawn often, because otherwise no budget would be in danger.
        prompt = len(body) // 2 // self.divisor
        written = draw(st.sampled_from([0, prompt // 2, prompt]), label="written")
        read = draw(st.sampled_from([0, prompt - written]), label="read")
        output = draw(st.sampled_from([0, 20, asked["max_tokens"]]), label="output")
        usage = {
            "input_tokens": prompt - written - read,
            "cache_creation_input_tokens": written,
            "cache_read_input_tokens": read,
            "output_tokens": output,
        }
        kind = draw(st.sampled_from(["call", "call", "empty", "cut", "busy", "broken", "full", "done"]))
        number = next(self.numbers)
        match kind:
            case "busy":
                raise HttpError(529, None, "")
            case "full":
                raise HttpError(413, None, "")
            case "broken":
                broken = StreamTransient("cut")
                broken.tokens = TokenUsage(prompt - written - read, output, written, 0, read)
                raise broken
            case "call":
                return answer(call(f"c{number}", text="x" * draw(st.integers(0, 3000))), usage=usage)
            case "empty":
                return answer(usage=usage)
            case "cut":
                return answer(text("cut"), stop_reason="max_tokens", usage=usage)
            case _:
                return answer(text("Enough was said. " * 20), usage=usage)


prices = st.floats(0, 100).map(lambda price: round(price, 3))
PRICES = st.builds(Price, prices, prices, prices, prices, prices)


@settings(max_examples=20)
@given(data=st.data())
def test_the_budget_is_never_overshot(data) -> None:
    names = ["a", "b", "c"][: data.draw(st.integers(1, 3), label="targets")]
    targets = [
        target(
            name,
            data.draw(PRICES, label="price"),
            max_tokens=data.draw(st.sampled_from([None, 500, 5000])),
            context_window=data.draw(st.sampled_from([None, 6_000, 20_000])),
        )
        for name in names
    ]
    max_usd = data.draw(st.floats(0, 2), label="budget")
    limits = LimitSettings(max_turns=12, max_budget_usd=max_usd)
    server = HonestServer(data.draw)

    class Asked(Played):
        def task(self, prompt):
            self.client.send_message = self._send  # type: ignore[method-assign, assignment]
            return super().task(prompt)

        def _send(self, target, key, body, events, *, is_whole):
            self.client.bodies.append(b"".join(body.pieces()))
            self.client.asked.append((target.name, key))
            assert not is_whole
            return server.next(self.client.bodies[-1])

    played = Asked(
        targets=targets,
        limits=limits,
        strategy=data.draw(st.sampled_from(["fallback", "round_robin"]), label="strategy"),
    )
    assert played.cost_usd <= max_usd + 1e-9
    assert _bodies_of_a_chain_differ(played) == []
    opened = [event for event in played.events.of(RetryScheduled) if event.attempt == 1]
    closed = [*played.events.of(RetryRecovered), *played.events.of(RetryExhausted)]
    assert len(opened) == len(closed)
    assert played.ended.outcome is not Outcome.INTERNAL_ERROR
    by_name = {one.name: one for one in targets}
    for (name, _), body in zip(played.client.asked, played.client.bodies, strict=True):
        assert json.loads(body)["max_tokens"] >= min(1024, by_name[name].max_tokens or 1024)


def _bodies_of_a_chain_differ(played: Played) -> list[tuple[str, int]]:
    """The targets that received different bytes in one chain of retries, with the number of the event that ended
    the chain.
    """
    bodies = iter(played.client.bodies)
    found = []
    sent: dict[str, set[bytes]] = defaultdict(set)
    for number, event in enumerate(played.events.events):
        if isinstance(event, AttemptEnded):
            sent[event.target].add(next(bodies))
        if isinstance(event, AttemptEnded) and event.kind in {None, "context_overflow"}:
            found += [(name, number) for name, all_of_it in sent.items() if len(all_of_it) > 1]
            sent.clear()
    return found


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


def test_one_second_before_it_is_over_the_model_is_asked() -> None:
    played = timed(*turns_of(1), DONE, tool_s=599)
    assert (played.calls_made, played.ended.exit_code) == (2, 0)


def test_a_wait_that_would_outlast_the_run_is_not_begun() -> None:
    played = timed(HttpError(529, 60, ""), max_time_s=59)
    assert (played.ended.exit_code, played.calls_made) == (124, 1)
    assert played.waiter.sleeps == []


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


def test_one_notice_is_enough_whatever_limit_comes_near_next() -> None:
    played = timed(*turns_of(5), DONE, max_time_s=1000, tool_s=185)
    assert told(played, SAVE) == [5]
    both = Played(
        *spending(9.1, 0.1, 0.1, 0.1),
        DONE,
        targets=[target(max_tokens=2_000)],
        limits=LimitSettings(max_turns=6, max_budget_usd=100_000),
    )
    assert told(both, SAVE) == [1], "the budget came first; turn 5 of 6 is told nothing more"


def test_the_final_turn_is_not_asked_to_save_as_well() -> None:
    played = Played(
        *spending(9.5),
        answer(text("closing")),
        targets=[target(max_tokens=2_000)],
        limits=LimitSettings(max_turns=2, max_budget_usd=100_000),
    )
    assert told(played, SAVE) == []
    assert told(played, FINAL) == [1]


def test_a_notice_that_no_answer_followed_is_not_kept() -> None:
    played = Played(*turns_of(1), HttpError(401, None, ""), limits=LimitSettings(max_turns=3))
    assert told(played, SAVE) == [1]
    assert SAVE not in played.says


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


def test_what_is_said_beside_the_calls_of_a_final_turn_is_its_closing_answer() -> None:
    closing = answer(text("A is done, B is left."), call("late", "Touch"))
    played = Played(*turns_of(1), *[closing] * 4, limits=LimitSettings(max_turns=2))
    assert (played.ended.exit_code, played.ended.result) == (3, "A is done, B is left.")
    assert played.ended.report is None


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


def test_a_server_that_says_the_same_again_is_not_asked_for_ever() -> None:
    played = Played(*[TOO_MUCH_TOGETHER] * 2, models=["local"])
    assert (played.ended.exit_code, played.calls_made) == (3, 2)


# -- A server that does not count. ---------------------------------------------------------------------------------


def test_what_a_server_does_not_count_costs_the_most_that_it_can_have_been() -> None:
    uncounted = answer(text("x" * 400), usage={})
    played = Played(uncounted, targets=[target()], limits=LimitSettings(max_budget_usd=20_000))
    [attempt] = played.events.of(AttemptEnded)
    assert attempt.tokens.input >= len(played.client.bodies[0]) // 2
    assert 200 <= attempt.tokens.output <= max_tokens(played, 0)
    assert played.cost_usd > 0


def test_without_a_price_nothing_is_made_up() -> None:
    played = Played(answer(text("x"), usage={}), models=["local"])
    [attempt] = played.events.of(AttemptEnded)
    assert attempt.tokens == TokenUsage()
