"""Tests what each kind of answer means for the run. No text may be lost or invented."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ralph.conversation.next_step import (
    MOST_CONTINUATIONS,
    MOST_PAUSES,
    AskAgain,
    Continue,
    End,
    MakeRoom,
    NoUsableAnswer,
    Resend,
    RunTools,
    Step,
    TurnState,
    next_step,
)
from ralph.values.outcome import Outcome
from tests.fakes import answer, call, text
from tests.rows import every_row

if TYPE_CHECKING:
    from ralph.values.answer import Answer


THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}


def steps(*answers: Answer, needs_report: bool = False) -> list[Step]:
    state, found = TurnState(), []
    for each in answers:
        state, step = next_step(state, each, needs_report=needs_report)
        found.append(step)
    return found


def cut(words: str = "", *blocks: dict[str, Any]) -> Answer:
    return answer(*([text(words)] if words else []), *blocks, stop_reason="max_tokens")


def paused(words: str) -> Answer:
    return answer(text(words), stop_reason="pause_turn")


DONE = answer(text("the end"))
STOPPED = answer(text("Let me look."), stop_reason="tool_use")
NO_CALL = End(Outcome.NO_PROGRESS, "Let me look.", "the model stopped for a tool but called none")
REFUSED = End(Outcome.NO_PROGRESS, "no", "the model refused to answer")
FOUR_TIMES = NoUsableAnswer("empty", "the model's last answer was empty, 4 times in a row")


def odd(meaning: str) -> str:
    return f"unknown stop reason 'brand_new', taken as {meaning}"


TABLE = [
    ([DONE], End(Outcome.COMPLETED, "the end")),
    ([answer(text("x"), stop_reason="stop_sequence")], End(Outcome.COMPLETED, "x")),
    ([answer(call("a"))], RunTools()),
    ([answer(call("a"), stop_reason="end_turn")], RunTools()),
    ([answer(call("a"), stop_reason="pause_turn")], RunTools()),
    ([answer(call("a"), stop_reason="stop_sequence")], RunTools()),
    ([answer(call("a"), stop_reason="brand_new")], RunTools(odd("tool_use"))),
    ([answer(text("x"), stop_reason="brand_new")], End(Outcome.COMPLETED, "x", notice=odd("end_turn"))),
    ([answer(stop_reason="brand_new")], AskAgain("empty")),
    ([cut("x")], Continue()),
    ([cut("x", call("a"))], RunTools()),
    ([paused("x")], Resend()),
    ([answer(text("x"), stop_reason="compaction")], Resend()),
    ([cut("One, "), answer(text("two."))], End(Outcome.COMPLETED, "One, two.")),
    ([paused("One, "), answer(text("two."))], End(Outcome.COMPLETED, "One, two.")),
    ([cut("old "), cut("", call("a")), answer(text("new"))], End(Outcome.COMPLETED, "new")),
    ([cut("old "), answer(call("a")), answer(text("new"))], End(Outcome.COMPLETED, "new")),
    ([answer()], AskAgain("empty")),
    ([answer(text(" \n"))], AskAgain("empty")),
    ([answer(THOUGHT)], AskAgain("thinking_only")),
    ([answer(THOUGHT), DONE], End(Outcome.COMPLETED, "the end")),
    ([answer()] * 3, AskAgain("empty")),
    ([answer()] * 4, FOUR_TIMES),
    ([answer(THOUGHT)] * 3 + [answer()], FOUR_TIMES),
    ([answer()] * 3 + [answer(call("a"))], RunTools()),
    ([STOPPED], AskAgain("no_call")),
    ([STOPPED, DONE], End(Outcome.COMPLETED, "the end")),
    ([STOPPED, STOPPED], NO_CALL),
    ([STOPPED, answer(), STOPPED], NO_CALL),
    ([answer()] * 3 + [STOPPED], NO_CALL),
    ([STOPPED] + [answer()] * 3, FOUR_TIMES),
    ([answer(stop_reason="tool_use")], AskAgain("empty")),
    ([answer(THOUGHT, stop_reason="tool_use")], AskAgain("thinking_only")),
    ([cut("half"), answer()], End(Outcome.COMPLETED, "half")),
    ([answer(text("no"), stop_reason="refusal")], REFUSED),
    ([answer(text("no"), call("a"), stop_reason="refusal")], REFUSED),
    (
        [answer(text("no"), stop_reason="refusal", stop_details={"explanation": "not that"})],
        End(Outcome.NO_PROGRESS, "no", "the model refused: not that"),
    ),
    ([answer(text("half"), stop_reason="model_context_window_exceeded")], MakeRoom()),
    ([answer(call("a"), stop_reason="model_context_window_exceeded")], MakeRoom()),
]

WITH_REPORT = [
    ([DONE], AskAgain("no_report")),
    ([STOPPED] * 2, AskAgain("no_report")),
    ([DONE] * 3, AskAgain("no_report")),
    ([DONE] * 4, NoUsableAnswer("no_report", "the model gave no final report, 4 times in a row")),
    ([answer()], AskAgain("empty")),
    ([DONE, answer(call("a"))], RunTools()),
    ([answer(text("x"), stop_reason="brand_new")], AskAgain("no_report")),
    ([answer(text("no"), stop_reason="refusal")], REFUSED),
    ([cut("x")], Continue()),
]


@every_row(("answers", "last"), TABLE)
def test_each_answer_has_its_step(answers, last) -> None:
    assert steps(*answers)[-1] == last


@every_row(("answers", "last"), WITH_REPORT)
def test_where_a_report_is_required_text_alone_ends_nothing(answers, last) -> None:
    assert steps(*answers, needs_report=True)[-1] == last


def test_in_the_final_turn_text_is_the_closing_answer_whatever_it_stopped_for() -> None:
    assert next_step(TurnState(), STOPPED, is_final=True)[1] == End(Outcome.COMPLETED, "Let me look.")


def test_the_cut_after_the_last_allowed_one_ends_the_run_with_everything_that_was_said() -> None:
    *before, last = steps(*[cut(f"part{n} ") for n in range(MOST_CONTINUATIONS + 1)])
    assert before == [Continue()] * MOST_CONTINUATIONS
    assert isinstance(last, End)
    assert (last.outcome, last.result) == (Outcome.LIMIT_REACHED, "part0 part1 part2 part3")


def test_cut_calls_count_too_or_the_run_would_never_end() -> None:
    assert isinstance(steps(*[cut("", call("a"))] * (MOST_CONTINUATIONS + 1))[-1], End)


def test_the_pause_after_the_last_allowed_one_ends_the_run() -> None:
    *before, last = steps(*[paused("x")] * (MOST_PAUSES + 1))
    assert before == [Resend()] * MOST_PAUSES
    assert isinstance(last, End)
    assert last.outcome is Outcome.NO_PROGRESS
