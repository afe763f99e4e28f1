"""A full context must become a fresh one, whatever filled it and however the summary fails. This must always
end.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from ralph.agent.compaction import MOST_SUMMARY_TOKENS, SUMMARY_HEADING
from ralph.conversation.session import replay
from ralph.values.errors import HttpError, Json, StreamParse
from ralph.values.events import (
    AnswerAccepted,
    ContextCompacted,
    ResponseDiscarded,
    RetryRecovered,
    RetryScheduled,
)
from ralph.values.outcome import Outcome
from ralph.values.ports import SignalReceived
from ralph.values.usage import cost_usd
from tests.agent.small_windows import SUMMARY, Request, SmallServer, World, target, too_long, works
from tests.fakes import FakeWaiter, answer, call, text
from tests.fakes.played import DONE
from tests.rows import every_row

EXCEEDED = answer(text("Half an ans"), stop_reason="model_context_window_exceeded")
DOWN = HttpError(529, None, "")


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
def test_d8_each_trigger_leads_to_a_fresh_context_and_the_run_continues(trigger, script, server) -> None:
    window = 20_000 if trigger == "threshold" else None
    world = World(SmallServer(script, **server), target(window=window, model="claude-haiku-5-5"))
    assert (world.ended.outcome, world.ended.result) == (Outcome.COMPLETED, "All done.")
    [compaction] = world.compactions
    assert (compaction.trigger, compaction.source) == (trigger, "model")
    assert compaction.post_tokens < compaction.pre_tokens * 3 / 4
    [fresh] = world.fresh_requests
    assert "Fix the parser." in fresh.texts
    assert SUMMARY in "".join(fresh.texts)
    assert (world.ended.retries, world.ended.waited_s) == (0, 0), "no retry, and nothing to wait for"
    assert world.events.of(RetryScheduled) == []


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


def test_a_summary_call_continues_from_the_cached_prefix() -> None:
    server = SmallServer([works(1), works(2), DONE])
    World(server)
    before, summary = server.requests[1], server.summary_calls[0]
    assert summary.messages[: len(before.messages)] == before.messages
    assert summary.head == before.head


STOPS = [
    pytest.param(SignalReceived(15), {}, Outcome.INTERRUPTED, 143, id="a signal"),
    pytest.param(DOWN, {"run_ends_s": 20.0}, Outcome.TIMED_OUT, 124, id="the time limit"),
    pytest.param(HttpError(401, None, ""), {}, Outcome.AUTH, 77, id="a key that is refused"),
]


@every_row(("step", "waiting", "outcome", "code"), STOPS)
def test_an_end_during_the_summary_call_leaves_the_old_context_as_it_was(
    step, waiting, outcome, code
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


def words(number: int) -> str:
    return f"Task {number}:\n\n  * keep `a  b`\t* never touch größe{number}.py \u2028 \n"


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
def test_two_summaries_that_are_no_use_are_enough_then_the_history_is_cut(summary, after) -> None:
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
    assert "Fix the parser." in fresh.texts
    assert any("Assistant: Step 2." in one for one in fresh.texts)
    assert_nothing_of_the_old_context_but_its_words(fresh)


def test_a_history_that_is_cut_keeps_the_summary_of_the_context_before_it() -> None:
    useless = [answer()] * 2
    server = SmallServer([*map(works, range(1, 6)), DONE], summaries=[answer(text(SUMMARY)), *useless * 2])
    world = World(server)
    assert [compaction.source for compaction in world.compactions] == ["model", "cut"]
    assert replay(world.journal.records).summary == SUMMARY
    assert f"{SUMMARY_HEADING}\n\n{SUMMARY}" in world.fresh_requests[-1].texts


def assert_nothing_of_the_old_context_but_its_words(request: Request) -> None:
    written = json.dumps(request.messages)
    assert not any(secret in written for secret in ("SIGNED", "THOUGHT", "tool_use", "tool_result"))


HUGE_TASK = "Fix the parser. " * 1_500


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


# --- Whatever the server does
