"""Tests what an answer means for a run. Every run must end with one outcome and a valid conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ralph.agent.tool_turn import INTERRUPTED
from ralph.conversation.messages import NOT_RUN
from ralph.conversation.next_step import CONTINUE
from ralph.values.errors import HttpError, StreamParse, StreamTransient
from ralph.values.events import AnswerAccepted, Notice, RetryRecovered, UserMessageCommitted
from ralph.values.outcome import Outcome
from ralph.values.ports import SignalReceived, TimeIsUp
from ralph.values.usage import TokenUsage
from tests.fakes import answer, call, text
from tests.fakes.played import DONE, Played
from tests.rows import every_row

if TYPE_CHECKING:
    from ralph.conversation.messages import RequestBody
    from ralph.conversation.target import Target
    from ralph.values.answer import Answer
    from ralph.values.events import RunEnded
    from ralph.values.ports import Events


def test_what_the_client_emits_is_counted_and_shown_with_all_that_the_run_emits() -> None:
    class Telling(Played):
        def task(self, prompt: str | None) -> RunEnded:
            send = self.client.send_message

            def telling(target: Target, key: int, body: RequestBody, events: Events, **how: Any) -> Answer:
                events.emit(RetryRecovered(retries=3, total_wait_s=7.0))
                return send(target, key, body, events, **how)

            self.client.send_message = telling  # type: ignore[method-assign]
            return super().task(prompt)

    played = Telling(DONE)
    assert (played.ended.retries, played.ended.waited_s) == (3, 7.0)
    assert played.events.of(RetryRecovered)


def test_text_that_max_tokens_cut_is_continued_and_joined() -> None:
    played = Played(answer(text("One, "), stop_reason="max_tokens"), answer(text("two.")))
    assert played.last_words(1) == [CONTINUE]
    assert (played.ended.result, played.ended.num_turns) == ("One, two.", 1)


@every_row("stop_reason", ["pause_turn", "compaction"])
def test_d9_a_pause_is_sent_back_as_it_is_without_a_user_message(stop_reason) -> None:
    block = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
    played = Played(answer(block, stop_reason=stop_reason), DONE)
    assert played.sent(1)[-1] == {"role": "assistant", "content": [block]}
    assert played.ended.num_turns == 1


@every_row(
    ("last", "outcome"),
    [
        (answer(text("I will not."), stop_reason="refusal"), Outcome.NO_PROGRESS),
        (answer(call("a", "Touch"), stop_reason="refusal"), Outcome.NO_PROGRESS),
        (answer(text("ok"), stop_reason="stop_sequence"), Outcome.COMPLETED),
        (answer(text("ok"), stop_reason="brand_new"), Outcome.COMPLETED),
        (HttpError(400, None, ""), Outcome.API_REJECTED),
        (HttpError(401, None, ""), Outcome.AUTH),
        (StreamParse("odd", "invalid_request_error"), Outcome.API_REJECTED),
        (SignalReceived(2), Outcome.INTERRUPTED),
        (TimeIsUp("over"), Outcome.TIMED_OUT),
    ],
)
def test_d7_every_last_word_has_its_outcome_and_runs_nothing(last, outcome) -> None:
    played = Played(last)
    assert played.ended.outcome is outcome
    assert played.toolbox.ran == []
    assert (played.ended.exit_code == 0) is (outcome is Outcome.COMPLETED)


def test_d10_calls_beside_an_unknown_stop_reason_run_and_people_are_told() -> None:
    played = Played(answer(call("a"), stop_reason="brand_new"), DONE)
    assert played.ran == ["a"]
    [notice] = played.events.of(Notice)
    assert "'brand_new'" in notice.text


def test_outlasted_retries_end_as_unavailable_with_the_time_the_server_named() -> None:
    played = Played(*[HttpError(529, 45, "")] * 5)
    assert played.ended.outcome is Outcome.API_UNAVAILABLE
    assert (played.ended.retry_after_s, played.ended.api_error_status) == (45, 529)
    assert (played.ended.retries, played.ended.waited_s) == (4, 180)


def test_on_a_final_failure_the_conversation_is_recovered() -> None:
    def down(calls) -> None:
        if calls[0].id == "b":
            raise HttpError(529, None, "")

    played = Played(answer(call("a"), call("b", "Touch"), call("c")), on_run=down)
    assert played.ended.outcome is Outcome.API_UNAVAILABLE
    assert [block["content"] for block in played.run.conversation.messages[-1].content] == [
        "hi",
        NOT_RUN,
        NOT_RUN,
    ]


def test_api_time_leaves_the_waits_out() -> None:
    played = Played(HttpError(529, None, ""), DONE)
    assert played.ended.duration_s == 2
    assert played.ended.api_s == 0


def test_a_signal_inside_a_tool_keeps_what_was_done_and_says_what_is_unknown() -> None:
    def interrupted_at_the_second(calls) -> None:
        if calls[0].id == "b":
            raise SignalReceived(15)

    played = Played(answer(call("a"), call("b", "Touch"), call("c")), on_run=interrupted_at_the_second)
    assert played.ended.outcome is Outcome.INTERRUPTED
    assert played.ended.exit_code == 143
    contents = [block["content"] for block in played.run.conversation.messages[-1].content]
    assert contents == ["hi", INTERRUPTED, NOT_RUN]
    told = played.events.of(UserMessageCommitted)[-1]
    assert [block["content"] for block in told.content] == contents, "readers see what happened too"


def test_a_bug_keeps_what_was_done_and_paid_so_far() -> None:
    def broken(calls) -> None:
        raise RuntimeError("boom")

    played = Played(answer(call("a")), on_run=broken)
    assert played.ended.outcome is Outcome.INTERNAL_ERROR
    assert played.ended.usage.tokens.prompt == 100
    assert "RuntimeError: boom" in played.ended.errors[0]
    assert "test_task.py" in played.ended.errors[0]


def test_a_signal_in_the_first_wait_counts_no_retry_that_was_not_made() -> None:
    played = Played(HttpError(529, None, ""), interrupt_at_s=0.5)
    assert (played.ended.retries, played.ended.waited_s) == (0, 0)
    assert played.ended.errors == ("stopped by SIGTERM, after: HTTP 529: (empty body)",)
    assert played.ended.api_error_status == 529


def test_a_server_that_numbers_its_calls_anew_gets_unique_ids_back() -> None:
    played = Played(answer(call("call_0")), answer(call("call_0")), DONE)
    assert played.run.conversation.messages[3].tool_use_ids == ("call_0_2",)
    assert played.run.conversation.messages[4].tool_result_ids == ("call_0_2",)


def test_a_failed_answer_leaves_no_trace_in_the_conversation() -> None:
    played = Played(HttpError(529, None, ""), HttpError(401, None, ""))
    [message] = played.run.conversation.messages
    assert (message.role, [block["text"] for block in message.content]) == ("user", ["the task"])
    assert played.events.of(AnswerAccepted) == []


def test_what_the_server_counted_of_a_discarded_answer_is_billed() -> None:
    before = Played(DONE).ended.usage.tokens.prompt
    broken = StreamTransient("cut")
    broken.tokens = TokenUsage(input=50)
    assert Played(broken, DONE).ended.usage.tokens.prompt == before + 50


def test_what_the_server_counted_when_a_signal_came_is_billed() -> None:
    stop = SignalReceived(2)
    stop.tokens = TokenUsage(input=50)
    assert Played(stop).ended.usage.tokens.prompt == 50
