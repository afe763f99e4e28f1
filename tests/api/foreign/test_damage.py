"""Servers whose streams come damaged, now and then or always, and runs that are killed while they ask past damage."""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING, Any

import pytest

from ralph.mock_api import Turn
from tests.api.foreign.wire import (
    CLOSING,
    DONE,
    Row,
    answering,
    events_of,
    note,
    play,
    refusal,
    run,
    sse,
    stream,
    whole,
)
from tests.api.harness import http_answer
from tests.program.conftest import ralph_in

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

NOTE = events_of(note())
BEGUN = [NOTE.index(one) for one in NOTE if one["type"] == "content_block_start"]
INPUT: dict[str, Any] = {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta"}}
OFF = "[retry]\npolicy = 'off'\n"

GARBLED = sse(*NOTE[:4], b"data: {oops\n\n")
BROKEN = {
    "JSON that is cut": ("issue text", GARBLED),
    "a line of a proxy in the stream": (
        "kind of cursor-sdk2api#25",
        sse(*NOTE[:4], b"data: upstream is gone\n\n", *NOTE[4:]),
    ),
    "thinking that is a part of a call": (
        "sibling of litellm#33224, MyAgents#97",
        sse(
            *NOTE[: BEGUN[1] + 1],
            {**INPUT, "delta": {"type": "thinking_delta", "thinking": "Hm."}},
            *NOTE[BEGUN[1] + 1 :],
        ),
    ),
    "a part of a call in a text block": (
        "litellm#29286",
        sse(*NOTE[:2], {**INPUT, "index": 0, "delta": {**INPUT["delta"], "partial_json": '{"'}}, *NOTE[2:]),
    ),
    "a call that never began": ("sub2api#4286", sse(*NOTE[: BEGUN[1]], *NOTE[BEGUN[1] + 1 :])),
    "a call without its end": (
        "the official SDK's fixture incomplete_partial_json",
        sse(*NOTE[: BEGUN[1] + 2], *NOTE[-2:]),
    ),
    "a call without a name": (
        "found while playing other rows",
        sse(
            *NOTE[: BEGUN[1]],
            {**NOTE[BEGUN[1]], "content_block": {"type": "tool_use", "id": "t1", "name": None}},
            *NOTE[BEGUN[1] + 1 :],
        ),
    ),
    "one call twice": ("sibling of Kimi's shared ids", sse(*NOTE[:-2], *NOTE[BEGUN[1] : -2], *NOTE[-2:])),
    "a page instead of a stream": ("issue text", refusal(200, b"<html><title>Gateway</title></html>")),
    "a page under the type of a stream": (
        "sibling: gateways that label all they send",
        http_answer(b"<html>\n<title>Gateway</title>\n</html>"),
    ),
    "a stream of Chat Completions": (
        "sibling: a base URL of the other API",
        http_answer(
            b'data: {"id":"c1","object":"chat.completion.chunk","choices":[{"delta":{"content":"Hi"}}]}\n\n'
            b"data: [DONE]\n\n",
            "text/event-stream",
        ),
    ),
    "bytes that are no text": ("issue text", http_answer(b"\x93\xff\x00\x80" * 40)),
}
"""Streams that make no sense or whose calls are in doubt, with their source."""

DAMAGED_TURNS = [
    answer
    for number, (_, broken) in enumerate(BROKEN.values(), 1)
    for answer in (broken, broken, whole(note(number)))
]
ROWS = [
    Row(
        "each damage in a turn of its own",
        "each its own",
        # Each turn begins with two broken streams and asks for a whole answer.
        (*DAMAGED_TURNS, GARBLED, GARBLED, whole(CLOSING)),
        errors=("",) * 2 * (len(BROKEN) + 1),
        notes="".join(f"{number}\n" for number in range(1, len(BROKEN) + 1)),
        settings=OFF,
    ),
    Row(
        "whole answers that are damaged too",
        "issue text",
        (GARBLED, GARBLED, refusal(200, b"<html><title>Gateway</title></html>")),
        code=69,
        errors=("", "", "Gateway"),
        error="Gateway",
    ),
    Row(
        "a stream for a whole answer",
        "sibling: gateways that always stream",
        (GARBLED, GARBLED, stream(note()), DONE),
        errors=("",) * 2,
        notes="1\n",
    ),
    Row(
        "an outage between damaged answers",
        "issue text",
        (GARBLED, refusal(529, {}), GARBLED, refusal(529, {}), whole(note()), DONE),
        errors=("", "529", "", "529"),
        notes="1\n",
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_third_ask_for_a_whole_answer_helps_where_streams_come_damaged(row, tmp_path) -> None:
    played = play(row, tmp_path)
    for body in played.requests:
        assert body["stream"] is True or body["max_tokens"] <= 16_000
    if row.code == 0:
        assert all("sent the whole message as JSON" not in text for text in played.notices), "it was asked"


def test_a_whole_answer_may_stay_away_longer_than_a_stream(tmp_path) -> None:
    """Only `response_s` bounds it, because it comes in one piece."""
    clocks = "[clocks]\nfirst_byte_s = 0.4\nbytes_idle_s = 0.4\nprogress_idle_s = 0.4\n"

    def slowly(request: dict[str, Any]) -> bytes | None:
        if request["stream"]:
            return GARBLED
        time.sleep(1.2)
        return whole(CLOSING)

    row = Row("slow", "", (slowly,), requests=3, settings=OFF + clocks, errors=("",) * 2)
    play(row, tmp_path)
    late = Row(
        *("late", "", (slowly,)),
        requests=3,
        settings=OFF + clocks + "response_s = 0.9\n",
        code=75,
        errors=("",) * 3,
    )
    (tmp_path / "late").mkdir()
    play(late, tmp_path / "late")


def night(seed: int, turns: int) -> Callable[[dict[str, Any]], bytes]:
    """A server whose model makes so many notes, one a turn, and of whose streams 15 % come damaged."""
    draw = random.Random(seed)
    damages = [broken for _, broken in BROKEN.values()]

    def answer(request: dict[str, Any]) -> bytes:
        done = sum(message["role"] == "assistant" for message in request["messages"])
        turn = note(done + 1) if done < turns else Turn(CLOSING)
        if request["stream"] is False:
            return whole(turn)
        return draw.choice(damages) if draw.random() < 0.15 else stream(turn)

    return answer


NIGHT_TURNS = 100
SEEDS = range(int(os.environ.get("RALPH_NIGHTS", "1")))
"""`make nights` plays twenty of them."""


@pytest.mark.parametrize("seed", SEEDS)
def test_a_night_with_15_percent_of_damage_ends_well(seed, tmp_path) -> None:
    ralph = ralph_in(tmp_path)
    with answering([night(seed, NIGHT_TURNS)]) as (server, requests):
        ran = run(ralph, server, settings=OFF)
    assert (ran.code, ran.result["result"], ran.result["num_turns"]) == (0, CLOSING, NIGHT_TURNS + 1), (
        ran.stderr
    )
    assert (ralph.cwd / "notes.txt").read_text() == "".join(f"{one}\n" for one in range(1, NIGHT_TURNS + 1))
    assert len(requests) > NIGHT_TURNS + 1, "some answers came damaged"


@pytest.mark.parametrize("number", [1, 3, 4])
def test_a_run_that_is_killed_while_it_asks_past_damage_is_resumed(number, tmp_path) -> None:
    """The process is killed when this request has arrived. Whatever it waited for, each command runs once."""
    ralph = ralph_in(tmp_path)
    killed: list[subprocess.Popen[bytes]] = []
    story = {0: note(1), 1: note(2), 2: Turn(CLOSING)}

    def answer(request: dict[str, Any]) -> bytes | None:
        if len(requests) == number and killed:
            killed.pop().kill()
            return None
        if request["stream"] and len(requests) not in {1, 9}:
            return GARBLED
        turn = story[sum(message["role"] == "assistant" for message in request["messages"])]
        return stream(turn) if request["stream"] else whole(turn)

    with answering([answer]) as (server, requests):
        ralph.user_file.write_text(OFF)
        ralph.environment["ANTHROPIC_BASE_URL"] = server.base_url
        killed.append(ralph.start("do it"))
        assert ralph.finish(killed[0]).code == -9
        ran = ralph("-c", "--output-format", "stream-json")
    assert (ran.code, ran.result["result"]) == (0, CLOSING), ran.stderr
    assert (ralph.cwd / "notes.txt").read_text() == "1\n2\n"
