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


def half(reason: str) -> Row:
    return Row(
        f"{reason} for a text that was cut",
        "stella#1079, gsd-pi#2157, pi#6285",
        (stopped(LOOK, reason), DONE),
        peers="Claude Code ends with the half text and exit 0",
        result=f"{LOOK}{CLOSING}",
        notices=(f"the stop reason '{reason}'; taken as max_tokens",),
    )


STOPS = [
    Row(
        "text that stopped for a tool, then the call",
        "pi#9681 (kind)",
        (stopped(LOOK, "tool_use"), stopped(note(), "tool_use"), DONE),
        peers="Claude Code ends with the text and exit 0",
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
    *map(half, ("length", "MAX_TOKENS", "max_output_tokens", "model_length")),
    *(
        Row(
            f"a stop reason, then {reason!r} with the usage",
            "own, after litellm's usage in a message_delta of its own",
            (sse(*CUT[:-1], {**CUT[-2], "delta": {"stop_reason": reason}}, CUT[-1]), DONE),
        )
        for reason in (None, "")
    ),
    Row(
        "length inside a call that is JSON by chance",
        "stella#1079 (kind)",
        (stopped(note(), "length"), DONE),
        peers="Claude Code runs the call",
        notices=("taken as max_tokens",),
    ),
    Row(
        "a call that a content filter stopped",
        "stella#1079 (kind)",
        (stopped(note(), "content_filter"),),
        code=4,
        result="I run it.",
        error="the model refused to answer",
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


LATER = {
    "0": {"input_tokens": 0, "output_tokens": 5},
    "null": {"input_tokens": None, "output_tokens": 5},
    "a text": {"input_tokens": "12", "output_tokens": 5},
    "nothing": {"output_tokens": 5},
}
BEGINNING = {
    "input_tokens": {"input_tokens": MILLION // 10, "output_tokens": 1},
    "cache_creation": {
        "input_tokens": 1,
        "output_tokens": 1,
        "cache_creation": {"ephemeral_1h_input_tokens": MILLION // 20},
    },
}
ALL_ZERO = {
    "input_tokens": 0,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
    "cache_creation": {"ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 0},
    "output_tokens": 0,
}
COUNTS = [
    *((f"input_tokens, then {name}", BEGINNING["input_tokens"], later) for name, later in LATER.items()),
    *((f"{name}, then zeros", beginning, ALL_ZERO) for name, beginning in BEGINNING.items()),
]


@pytest.mark.parametrize(("name", "start", "end"), COUNTS, ids=[name for name, _, _ in COUNTS])
def test_a_later_zero_replaces_no_count_and_the_budget_ends_the_run(name, start, end, tmp_path) -> None:
    """Each answer costs 0.40 US dollars. With the zeros, hundreds of them would seem to cost nothing."""
    row = Row(
        name,
        "own, after sglang#20678 (zeros) and litellm's usage in message_delta",
        tuple(counted(end, start) for _ in range(9)),
        peers="the official SDK takes the last value",
        words=("--model", "claude-opus-5-5", "--max-budget-usd", "1"),
        code=3,
        requests=2,
        result="No final answer: the budget (--max-budget-usd) ended the run after 2 turns. The last answer ended with tool_use.",
    )
    played = play(row, tmp_path)
    assert played.ran.result["total_cost_usd"] == pytest.approx(0.8, abs=0.01)
