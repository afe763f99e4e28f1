"""Stop reasons that do not fit the answer or come in OpenAI's words, and token counts that come back as 0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.api.foreign.wire import CLOSING, DONE, Row, command, events_of, note, play, sse

if TYPE_CHECKING:
    from ralph.mock_api import Turn

LOOK = "Let me look at it."
CUT = [
    {**one, "delta": {"stop_reason": "max_tokens"}} if one["type"] == "message_delta" else one
    for one in events_of(note())
]
NO_CALL = "the model stopped for a tool but called none"


def stopped(turn: Turn | str, reason: str, usage: dict[str, Any] | None = None) -> bytes:
    """A good answer with another stop reason, and with this `usage` at its end."""
    return sse(
        *(
            {**event, "delta": {"stop_reason": reason}, "usage": usage or event["usage"]}
            if event["type"] == "message_delta"
            else event
            for event in events_of(turn)
        )
    )


STOPS = [
    Row(
        "text that stopped for a tool, then the call",
        "pi#9681 (kind)",
        (stopped(LOOK, "tool_use"), stopped(note(), "tool_use"), DONE),
        notes="1\n",
    ),
    Row(
        "text that stopped for a tool, once in each of two turns",
        "pi#9681 (kind)",
        (stopped(LOOK, "tool_use"), stopped(note(), "tool_use"), stopped(LOOK, "tool_use"), DONE),
        notes="1\n",
    ),
    Row(
        "text that stopped for a tool, twice",
        "pi#9681 (kind)",
        (stopped(LOOK, "tool_use"), stopped(LOOK, "tool_calls")),
        code=4,
        result=LOOK,
        error=NO_CALL,
    ),
    Row(
        "no block at all that stopped for a tool",
        "pi#9681",
        (stopped("", "tool_use"), stopped("", "tool_use"), stopped("", "tool_use"), DONE),
    ),
    Row(
        "length for a text that was cut",
        "stella#1079, gsd-pi#2157, pi#6285",
        (stopped(LOOK, "length"), DONE),
        result=f"{LOOK}{CLOSING}",
        notices=("the stop reason 'length'; taken as max_tokens",),
    ),
    Row(
        "a stop reason, then None with the usage",
        "own, after litellm's usage in a message_delta of its own",
        (sse(*CUT[:-1], {**CUT[-2], "delta": {"stop_reason": None}}, CUT[-1]), DONE),
    ),
]


@pytest.mark.parametrize("row", STOPS, ids=lambda row: row.name)
def test_a_stop_reason_is_taken_for_what_it_means(row, tmp_path) -> None:
    play(row, tmp_path)


MILLION = 1_000_000


def counted(end: dict[str, Any], start: dict[str, Any]) -> bytes:
    """An answer with a call, with one `usage` at its beginning and another one at its end."""
    begin, *rest = events_of(command("true"))
    begin = {**begin, "message": {**begin["message"], "model": "claude-opus-5-5", "usage": start}}
    return sse(begin, *({**one, "usage": end} if one["type"] == "message_delta" else one for one in rest))


WRITTEN = {"ephemeral_1h_input_tokens": MILLION // 20}
START = {"input_tokens": 1, "output_tokens": 1, "cache_creation": WRITTEN}
END = {
    **dict.fromkeys(
        ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"), 0
    ),
    "cache_creation": {"ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 0},
}
"""The usage at the beginning and at the end of an answer. tests/values/test_usage.py has each pair of values."""


def test_a_later_zero_replaces_no_count_and_the_budget_ends_the_run(tmp_path) -> None:
    """Each answer costs 0.40 US dollars. With the zeros, hundreds of them would seem to cost nothing."""
    row = Row(
        "zeros",
        "own, after sglang#20678 (zeros) and litellm's usage in message_delta",
        tuple(counted(END, START) for _ in range(9)),
        words=("--model", "claude-opus-5-5", "--max-budget-usd", "1"),
        code=3,
        requests=2,
        result="No final answer: the budget (--max-budget-usd) ended the run after 2 turns. The last answer ended with tool_use.",
    )
    played = play(row, tmp_path)
    assert played.ran.result["total_cost_usd"] == pytest.approx(0.8, abs=0.01)
