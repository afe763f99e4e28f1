"""A prompt that is too long, in the words of other servers: the context is made smaller, and the work continues. Also what
must stay another failure although its words are alike, and refusals in words that ralph does not know.

tests/values/test_refusals.py has each known text with each status, tests/conversation/test_context_size.py the sizes, and
tests/retry/test_step.py what is said twice.
"""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

from ralph.agent.compaction import SUMMARIZE
from ralph.mock_api import Text, ToolUse, Turn
from tests.api.foreign.wire import (
    DONE,
    QUICKLY,
    Played,
    Row,
    Silence,
    answering,
    command,
    play,
    refusal,
    run,
    sse,
    stream,
)
from tests.patience import wait_until
from tests.program.conftest import ralph_in

if TYPE_CHECKING:
    from tests.api.harness import RawServer
    from tests.program.conftest import Ralph

SUMMARY = "Three steps are done."
SUMMED_UP = stream(SUMMARY)


def step(number: int, kilobytes: int = 15) -> bytes:
    """An answer with a command that adds a line to `notes.txt` and prints so much."""
    prints = f"head -c {kilobytes * 1000} /dev/zero | tr '\\0' x"
    return stream(command(f"echo {number} >> notes.txt; {prints}", f"t{number}"))


STEPS = (step(1), step(2), step(3))
NOTES = "1\n2\n3\n"


def message(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "error", "error": {"type": "invalid_request_error", "message": text, **fields}}


def in_stream(error: dict[str, Any]) -> bytes:
    return sse({"type": "error", **error})


KIMI = refusal(400, message("Your request exceeded model token limit: 262144 (requested: 262150)"))
QUOTED = '{"error":{"message":"prompt is too long: 208310 tokens > 200000 maximum"}}'
OPENROUTER = {"message": "Provider returned error", "code": 400, "metadata": {"raw": QUOTED}}
MIDDLE = "Reached context length of 4096 tokens with model (arch: qwen3vlmoe)."
KNOWN = [
    Row(
        vendor,
        source,
        (*STEPS, answer, SUMMED_UP, DONE),
        notes=NOTES,
        notices=("ralph asks the model for a summary",),
        errors=("",),
    )
    for vendor, source, answer in (
        ("Kimi", "openclaw#9562, kimi-code#207, kimi-cli#2011", KIMI),
        ("LM Studio, in the middle of an answer", "#1251, #1024", in_stream({"error": {"message": MIDDLE}})),
    )
]


@pytest.mark.parametrize("row", KNOWN, ids=lambda row: row.name)
def test_a_full_context_in_known_words_is_made_smaller(row, tmp_path) -> None:
    played = play(row, tmp_path)
    assert asks_for_summary(played.requests[4])
    assert (played.ran.result["retries"], boundaries(played)) == (0, ["overflow"])


def asks_for_summary(request: dict[str, Any]) -> bool:
    return bool(request["messages"][-1]["content"][-1].get("text") == SUMMARIZE)


def boundaries(played: Played) -> list[str]:
    return [
        one["compact_metadata"]["cause"]
        for one in played.ran.objects
        if one.get("subtype") == "compact_boundary"
    ]


# --- Words that are alike

ALIKE = [
    Row(
        "tokens per minute",
        "senpi#1466, second half",
        (
            *STEPS,
            refusal(
                429,
                {
                    "error": {
                        "type": "rate_limit_error",
                        "message": "This request would exceed the limit of 30,000 tokens per minute. Please reduce "
                        "the length of the messages.",
                    }
                },
            ),
            DONE,
        ),
        errors=("tokens per minute",),
        notes=NOTES,
    ),
]


@pytest.mark.parametrize("row", ALIKE, ids=lambda row: row.name)
def test_another_failure_in_words_that_are_alike_compacts_nothing(row, tmp_path) -> None:
    assert boundaries(play(row, tmp_path)) == []


# --- Words that ralph does not know

WINDOW = {"id": "local", "type": "model", "max_input_tokens": 30_000, "max_tokens": 4_096}
LOCAL = ("--model", "local")
SMALL, LARGE = step(1, 5), step(2, 30)
"""After both, a request has 20,000 tokens, estimated from its bytes: four times the last one that was answered, and more
than 60 percent of the window."""
REJECTED = message("The request was rejected.")
BROKEN = {"type": "error", "error": {"type": "api_error", "message": "upstream said no"}}
GUESS = "much larger than the last one that it answered"
BOTH = "1\n2\n"


def many(calls: int) -> bytes:
    """An answer with so many commands that each print 30 KB."""
    prints = "head -c 30000 /dev/zero | tr '\\0' x"
    each = [ToolUse("Bash", {"command": f"{prints}; : {call}"}, id=f"m{call}") for call in range(calls)]
    return stream(Turn([Text("I look."), *each], id="many"))


MANY = many(8)


def guess(name: str, *answers: Any, **fields: Any) -> Row:
    refused = sum(answer not in {MANY, SUMMED_UP, DONE} for answer in answers)
    settled = {"words": LOCAL, "model": WINDOW, "notes": BOTH, "errors": ("",) * refused, **fields}
    return Row(name, "kind of MoonshotAI/Kimi-K2.5#20", (SMALL, LARGE, *answers), **settled)


GUESSES = [
    guess("400", refusal(400, REJECTED), SUMMED_UP, DONE),
    guess("500 with the same text twice", refusal(500, BROKEN), refusal(500, BROKEN), SUMMED_UP, DONE),
    guess(
        "no window, but over 100,000 tokens by the bytes",
        MANY,
        refusal(400, REJECTED),
        SUMMED_UP,
        DONE,
        words=("--model", "unheard-of"),
        model=None,
    ),
]


@pytest.mark.parametrize("row", GUESSES, ids=lambda row: row.name)
def test_an_unknown_refusal_of_a_much_larger_request_is_answered_with_one_compaction(row, tmp_path) -> None:
    played = play(row, tmp_path)
    answered, summary = played.requests[1 if row.model else 2], played.requests[-2]
    assert asks_for_summary(summary)
    assert size(summary) <= size(answered), "the server takes a request of this size"
    assert boundaries(played) == ["overflow"]
    assert any(GUESS in text for text in played.notices)


def size(request: dict[str, Any]) -> int:
    return len(json.dumps(request))


# name, answers, exit code, requests, description of the model
NO_GUESSES: list[tuple[str, tuple[Any, ...], int, int, dict[str, Any] | None]] = [
    ("a first request", (refusal(400, REJECTED),), 69, 1, WINDOW),
    ("429", (SMALL, LARGE, refusal(429, REJECTED)), 75, 7, WINDOW),
    (
        "500 with another text each time",
        (SMALL, LARGE, *(refusal(500, {"error": f"no {number}"}) for number in range(5))),
        75,
        7,
        WINDOW,
    ),
    ("500 once", (SMALL, LARGE, refusal(500, BROKEN), DONE), 0, 4, WINDOW),
]


@pytest.mark.parametrize(
    ("answers", "code", "requests", "model"), [pytest.param(*rest, id=name) for name, *rest in NO_GUESSES]
)
def test_another_refusal_compacts_nothing(answers, code, requests, model, tmp_path) -> None:
    ralph = ralph_in(tmp_path)
    with answering(answers, model) as (server, asked):
        ran = run(ralph, server, *LOCAL)
    assert (ran.code, len(asked)) == (code, requests), ran.stderr
    assert not any(map(asks_for_summary, asked))
    assert GUESS not in ran.stderr


def test_a_summary_that_fails_leaves_the_conversation_as_it_was(tmp_path) -> None:
    ralph = ralph_in(tmp_path)
    with answering((SMALL, LARGE, refusal(400, REJECTED)), WINDOW) as (server, asked):
        ran = run(ralph, server, *LOCAL)
    assert (ran.code, len(asked)) == (69, 4), ran.stderr
    with answering((DONE,), WINDOW) as (server, again):
        ran = run(ralph, server, "--continue", "--base-url", server.base_url)
    assert ran.code == 0, ran.stderr
    assert again[0]["messages"][:-1] == asked[2]["messages"][:-1]


def test_after_a_summary_that_fails_a_failure_of_the_server_gets_all_its_retries(tmp_path) -> None:
    ralph = ralph_in(tmp_path)
    broken = refusal(500, BROKEN)
    with answering(
        (SMALL, LARGE, broken, broken, refusal(400, REJECTED), broken, broken, broken, DONE), WINDOW
    ) as (server, asked):
        ran = run(ralph, server, *LOCAL)
    assert (ran.code, len(asked)) == (0, 9), ran.stderr
    assert asks_for_summary(asked[4])
    assert asked[-1] == asked[2], "the same bytes"


def test_a_run_guesses_once(tmp_path) -> None:
    ralph = ralph_in(tmp_path)
    refused = refusal(400, REJECTED)
    with answering((SMALL, LARGE, refused, SUMMED_UP, step(3, 5), LARGE, refused), WINDOW) as (server, asked):
        ran = run(ralph, server, *LOCAL)
    assert (ran.code, len(asked)) == (69, 7), ran.stderr
    with answering((refused, SUMMED_UP, DONE), WINDOW) as (server, again):
        ran = run(ralph, server, "--continue", "--base-url", server.base_url)
    assert (ran.code, len(again)) == (0, 3), "another run may guess"
    assert asks_for_summary(again[1])


# --- Kills


def killed(ralph: Ralph, server: RawServer, asked: list[Any], requests: int, *words: str) -> None:
    """Starts a run, and kills it when it has sent so many requests."""
    ralph.user_file.write_text(QUICKLY)
    ralph.environment["ANTHROPIC_BASE_URL"] = server.base_url
    process = ralph.start("do it", *words)
    wait_until(lambda: len(asked) == requests)
    ralph.stopped_by(process, signal.SIGKILL)


def test_p1_a_run_that_is_killed_while_it_waits_for_the_summary_asks_again_exits_0(tmp_path) -> None:
    ralph, refused = ralph_in(tmp_path), refusal(400, REJECTED)
    silence = Silence()
    with answering((SMALL, LARGE, refused, silence), WINDOW) as (server, asked):
        killed(ralph, server, asked, 4, *LOCAL)
        silence.end()
    with answering((refused, SUMMED_UP, DONE), WINDOW) as (server, again):
        ran = run(ralph, server, "--continue", "--base-url", server.base_url)
    assert (ran.code, len(again)) == (0, 3), ran.stderr
    assert again[0]["messages"][:-1] == asked[2]["messages"][:-1]
    assert asks_for_summary(again[1])
    assert (ralph.cwd / "notes.txt").read_text() == BOTH


def test_p1_a_run_that_is_killed_in_the_new_context_stays_in_it_exits_0(tmp_path) -> None:
    ralph = ralph_in(tmp_path)
    silence = Silence()
    with answering((SMALL, LARGE, refusal(400, REJECTED), SUMMED_UP, silence), WINDOW) as (server, asked):
        killed(ralph, server, asked, 5, *LOCAL)
        silence.end()
    with answering((DONE,), WINDOW) as (server, again):
        ran = run(ralph, server, "--continue", "--base-url", server.base_url)
    assert (ran.code, len(again)) == (0, 1), ran.stderr
    assert (
        again[0]["messages"][0]["content"][: len(asked[4]["messages"][0]["content"])]
        == (asked[4]["messages"][0]["content"])
    )


# --- Counts


def test_a_count_that_is_always_100_is_no_count(tmp_path) -> None:
    """Also: claudish#123, all of its providers."""
    false = {"input_tokens": 100, "output_tokens": 5}
    steps = (
        stream(command(f"head -c 15000 /dev/zero | tr '\\0' x; : {n}", f"t{n}"), usage=false)
        for n in range(4)
    )

    def summary_or(answer: bytes) -> Any:
        return lambda request: SUMMED_UP if asks_for_summary(request) else answer

    ralph = ralph_in(tmp_path)
    with answering([*steps, summary_or(DONE), DONE], {**WINDOW, "max_input_tokens": 36_000}) as (
        server,
        asked,
    ):
        ran = run(ralph, server, *LOCAL)
    assert (ran.code, len(asked)) == (0, 6), ran.stderr
    assert asks_for_summary(asked[4])
    assert "compacted (threshold)" in ran.stderr
