"""Tests what each stop reason of section 2.6 of the Messages API reference means for a run of the real agent
loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ralph.api.stream import StreamAssembler
from ralph.conversation.next_step import MOST_CONTINUATIONS, MOST_PAUSES
from ralph.conversation.notices import CONTINUE
from ralph.values.events import ContextCompacted, Notice, ResponseDiscarded
from ralph.values.limits import LimitSettings
from tests.fakes import answer, call, text
from tests.fakes.played import DONE, Played
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ralph.values.answer import Answer

SERVER_CALL = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
COMPACTION = {"type": "compaction", "content": "What was done so far."}
REFUSED = {"type": "refusal", "category": "cyber", "explanation": "not that"}


def streamed(*blocks: dict[str, Any], stop_reason: str | None = None) -> Answer:
    """An answer for which the server sent this stop reason. None stands for a null."""
    assembler = StreamAssembler()
    assembler.feed({"type": "message_start", "message": {"id": "msg_1", "usage": {"input_tokens": 1}}})
    for index, block in enumerate(blocks):
        assembler.feed({"type": "content_block_start", "index": index, "content_block": block})
        assembler.feed({"type": "content_block_stop", "index": index})
    assembler.feed({"type": "message_delta", "delta": {"stop_reason": stop_reason}})
    assembler.feed({"type": "message_stop"})
    return assembler.answer()


class Row(NamedTuple):
    first: Answer
    requests: int
    """The number of requests until the end of the run. Later answers say that all is done."""
    exit_code: int
    ran: Sequence[str] = ()
    result: str = "All done."
    notice: str | None = None
    """A part of the text of a warning, or None if there is none."""


TABLE = {
    "end_turn": Row(DONE, 1, 0),
    "end_turn, empty": Row(answer(), 2, 0),
    "end_turn with a call": Row(answer(call("a"), stop_reason="end_turn"), 2, 0, ["a"]),
    "tool_use": Row(answer(call("a"), call("b", "Touch")), 2, 0, ["a", "b"]),
    "tool_use without a call": Row(answer(text("Well."), stop_reason="tool_use"), 2, 0),
    "tool_use, empty": Row(answer(stop_reason="tool_use"), 2, 0),
    "max_tokens": Row(answer(text("Half. "), stop_reason="max_tokens"), 2, 0, result="Half. All done."),
    "max_tokens in a call": Row(answer(call("a"), call("b", "Touch"), stop_reason="max_tokens"), 2, 0, ["a"]),
    "stop_sequence": Row(
        answer(text("Until here."), stop_reason="stop_sequence"), 1, 0, result="Until here."
    ),
    "stop_sequence with a call": Row(answer(call("a"), stop_reason="stop_sequence"), 2, 0, ["a"]),
    "pause_turn": Row(answer(SERVER_CALL, stop_reason="pause_turn"), 2, 0),
    "pause_turn with text": Row(
        answer(text("Searching. "), SERVER_CALL, stop_reason="pause_turn"),
        2,
        0,
        result="Searching. All done.",
    ),
    "refusal": Row(answer(text("No."), stop_reason="refusal", stop_details=REFUSED), 1, 4, result="No."),
    "refusal with a call": Row(answer(text("No."), call("a"), stop_reason="refusal"), 1, 4, result="No."),
    "model_context_window_exceeded": Row(
        answer(text("Half"), call("b"), stop_reason="model_context_window_exceeded"),
        1,
        3,
        result="No final answer: the context was full after 1 turn. The last answer ended with "
        "model_context_window_exceeded.",
    ),
    "compaction": Row(answer(COMPACTION, stop_reason="compaction"), 2, 0),
    "null": Row(streamed(text("Well.")), 1, 0, result="Well.", notice="no stop reason"),
    "null with a call": Row(streamed(call("a")), 2, 0, ["a"], notice="no stop reason"),
    "unknown": Row(
        answer(text("Well."), stop_reason="brand_new"), 1, 0, result="Well.", notice="'brand_new'"
    ),
    "length": Row(
        streamed(text("Half. "), stop_reason="length"), 2, 0, result="Half. All done.", notice="as max_tokens"
    ),
    "length in a call": Row(
        streamed(call("a"), call("b", "Touch"), stop_reason="length"), 2, 0, ["a"], notice="as max_tokens"
    ),
    "tool_calls": Row(streamed(call("a"), stop_reason="tool_calls"), 2, 0, ["a"], notice="as tool_use"),
    "tool_calls without a call": Row(streamed(text("Well."), stop_reason="tool_calls"), 2, 0),
    "content_filter with a call": Row(
        streamed(text("No."), call("a"), stop_reason="content_filter"), 1, 4, result="No.", notice="refusal"
    ),
    "MAX_TOKENS": Row(
        streamed(text("Half. "), stop_reason="MAX_TOKENS"),
        2,
        0,
        result="Half. All done.",
        notice="MAX_TOKENS",
    ),
    "STOP": Row(streamed(text("Well."), stop_reason="STOP"), 1, 0, result="Well.", notice="as end_turn"),
    "unknown, empty": Row(answer(stop_reason="brand_new"), 2, 0),
    "unknown with a call": Row(answer(call("a"), stop_reason="brand_new"), 2, 0, ["a"], notice="'brand_new'"),
}


@every_row("name", TABLE)
def test_each_stop_reason_has_its_consequence(name: str) -> None:
    row = TABLE[name]
    played = Played(row.first, DONE)
    assert (played.calls_made, played.ended.exit_code) == (row.requests, row.exit_code)
    assert played.ran == list(row.ran)
    assert played.ended.result == row.result
    notices = [event.text for event in played.events.of(Notice)]
    assert len(notices) == (row.notice is not None)
    assert row.notice is None or row.notice in notices[0]


def test_the_closing_answer_is_taken_although_it_stopped_for_a_tool() -> None:
    closing = answer(text("One is left."), stop_reason="tool_use")
    played = Played(answer(call("a")), closing, limits=LimitSettings(max_turns=2))
    assert (played.calls_made, played.ended.exit_code, played.ended.result) == (2, 3, "One is left.")


@every_row(("block", "stop_reason"), [(SERVER_CALL, "pause_turn"), (COMPACTION, "compaction")])
def test_a_pause_is_sent_back_as_it_is_without_a_user_message(
    block: dict[str, Any], stop_reason: str
) -> None:
    played = Played(answer(block, stop_reason=stop_reason), DONE)
    assert played.sent(1)[-1] == {"role": "assistant", "content": [block]}
    assert played.ended.num_turns == 1


@every_row(("pauses", "exit_code"), [(MOST_PAUSES, 0), (MOST_PAUSES + 1, 4)])
def test_ten_pauses_in_a_row_are_enough(pauses: int, exit_code: int) -> None:
    pause = answer(text("."), SERVER_CALL, stop_reason="pause_turn")
    assert Played(*[pause] * pauses, DONE).ended.exit_code == exit_code


@every_row(("cuts", "exit_code"), [(MOST_CONTINUATIONS, 0), (MOST_CONTINUATIONS + 1, 3)])
def test_three_cut_answers_in_a_row_are_continued_by_a_user_message(cuts: int, exit_code: int) -> None:
    cut = answer(text("x"), stop_reason="max_tokens")
    played = Played(*[cut] * cuts, DONE)
    assert played.ended.exit_code == exit_code
    assert [played.last_words(n) for n in range(1, MOST_CONTINUATIONS + 1)] == [
        [CONTINUE]
    ] * MOST_CONTINUATIONS
    assert played.ended.result is not None
    assert played.ended.result.startswith("x" * cuts), "nothing that was said is lost"


def test_cut_calls_count_over_turns_or_a_run_would_go_on_for_ever() -> None:
    cut = [answer(call(f"c{n}", text=str(n)), call(f"cut{n}"), stop_reason="max_tokens") for n in range(4)]
    played = Played(*cut, DONE)
    assert (played.ended.exit_code, played.calls_made) == (3, 4)
    assert played.ran == ["c0", "c1", "c2"]


def test_a_call_of_a_refusal_is_answered_as_not_run() -> None:
    played = Played(answer(text("No."), call("a", "Touch"), stop_reason="refusal"))
    assert played.ran == []
    assert [block["is_error"] for block in played.last_results] == [True]


def test_a_refusal_says_why() -> None:
    assert Played(TABLE["refusal"].first).ended.errors == ("the model refused: not that",)


def test_a_full_window_is_made_room_in_and_the_answer_dropped() -> None:
    full = answer(text("Half of"), call("b", "Touch"), stop_reason="model_context_window_exceeded")
    long = answer(call("a", text="x" * 8_000))
    played = Played(long, full, answer(text("Summed up.")), DONE)
    assert played.ended.exit_code == 0
    assert [event.trigger for event in played.events.of(ContextCompacted)] == ["window_exceeded"]
    assert len(played.events.of(ResponseDiscarded)) == 2, (
        "the summary was shown, and is not a part of it either"
    )
    assert "Half of" not in played.says
    assert "the task" in played.says
    assert played.ran == ["a"]
