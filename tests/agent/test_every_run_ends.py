"""Whatever a model answers for ever, the run must end with one true outcome."""

from __future__ import annotations

from itertools import count, cycle
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ralph.conversation.target import Target
from ralph.values.answer import FINAL_REPORT
from ralph.values.errors import HttpError, StreamTransient
from ralph.values.events import (
    AnswerAccepted,
    AttemptEnded,
    Event,
    FinalTurnEntered,
    ReportAccepted,
    SyntheticRetry,
    ToolFinished,
    TurnAsked,
    TurnStarted,
)
from ralph.values.limits import LimitSettings
from ralph.values.outcome import Outcome
from tests.fakes import answer, call, text
from tests.fakes.played import PAYLOAD_FORM, PLAIN_FORM, Played, report

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ralph.conversation.messages import RequestBody
    from ralph.values.answer import Answer
    from ralph.values.ports import Events
    from ralph.values.report import ReportForm

THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "s"}

KINDS: dict[str, Callable[[int], Answer | Exception]] = {
    "new call": lambda n: answer(call(f"n{n}", text=f"step {'x' * n}")),
    "same call": lambda n: answer(call(f"s{n}")),
    "two calls": lambda n: answer(text("So."), call(f"a{n}", "Touch"), call(f"b{n}", text="x" * n)),
    "unknown tool": lambda n: answer(call(f"u{n}", "Launch")),
    "wrong arguments": lambda n: answer(call(f"w{n}", text=7)),
    "text": lambda n: answer(text(f"I say {n}.")),
    "payload in text": lambda n: answer(text('{"files": ["a.py"]}')),
    "good report": lambda n: answer(report(f"r{n}", payload={"files": []})),
    "failure report": lambda n: answer(report(f"f{n}", status="failure", payload={"files": []})),
    "bad report": lambda n: answer(report(f"q{n}", summary="")),
    "bad report and call": lambda n: answer(report(f"q{n}", summary=""), call(f"c{n}", text="x" * n)),
    "cut report": lambda n: answer(report(f"t{n}"), stop_reason="max_tokens"),
    "empty": lambda n: answer(),
    "thinking": lambda n: answer(THOUGHT),
    "cut": lambda n: answer(text("Half. "), stop_reason="max_tokens"),
    "cut thinking": lambda n: answer(THOUGHT, stop_reason="max_tokens"),
    "cut nothing": lambda n: answer(stop_reason="max_tokens"),
    "cut call": lambda n: answer(call(f"t{n}"), stop_reason="max_tokens"),
    "pause": lambda n: answer(text("Searching."), stop_reason="pause_turn"),
    "empty pause": lambda n: answer(stop_reason="pause_turn"),
    "refusal": lambda n: answer(text("No."), stop_reason="refusal"),
    "refused call": lambda n: answer(call(f"x{n}"), stop_reason="refusal"),
    "odd": lambda n: answer(text("Odd."), stop_reason="brand_new"),
    "full": lambda n: answer(text("Half"), call(f"x{n}"), stop_reason="model_context_window_exceeded"),
    "busy": lambda n: HttpError(529, None, ""),
    "broken": lambda n: StreamTransient("cut"),
    "overflow": lambda n: HttpError(413, None, ""),
    "denied": lambda n: HttpError(401, None, ""),
}
GETS_SOMEWHERE = {"new call", "two calls", "bad report and call"}
"""Kinds of answers after which only a limit ends the run, because each of them makes progress."""

# Each turn may have useless answers, and before each of these there may be pauses and answers that were cut.
MOST_ACCEPTED_A_TURN = (1 + 3) * (1 + 10 + 3)
MOST_REQUESTS = 3_000


class Model:
    """A model that repeats the same sequence of answers for ever."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self._kinds = cycle(kinds)
        self._numbers = count(1)
        self.asked = 0

    def send_message(self, target: Target, key: int, body: RequestBody, events: Events, **how: Any) -> Answer:
        self.asked += 1
        assert self.asked <= MOST_REQUESTS, "this never ends"
        said = KINDS[next(self._kinds)](next(self._numbers))
        if isinstance(said, Exception):
            raise said
        return said


class Rhythm(Played):
    def __init__(self, kinds: Sequence[str], **options: Any) -> None:
        self.model = Model(kinds)
        super().__init__(**options)

    def task(self, prompt: str | None) -> Any:
        self.client.send_message = self.model.send_message  # type: ignore[method-assign]
        return super().task(prompt)


@st.composite
def rhythms(draw: Callable[..., Any]) -> tuple[list[str], dict[str, Any]]:
    # A circle of more than four calls is ended by a limit alone.
    kinds = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4))
    turns = st.integers(1, 6)
    max_turns = draw(turns if GETS_SOMEWHERE & set(kinds) else st.none() | turns)
    window = draw(st.sampled_from([None, 4_000]))
    form = draw(st.sampled_from([None, PLAIN_FORM, PAYLOAD_FORM]))
    target = Target("m", "m", "http://127.0.0.1:1", context_window=window)
    return kinds, {"limits": LimitSettings(max_turns=max_turns), "form": form, "targets": [target]}


@settings(max_examples=30)
@given(rhythms())
def test_a_run_ends_in_one_outcome_whatever_the_model_does_for_ever(rhythm) -> None:
    """`Played` checks the conversation, the journal to the byte, and that a report is announced once."""
    kinds, options = rhythm
    limits, form = options["limits"], options["form"]
    played = Rhythm(kinds, **options)
    ended = played.ended
    assert ended.outcome is not Outcome.INTERNAL_ERROR, ended.errors
    assert limits.max_turns is None or ended.num_turns <= limits.max_turns
    assert ended.exit_code in allowed_exit_codes(kinds, limits, form)
    if ended.exit_code in {0, 1, 3, 4}:
        assert ended.result
    assert (played.result["subtype"] == "success") is (ended.exit_code == 0)
    if ended.exit_code == 0:
        assert_success_is_true(played, form)
    own = [event for event in played.events.of(ReportAccepted) if event.source != "synthetic"]
    if own:
        assert ended.exit_code == (0 if own[0].status == "success" else 1)
    assert not [name for name in played.ran if name.startswith(("x", "t", "u", "w"))], "never to be run"
    assert_turns_are_bounded(played.events.events)
    assert_nothing_runs_in_the_final_turn(played.events.events)


def allowed_exit_codes(kinds: Sequence[str], limits: LimitSettings, form: ReportForm | None) -> set[int]:
    """The exit codes that are possible with a model that gives these kinds of answers."""
    codes = {4}  # circles, empties, refusals, pauses
    if form is None or {"payload in text", "good report"} & set(kinds):
        codes.add(0)
    if form is not None:
        codes.add(1)
    if (
        limits.max_turns is not None
        or {"cut", "full", "overflow"} & set(kinds)
        or any("cut" in k for k in kinds)
    ):
        codes.add(3)
    if "new call" in kinds or "two calls" in kinds:
        codes.add(3)  # a window that fills up
    if {"busy", "broken"} & set(kinds):
        codes.add(75)
    if "denied" in kinds:
        codes.add(77)
    return codes


def assert_success_is_true(played: Played, form: ReportForm | None) -> None:
    if form is not None:
        assert played.ended.report is not None
        assert played.ended.report.status == "success"
        return
    last = played.events.of(AnswerAccepted)[-1].message
    assert last["stop_reason"] != "refusal"
    assert not [block for block in last["content"] if block["type"] == "tool_use"]
    assert played.events.of(FinalTurnEntered) == [], "a forced end is no success"


def assert_turns_are_bounded(events: Sequence[Event]) -> None:
    turn_sums: list[int] = []
    accepted = useless = attempts = 0
    turn = 0
    for event in events:
        match event:
            case TurnStarted():
                assert event.turn == turn + 1
                turn, accepted, useless, attempts = event.turn, 0, 0, 0
            case AnswerAccepted():
                accepted += 1
            case SyntheticRetry():
                useless += 1
                assert event.number == useless
            case AttemptEnded():
                attempts += 1
                assert (event.turn, event.attempt) == (turn, attempts), "they continue within a turn"
            case TurnAsked():
                assert (event.turn, event.attempts) == (turn, attempts), "one sum for each turn"
                turn_sums.append(event.turn)
        assert useless <= 3
        assert accepted <= MOST_ACCEPTED_A_TURN
    assert turn_sums == sorted({event.turn for event in events if isinstance(event, AttemptEnded)})


def assert_nothing_runs_in_the_final_turn(events: Sequence[Event]) -> None:
    is_final = False
    for event in events:
        is_final = is_final or isinstance(event, FinalTurnEntered)
        if is_final and isinstance(event, ToolFinished) and event.call.name != FINAL_REPORT:
            assert event.result.output.is_error
