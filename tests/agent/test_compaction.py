"""A full context must become a fresh one, whatever filled it and however the summary fails. This must always
end.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ralph.agent.compaction import MOST_SUMMARY_TOKENS
from ralph.conversation.notices import LIMIT_LIFTED, final_turn
from ralph.conversation.session import replay
from ralph.values.errors import AgentError, HttpError, Json, StreamParse
from ralph.values.events import (
    AnswerAccepted,
    ContextCompacted,
    FinalTurnEntered,
    ResponseDiscarded,
    RetryRecovered,
    RetryScheduled,
    SyntheticRetry,
)
from ralph.values.limits import LimitSettings
from ralph.values.outcome import Outcome
from ralph.values.ports import SignalReceived
from ralph.values.usage import cost_usd
from tests.agent.small_windows import DONE, SUMMARY, Request, SmallServer, World, target, too_long, works
from tests.fakes import FakeWaiter, answer, call, text
from tests.rows import every_row

EXCEEDED = answer(text("Half an ans"), stop_reason="model_context_window_exceeded")
DOWN = HttpError(529, None, "")


# --- What makes room, and what it counts as

TRIGGERED = [
    pytest.param("threshold", [works(1), works(2), DONE], {}, id="over 80 % of the window"),
    pytest.param("overflow", [works(1), works(2), DONE], {"window": 8_000}, id="refused as too long"),
    pytest.param("overflow", [works(1), HttpError(413, None, ""), DONE], {}, id="refused as too large"),
    pytest.param(
        "overflow",
        [works(1), StreamParse("prompt is too long", "invalid_request_error"), DONE],
        {},
        id="refused inside the stream",
    ),
    pytest.param("window_exceeded", [works(1), EXCEEDED, DONE], {}, id="the answer did not fit"),
]


@every_row(("trigger", "script", "server"), TRIGGERED)
def test_d8_each_trigger_leads_to_a_fresh_context_and_the_run_goes_on(
    trigger: str, script: list[Any], server: dict[str, Any]
) -> None:
    window = 20_000 if trigger == "threshold" else None
    world = World(SmallServer(script, **server), target(window=window, model="claude-haiku-5-5"))
    assert (world.ended.outcome, world.ended.result) == (Outcome.COMPLETED, "All done.")
    [compaction] = world.compactions
    assert (compaction.trigger, compaction.source) == (trigger, "model")
    assert compaction.post_tokens < compaction.pre_tokens * 3 / 4
    [fresh] = world.fresh_requests
    assert "Mend the parser." in fresh.texts
    assert SUMMARY in "".join(fresh.texts)
    assert (world.ended.retries, world.ended.waited_s) == (0, 0), "no retry, and nothing to wait for"
    assert world.events.of(RetryScheduled) == []


def test_nothing_is_made_room_for_while_there_is_room() -> None:
    server = SmallServer([works(1), DONE])
    assert World(server).compactions == []
    assert len(server.requests) == 2


def test_an_answer_that_did_not_fit_is_dropped() -> None:
    world = World(SmallServer([works(1), EXCEEDED, DONE]))
    assert "Half an ans" not in str(world.journal.records)
    assert world.ended.result == "All done."


def test_a_summary_call_is_no_turn_and_no_answer_but_is_paid_for() -> None:
    world = World(SmallServer([works(1), works(2), DONE]))
    assert len(world.server.summary_calls) == 1
    assert world.ended.num_turns == 3
    accepted = world.events.of(AnswerAccepted)
    assert [SUMMARY in str(event.message) for event in accepted] == [False] * 3
    told = [
        type(event)
        for event in world.events.events
        if isinstance(event, ContextCompacted | ResponseDiscarded)
    ]
    assert told == [ContextCompacted, ResponseDiscarded], "its text does not count as an answer"
    asked = sum(len(request.body) // 4 for request in world.server.requests)
    assert world.ended.usage.tokens.prompt == asked
    assert world.ended.usage.cost_usd == pytest.approx(cost_usd(target().facts, world.ended.usage.tokens))


def test_a_summary_call_is_short_and_its_retries_are_ordinary_ones() -> None:
    fails: list[Any] = [DOWN, DOWN, answer(text(SUMMARY))]
    world = World(SmallServer([works(1), works(2), DONE], summaries=fails))
    calls = world.server.summary_calls
    assert len({request.body for request in calls}) == 1, "identical bytes"
    assert len(calls) == 3
    assert all(request.fields["max_tokens"] <= MOST_SUMMARY_TOKENS for request in calls)
    assert (world.ended.retries, world.ended.outcome) == (2, Outcome.COMPLETED)
    [recovered] = world.events.of(RetryRecovered)
    assert recovered.retries == 2


@every_row("damaged", [Json("x"), StreamParse("odd")])
def test_a_damaged_summary_is_asked_for_once_more_and_belongs_to_no_turn(damaged: AgentError) -> None:
    server = SmallServer([works(1), works(2), damaged, DONE], summaries=[damaged, answer(text(SUMMARY))])
    world = World(server)
    assert (world.ended.outcome, world.ended.retries) == (Outcome.COMPLETED, 0)
    assert len({request.body for request in server.summary_calls}) == 1, "identical bytes"
    assert (len(server.summary_calls), world.compactions[0].source) == (2, "model")
    assert [event.reason for event in world.events.of(SyntheticRetry)] == ["damaged", "damaged"]


def test_a_summary_and_its_turn_ask_past_damage_each_for_themselves() -> None:
    damaged = [Json("x")] * 2
    server = SmallServer([works(1), works(2), *damaged, DONE], summaries=[*damaged, answer(text(SUMMARY))])
    world = World(server)
    assert world.ended.outcome is Outcome.COMPLETED
    assert [request.fields["stream"] for request in server.summary_calls] == [True, True, False]
    streamed = [one.fields["stream"] for one in server.requests if one not in server.summary_calls]
    assert streamed == [True, True, True, True, False]
    full = HttpError(413, None, "")
    server = SmallServer([works(1), Json("x"), full, DONE], summaries=[*damaged, answer(text(SUMMARY))])
    assert World(server).ended.outcome is Outcome.COMPLETED
    assert [request.fields["stream"] for request in server.summary_calls] == [True, True, False]


def test_summaries_that_all_come_damaged_leave_the_other_ways_to_make_room() -> None:
    server = SmallServer([works(1), works(2), DONE], summaries=[Json("x")] * 6)
    world = World(server)
    assert (world.ended.outcome, world.compactions[0].source) == (Outcome.COMPLETED, "cut")
    assert [request.fields["stream"] for request in server.summary_calls] == [True, True, False] * 2


def test_a_summary_call_goes_on_from_the_cached_prefix() -> None:
    server = SmallServer([works(1), works(2), DONE])
    World(server)
    before, summary = server.requests[1], server.summary_calls[0]
    assert summary.messages[: len(before.messages)] == before.messages
    assert summary.head == before.head


# --- Ends in the middle of it

STOPS = [
    pytest.param(SignalReceived(15), {}, Outcome.INTERRUPTED, 143, id="a signal"),
    pytest.param(DOWN, {"run_ends_s": 20.0}, Outcome.TIMED_OUT, 124, id="the time limit"),
    pytest.param(HttpError(401, None, ""), {}, Outcome.AUTH, 77, id="a key that is refused"),
]


@every_row(("step", "waiting", "outcome", "code"), STOPS)
def test_an_end_during_the_summary_call_leaves_the_old_context_as_it_was(
    step: BaseException, waiting: dict[str, Any], outcome: Outcome, code: int
) -> None:
    server = SmallServer([works(1), works(2)], summaries=[step] * 5)
    world = World(server, waiter=FakeWaiter(**waiting))
    assert (world.ended.outcome, world.ended.exit_code) == (outcome, code)
    assert world.compactions == []
    assert "compacted" not in world.journal.kinds
    assert [message.role for message in world.run.conversation.messages] == ["user", "assistant"] * 2 + [
        "user"
    ]
    again = World(SmallServer([DONE]), journal=world.journal, prompt=None)
    assert again.ended.outcome is Outcome.COMPLETED
    assert len(again.compactions) == 1


def test_an_outage_during_the_summary_call_ends_as_an_outage() -> None:
    world = World(SmallServer([works(1), works(2)], summaries=[DOWN] * 5))
    assert (world.ended.outcome, world.ended.retries) == (Outcome.API_UNAVAILABLE, 4)


def test_d12_a_budget_that_does_not_buy_the_summary_ends_the_run_before_it() -> None:
    server = SmallServer([works(1), works(2), DONE])
    whole = World(server).ended.usage.cost_usd
    for share in (0.3, 0.5, 0.7, 0.9):
        limits = LimitSettings(max_budget_usd=whole * share)
        world = World(SmallServer([works(1), works(2), DONE]), limits=limits)
        assert (world.ended.outcome, world.ended.limit) == (Outcome.LIMIT_REACHED, "max_budget_usd")
        assert world.ended.usage.cost_usd <= whole * share
        assert world.ended.report is not None


# --- What survives


def words(number: int) -> str:
    return f"Task {number}:\n\n  * keep `a  b`\t* never touch größe{number}.py \u2028 \n"


def test_three_compactions_in_a_row_keep_tasks_prompt_and_changed_files_to_the_byte() -> None:
    server = SmallServer([works(number) for number in range(1, 10)] + [DONE])
    world = World(server, prompt=words(1))
    assert world.ended.outcome is Outcome.COMPLETED
    assert [event.source for event in world.compactions] == ["model"] * len(world.compactions)
    assert len(world.compactions) >= 3
    assert len({request.head for request in server.requests}) == 1, "the system prompt and the tools"
    for request, written in zip(world.fresh_requests, (1, 3, 5), strict=False):
        assert words(1) in request.texts
        [files] = [one for one in request.texts if one.startswith("# Files changed so far")]
        for number in range(1, written + 1):
            assert f"- /work/write_{number} größe" in files.splitlines()
    assert_nothing_of_the_old_context(world)


def assert_nothing_of_the_old_context(world: World) -> None:
    for request in world.fresh_requests:
        [message] = request.messages
        assert message["role"] == "user"
        assert all(block.keys() == {"type", "text"} for block in message["content"])
        assert not any(secret in json.dumps(message) for secret in ("SIGNED", "THOUGHT", "tool_use", "toolu"))


def test_every_prompt_of_several_tasks_and_of_resumed_runs_survives() -> None:
    first = World(SmallServer([DONE, DONE]), prompt=words(1))
    first.work(words(2))
    journal = first.journal
    full = World(SmallServer([works(1), works(2), works(3), DONE]), journal=journal, prompt=words(3))
    assert full.compactions
    assert [one for one in full.fresh_requests[-1].texts if one.startswith("Task ")] == [
        words(1),
        words(2),
        words(3),
    ]
    last = World(SmallServer([works(4), works(5), works(6), DONE]), journal=full.journal, prompt=words(4))
    kept = [one for one in last.fresh_requests[-1].texts if one.startswith("Task ")]
    assert kept == [words(number) for number in (1, 2, 3, 4)]
    files = next(one for one in last.fresh_requests[-1].texts if one.startswith("# Files"))
    assert files.splitlines()[2] == "- /work/write_1 größe", "what earlier processes changed, in their order"


def test_what_ralph_says_to_a_resumed_run_is_no_task_of_the_users() -> None:
    limits = LimitSettings(max_turns=1)
    stopped = World(SmallServer([works(1)]), limits=limits)
    assert stopped.ended.outcome is Outcome.LIMIT_REACHED
    again = World(SmallServer([works(2), works(3), DONE]), journal=stopped.journal, prompt=LIMIT_LIFTED)
    [fresh] = again.fresh_requests
    assert "# The task, word for word" in fresh.texts
    assert LIMIT_LIFTED not in fresh.texts


def test_an_image_that_was_refused_does_not_come_back_with_the_task() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    refused = World(SmallServer([HttpError(400, None, "")]), prompt=[text("See."), image])
    for journal_is_read in (False, True):
        script = [works(1), works(2), works(3), DONE]
        if journal_is_read:
            world = World(SmallServer(script), journal=refused.journal, prompt="Without it.")
            again = World(SmallServer(script), journal=world.journal, prompt="And on.")
            requests = world.fresh_requests + again.fresh_requests
        else:
            world = World(SmallServer([HttpError(400, None, ""), *script]), prompt=[text("See."), image])
            world.work("Without it.")
            requests = world.fresh_requests
        assert requests
        for request in requests:
            assert [one for one in request.texts if one in {"See.", "Without it."}] == ["See.", "Without it."]
            assert '"image"' not in json.dumps(request.messages)


def test_a_fresh_context_is_as_good_for_another_target() -> None:
    main, spare = target("main", 20_000), target("spare", 22_000, model="claude-opus-5-5")
    script: list[Any] = [works(1), works(2), DOWN, works(3), works(4), DONE]
    world = World(SmallServer(script), main, spare)
    assert world.ended.outcome is Outcome.COMPLETED
    assert {request.target for request in world.server.requests} == {"main", "spare"}
    assert world.compactions
    assert_nothing_of_the_old_context(world)
    heads = {(request.target, request.head) for request in world.server.requests}
    assert len(heads) == 2, "one for each target, before and after"


def test_a_target_with_a_smaller_window_that_takes_over_gets_a_context_that_fits() -> None:
    class Uneven(SmallServer):
        def send_message(self, target: Any, key: int, body: Any, events: Any, **how: Any) -> Any:
            self._window = 5_000 if target.name == "spare" else None
            return super().send_message(target, key, body, events, **how)

    server = Uneven([works(1), works(2), works(3), DOWN, DONE])
    main, spare = target("main", None), target("spare", None, model="local")
    world = World(server, main, spare)
    assert world.ended.outcome is Outcome.COMPLETED
    [compaction] = world.compactions
    assert compaction.trigger == "overflow"
    assert server.requests[-1].target == "spare"


# --- When it does not help

LONG = answer(text("word " * 20_000))
NO_USE = [
    pytest.param(LONG, id="longer than what it sums up"),
    pytest.param(answer(), id="empty"),
    pytest.param(answer({"type": "thinking", "thinking": "hm", "signature": "s"}), id="thinking only"),
    pytest.param(answer(text("I will not."), stop_reason="refusal"), id="refused"),
    pytest.param(answer(text("I look first."), call("t", "Touch")), id="a call"),
    pytest.param(too_long(), id="too long itself"),
]


@every_row("summary", NO_USE)
@every_row("after", ["threshold", "overflow"])
def test_two_summaries_that_are_no_use_are_enough_then_the_history_is_cut(summary: Any, after: str) -> None:
    script: list[Any] = (
        [works(1), works(2), DONE] if after == "threshold" else [works(1), works(2), too_long(), DONE]
    )
    server = SmallServer(script, summaries=[summary] * 2)
    world = World(server, target(window=20_000 if after == "threshold" else 100_000))
    assert world.ended.outcome is Outcome.COMPLETED
    assert world.toolbox.ran == [["read_1"], ["write_1"], ["read_2"], ["write_2"]], "its calls are not run"
    [compaction] = world.compactions
    assert (compaction.source, len(server.summary_calls)) == ("cut", 2)
    [fresh] = world.fresh_requests
    assert "Mend the parser." in fresh.texts
    assert any("Assistant: Step 2." in one for one in fresh.texts)
    assert_nothing_of_the_old_context_but_its_words(fresh)


def assert_nothing_of_the_old_context_but_its_words(request: Request) -> None:
    written = json.dumps(request.messages)
    assert not any(secret in written for secret in ("SIGNED", "THOUGHT", "tool_use", "tool_result"))


def test_a_second_summary_is_asked_of_less() -> None:
    server = SmallServer([works(1), works(2), DONE], summaries=[answer(), answer(text(SUMMARY))])
    world = World(server)
    whole, digest = server.summary_calls
    assert len(digest.messages) == 1
    assert len(digest.body) < len(whole.body) / 2
    assert world.compactions[0].source == "model"


HUGE_TASK = "Mend the parser. " * 1_500


def test_d8_where_nothing_helps_the_model_gives_its_closing_answer_in_a_final_turn() -> None:
    server = SmallServer([works(1), answer(text("This is how far I got."))])
    world = World(server, target(window=8_000), prompt=HUGE_TASK, result_bytes=9_000)
    assert (world.ended.outcome, world.ended.exit_code) == (Outcome.LIMIT_REACHED, 3)
    assert (world.ended.limit, world.ended.result) == ("context", "This is how far I got.")
    assert [event.reason for event in world.events.of(FinalTurnEntered)] == ["context"]
    assert final_turn("context", needs_report=False, turns="") in json.dumps(
        server.requests[-1].messages, ensure_ascii=False
    )
    assert len(server.summary_calls) == 2


def test_d8_where_not_even_the_final_turn_fits_there_is_a_report_that_says_so() -> None:
    server = SmallServer([works(1), *[too_long()] * 9], summaries=[too_long()] * 9)
    world = World(server, target(window=8_000), prompt=HUGE_TASK, result_bytes=3_000)
    assert (world.ended.outcome, world.ended.limit) == (Outcome.LIMIT_REACHED, "context")
    assert world.ended.report is not None
    assert world.ended.report.source == "synthetic"
    assert world.ended.result
    assert len(server.requests) == 1 + 2 + 1, "a turn, two summaries, the final turn"


def test_a20_a_task_alone_that_is_refused_as_too_long_is_asked_once() -> None:
    server = SmallServer([], window=10)
    world = World(server)
    assert (world.ended.outcome, world.ended.limit) == (Outcome.LIMIT_REACHED, "context")
    assert world.ended.report is not None
    assert len(server.requests) == 1


def test_an_answer_that_never_fits_ends_as_a_full_context() -> None:
    world = World(SmallServer([works(1), *[EXCEEDED] * 9]))
    assert (world.ended.outcome, world.ended.limit) == (Outcome.LIMIT_REACHED, "context")
    assert len(world.server.requests) <= 8


def test_an_answer_that_was_cut_before_a_compaction_is_no_part_of_the_one_after_it() -> None:
    half = answer(text("The first half " + "y" * 40_000), stop_reason="max_tokens")
    world = World(SmallServer([works(1), half, answer(text("The whole answer."))]), result_bytes=8_000)
    assert len(world.compactions) == 1
    assert world.ended.result == "The whole answer."


def test_a_final_turn_is_told_again_in_a_fresh_context() -> None:
    refused = answer(text("I go on. " + "y" * 45_000), call("late", "Touch"))
    server = SmallServer([works(1), refused, answer(text("This is how far I got."))])
    world = World(server, limits=LimitSettings(max_turns=2))
    assert len(world.compactions) == 1
    notice = final_turn("max_turns", needs_report=False, turns="2 turns")
    assert notice in [block.get("text") for block in server.requests[-1].messages[0]["content"]]
    assert (world.ended.outcome, world.ended.result) == (Outcome.LIMIT_REACHED, "This is how far I got.")


def test_files_that_were_changed_before_an_interrupt_are_listed_in_the_same_process() -> None:
    def stops_at_the_command(world: World) -> None:
        run = world.toolbox.run

        def stopping(calls: Any) -> Any:
            if calls[0].id == "stop":
                raise SignalReceived(2)
            return run(calls)

        world.toolbox.run = stopping  # type: ignore[method-assign]

    script = [answer(call("first", "Write"), call("stop", "Touch"), call("never")), works(1), works(2), DONE]
    world = World(SmallServer(script), change=stops_at_the_command)
    assert world.ended.outcome is Outcome.INTERRUPTED
    world.work("Go on.")
    [fresh] = world.fresh_requests
    assert "- /work/first größe" in next(one for one in fresh.texts if one.startswith("# Files")).splitlines()


def test_older_tasks_give_way_where_all_of_them_were_too_much_and_no_window_is_known() -> None:
    first = World(SmallServer([DONE]), target(window=None, model="local"), prompt="old " * 4_500)
    server = SmallServer([works(1), DONE], window=4_000)
    world = World(
        server,
        target(window=None, model="local"),
        journal=first.journal,
        prompt="The new one.",
        result_bytes=4_000,
    )
    assert world.ended.outcome is Outcome.COMPLETED
    [fresh] = world.fresh_requests
    assert "The new one." in fresh.texts
    assert any("left out" in one for one in fresh.texts)


def test_what_did_not_help_is_not_tried_again_after_an_answer_in_the_old_context() -> None:
    refused = answer(text("I go on."), call("late", "Touch"))
    server = SmallServer([works(1), refused, answer(text("This is how far I got."))])
    world = World(server, target(window=8_000), prompt=HUGE_TASK, result_bytes=9_000)
    assert (world.ended.outcome, world.ended.result) == (Outcome.LIMIT_REACHED, "This is how far I got.")
    assert len(server.summary_calls) == 2


def test_an_earlier_summary_goes_on_where_the_next_one_fails() -> None:
    summaries = [answer(text(SUMMARY)), answer(), answer()]
    world = World(SmallServer([*map(works, range(1, 5)), DONE], summaries=summaries))
    assert [event.source for event in world.compactions] == ["model", "cut"]
    assert f"# Summary of the work so far\n\n{SUMMARY}" in world.fresh_requests[1].texts


def test_a_summary_may_be_no_longer_than_this_however_large_the_window_is() -> None:
    server = SmallServer([works(1), too_long(), DONE])
    World(server, target(window=None))
    [asked] = server.summary_calls
    assert asked.fields["max_tokens"] == MOST_SUMMARY_TOKENS


def test_what_was_counted_of_the_old_context_is_forgotten_with_it() -> None:
    world = World(SmallServer([works(1), works(2), SignalReceived(2)]))
    assert len(world.compactions) == 1
    assert world.run.log.session.meter == replay(world.journal.records).meter
    assert world.run.log.session.meter.counts == {}


# --- Whatever the server does

ODD = st.sampled_from(["text", "empty", "call", "long", "refusal", "exceeded", "too long", "down"])
_ODD_ANSWERS: dict[str, Any] = {
    "text": answer(text(SUMMARY)),
    "empty": answer(),
    "call": answer(call("odd", "Touch")),
    "long": LONG,
    "refusal": answer(text("No."), stop_reason="refusal"),
    "exceeded": EXCEEDED,
    "too long": too_long(),
    "down": DOWN,
}


class MoodyServer(SmallServer):
    """A server whose window and behaviour change with each request."""

    def __init__(self, windows: list[int], moods: list[str], turns: int, bytes_per_token: float) -> None:
        super().__init__([works(number) for number in range(turns)], bytes_per_token=bytes_per_token)
        self._windows, self._moods = windows, moods

    def send_message(self, target: Any, key: int, body: Any, events: Any, **how: Any) -> Any:
        number = len(self.requests)
        self._window = self._windows[number % len(self._windows)]
        mood = self._moods[number % len(self._moods)] if self._moods else "works"
        self._summaries = [_ODD_ANSWERS["text" if mood == "works" else mood]]
        if mood != "works" or not self._script:
            self._script.insert(0, DONE if mood == "works" else _ODD_ANSWERS[mood])
        return super().send_message(target, key, body, events, **how)


@settings(max_examples=20)
@given(
    windows=st.lists(st.integers(300, 20_000), min_size=1, max_size=6),
    moods=st.lists(st.one_of(st.just("works"), ODD), max_size=5),
    turns=st.integers(0, 12),
    window=st.one_of(st.none(), st.integers(1_500, 30_000)),
    result_bytes=st.integers(0, 40_000),
    bytes_per_token=st.sampled_from([1.5, 2, 4, 6]),
)
def test_d8_whatever_the_server_refuses_the_run_ends_and_says_how(
    windows: list[int],
    moods: list[str],
    turns: int,
    window: int | None,
    result_bytes: int,
    bytes_per_token: float,
) -> None:
    server = MoodyServer(windows, moods, turns, bytes_per_token)
    limits = LimitSettings(max_turns=20)
    world = World(server, target(window=window, model="local"), result_bytes=result_bytes, limits=limits)
    assert world.ended.outcome is not Outcome.INTERNAL_ERROR, world.ended.errors
    # Each turn may take four answers that are no use, each request five attempts, each context two summaries.
    assert len(server.requests) <= (turns + 20) * 25
    if world.ended.outcome is Outcome.LIMIT_REACHED:
        assert world.ended.result
    for request in world.fresh_requests:
        assert "Mend the parser." in request.texts
