"""Thinking that a server refuses, because another account or another server has signed it: it is left out, and the request
is sent once more. Thinking that a server misses: it is asked without thinking until the next prompt.
"""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from ralph.mock_api import Text, Thinking, ToolUse, Turn
from tests.api.foreign.wire import DONE, QUICKLY, Row, Silence, answering, play, refusal, run, sse, stream
from tests.patience import wait_until
from tests.program.conftest import ralph_in

LEFT_OUT = "the server refuses the thinking of earlier answers"
ASKED_WITHOUT = "asked without thinking"


def thinks(number: int) -> bytes:
    """An answer with thinking and a command that adds a line to `notes.txt`."""
    thinking = Thinking(f"THOUGHT {number}", signature=f"c2lnbmVk{number}")
    call = ToolUse("Bash", {"command": f"echo {number} >> notes.txt"}, id=f"t{number}")
    return stream(Turn([thinking, Text(f"Step {number}."), call], id=f"m{number}"))


def says(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "error", "error": {"type": "invalid_request_error", "message": text, **fields}}


INVALID = says("messages.1.content.0: Invalid `signature` in `thinking` block")
SIGNATURE = refusal(400, INVALID)
MISSED = refusal(400, says("The `content[].thinking` in the thinking mode must be passed back to the API."))

# tests/values/test_refusals.py has each text with each status.
REFUSED = [
    Row(name, source, (thinks(1), answer, DONE), notes="1\n", notices=(LEFT_OUT,), errors=("",))
    for name, source, answer in (
        (
            "another account",
            "happyclaw#474, better-ccflare#52, openclaw#100385, openclaw#94534, claude-code#21726",
            SIGNATURE,
        ),
        ("in a stream", "kind of claude-code#21726", sse(INVALID)),
    )
]
MARKER = ', "cache_control": {"type": "ephemeral"}'


def thoughts(request: dict[str, Any]) -> list[str]:
    """The texts of the thinking blocks in a request."""
    return [
        block["thinking"]
        for message in request["messages"]
        for block in message["content"]
        if block["type"] == "thinking"
    ]


def without_thinking(request: dict[str, Any]) -> dict[str, Any]:
    messages = [
        {**message, "content": [block for block in message["content"] if block["type"] != "thinking"]}
        for message in request["messages"]
    ]
    return {**request, "messages": messages}


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.name)
def test_refused_thinking_is_left_out_and_asked_once_more(row, tmp_path) -> None:
    played = play(row, tmp_path)
    _, refused, again = played.requests
    assert (thoughts(refused), again) == (["THOUGHT 1"], without_thinking(refused))
    assert played.ran.result["retries"] == 0


OTHERS = [
    Row(
        "refused once more without thinking",
        "own",
        (thinks(1), SIGNATURE, SIGNATURE),
        code=69,
        errors=("Invalid `signature`",) * 2,
        notes="1\n",
    ),
    Row("a first request", "own", (SIGNATURE,), code=69, errors=("Invalid `signature`",)),
    Row(
        "an account that changes with every request",
        "kind of happyclaw#474",
        (thinks(1), SIGNATURE, thinks(2), SIGNATURE, thinks(3), DONE),
        notes="1\n2\n3\n",
        errors=("Invalid `signature`",) * 2,
    ),
]


@pytest.mark.parametrize("row", OTHERS, ids=lambda row: row.name)
def test_it_is_asked_again_only_if_there_was_thinking_to_leave_out(row, tmp_path) -> None:
    play(row, tmp_path)


def test_only_the_thinking_so_far_is_left_out(tmp_path) -> None:
    answers = (thinks(1), SIGNATURE, thinks(2), thinks(3), DONE)
    row = Row("new thinking", "own", answers, notes="1\n2\n3\n", errors=("Invalid `signature`",))
    *_, third, last = play(row, tmp_path).requests
    assert [thoughts(third), thoughts(last)] == [["THOUGHT 2"], ["THOUGHT 2", "THOUGHT 3"]]
    grown, before = (json.loads(json.dumps(each["messages"]).replace(MARKER, "")) for each in (last, third))
    assert grown[: len(before)] == before, "it only grows"


def test_a_server_that_misses_thinking_is_asked_without_until_the_next_prompt(tmp_path) -> None:
    """DeepSeek: 9router#2397, new-api#4806."""
    ralph = ralph_in(tmp_path)
    script = (thinks(1), SIGNATURE, MISSED, thinks(2), DONE, thinks(3), DONE)
    with answering(script) as (server, asked):
        first = run(ralph, server)
        again = run(ralph, server, "--continue")
    assert (first.code, again.code, len(asked)) == (0, 0, 7), f"{first.stderr}{again.stderr}"
    assert [request.get("thinking") for request in asked] == [
        *[None] * 3,
        *[{"type": "disabled"}] * 2,
        *[None] * 2,
    ]
    assert ASKED_WITHOUT in first.stderr
    assert thoughts(asked[3]) == []
    assert thoughts(asked[6]) == ["THOUGHT 2", "THOUGHT 3"], "what was left out stays left out"


def test_a_server_that_misses_thinking_again_ends_the_run(tmp_path) -> None:
    ralph = ralph_in(tmp_path)
    with answering((thinks(1), MISSED)) as (server, asked):
        ran = run(ralph, server)
    assert (ran.code, len(asked)) == (69, 3), ran.stderr


# --- Kills and resumes


@pytest.mark.parametrize(
    ("before", "after", "requests", "head"),
    [
        pytest.param((thinks(1),), (SIGNATURE, DONE), 2, None, id="before the refusal"),
        pytest.param((thinks(1), SIGNATURE), (DONE,), 3, None, id="after it"),
        pytest.param(
            (thinks(1), SIGNATURE, MISSED),
            (DONE,),
            4,
            {"type": "disabled"},
            id="while it is asked without thinking",
        ),
    ],
)
def test_p1_a_run_that_is_killed_around_refused_thinking_continues_without_it_exits_0(
    before, after, requests, head, tmp_path
) -> None:
    ralph = ralph_in(tmp_path)
    ralph.user_file.write_text(QUICKLY)
    silence = Silence()
    with answering((*before, silence, *after)) as (server, asked):
        ralph.environment["ANTHROPIC_BASE_URL"] = server.base_url
        process = ralph.start("do it")
        wait_until(lambda: len(asked) == requests)
        ralph.stopped_by(process, signal.SIGKILL)
        silence.end()
        ran = ralph("--continue")
    assert (ran.code, len(asked)) == (0, requests + len(after)), ran.stderr
    assert (thoughts(asked[-1]), asked[-1].get("thinking")) == ([], head)
    assert asked[-1] == {**without_thinking(asked[1]), **({"thinking": head} if head else {})}
    assert (ralph.cwd / "notes.txt").read_text() == "1\n"


def test_a_session_that_ended_with_refused_thinking_continues(tmp_path) -> None:
    """Also the session of an older ralph, which ended at the first refusal."""
    ralph = ralph_in(tmp_path)
    with answering((thinks(1), refusal(400, says("no")), SIGNATURE, DONE)) as (server, asked):
        assert run(ralph, server).code == 69
        ran = run(ralph, server, "--continue")
    assert (ran.code, len(asked)) == (0, 4), ran.stderr
    assert [thoughts(request) for request in asked[1:]] == [["THOUGHT 1"], ["THOUGHT 1"], []]


# --- Another endpoint


def test_an_endpoint_never_gets_the_signatures_of_another_one(tmp_path) -> None:
    """The endpoint that ends the run depends on how long the first one cools down."""
    ralph = ralph_in(tmp_path)
    down = refusal(529, says("Overloaded"))
    with (
        answering((thinks(1), down, DONE)) as (main, asked),
        answering((thinks(2), DONE)) as (spare, asked_instead),
    ):
        targets = "".join(
            f"[[targets]]\nname = '{name}'\nmodel = 'same'\nbase_url = '{server.base_url}'\n"
            for name, server in (("main", main), ("spare", spare))
        )
        ran = run(ralph, main, settings=QUICKLY + targets)
    assert ran.code == 0, ran.stderr
    assert len(asked_instead) >= 1
    assert "signature" not in json.dumps(asked_instead[0])
    assert all("THOUGHT 1" not in thoughts(request) for request in asked_instead)
    assert [thoughts(request) for request in asked[:2]] == [[], ["THOUGHT 1"]], "its own"
    assert all("THOUGHT 2" not in thoughts(request) for request in asked)
