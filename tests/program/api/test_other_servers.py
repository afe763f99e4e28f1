"""Servers other than Anthropic's: with each of their habits the work is done once, and their messages reach
people.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from ralph.mock_api import MockApi, Scenario, Turn, as_message, example_names, load_example
from ralph.mock_api.scenario import as_step
from tests.program.conftest import ralph_in

if TYPE_CHECKING:
    from pathlib import Path

    from tests.program.conftest import Finished

HELLO = Turn("Hello there.")
CLOSING = "The note is written."

NO_DELTA = "the server sent no message_delta"
AS_JSON = "the server ignored `stream` and sent the whole message as JSON"


@dataclass(frozen=True)
class Expected:
    requests: int = 2
    notices: tuple[str, ...] = ()
    """The notices about the server, in order."""
    errors: tuple[str, ...] = ()
    """The messages about the failures, in order."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Names that the API would refuse in a request, with the names that replace them."""


@pytest.mark.parametrize("ending", ["/v1", "/v1/messages/"])
def test_a_base_url_may_end_in_the_api_s_own_path(ralph, serve, ending) -> None:
    server = serve(HELLO)
    ralph.environment["ANTHROPIC_BASE_URL"] += ending
    ran = ralph("hi")
    assert (ran.code, ran.stdout) == (0, "Hello there.\n")
    assert [request.path for request in server.requests] == ["/v1/messages"]


def test_what_is_posted_to_is_said_by_doctor_and_where_the_address_may_be_wrong(
    ralph, ralph_here, serve
) -> None:
    server = serve(HELLO)  # and 404 for any other path
    address = f"{server.base_url}/somewhere/v1/messages"
    ralph.environment["ANTHROPIC_BASE_URL"] = address
    ran = ralph("hi", code=69)
    assert f"POST {address}" in ran.stderr
    shown = ralph_here("doctor").stdout.splitlines()
    assert ["posts", "to", address] in [line.split() for line in shown]


# One for each scenario: a new file without a row here fails the first test.
QUIRKS = {
    "quirk-interleaved-blocks": Expected(),
    "quirk-no-tool-input": Expected(),
    "quirk-no-pings": Expected(),
    "quirk-empty-signature": Expected(),
    "quirk-no-message-delta": Expected(
        notices=(
            NO_DELTA,
            "the server gave no stop reason; taken as tool_use",
            NO_DELTA,
            "the server gave no stop reason; taken as end_turn",
        )
    ),
    "quirk-end-turn-with-calls": Expected(),
    "quirk-openai-errors": Expected(
        requests=7,
        errors=(
            "HTTP 429 requests: Rate limit reached for requests",
            "HTTP 503: server busy, please try again",
            "HTTP 429 RateLimitError: The waiting queue is full",
            "HTTP 502: Upstream worker went away",
            "HTTP 500: response.choices.0: Field required",
        ),
    ),
    "quirk-model-loading": Expected(requests=4, errors=("HTTP 503 unavailable_error: Loading model",) * 2),
    "quirk-json-instead-of-sse": Expected(notices=(AS_JSON, AS_JSON)),
    "quirk-ping-first": Expected(),
    "quirk-odd-ids": Expected(
        renamed={
            "functions.Bash:0": "functions_Bash_0",
            "functions.Bash:1": "functions_Bash_1",
            "functions.Bash": "functions_Bash",
        }
    ),
}


def sent_messages(server, index: int = -1) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = json.loads(server.requests[index].body)["messages"]
    return messages


def lines_of(ran, label: str) -> list[str]:
    return [
        line.removeprefix(f"[{label}] ") for line in ran.stderr.splitlines() if line.startswith(f"[{label}]")
    ]


def only(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("played", [name], indirect=True)


class QuirkRun(NamedTuple):
    """A run with a server that has one such habit, and what the run left."""

    name: str
    ran: Finished
    result: dict[str, Any]
    server: MockApi
    cwd: Path


@pytest.fixture(scope="module", params=QUIRKS)
def played(request, tmp_path_factory) -> QuirkRun:
    """One run for all tests of a habit."""
    ralph = ralph_in(tmp_path_factory.mktemp(request.param))
    ralph.retry_quickly()
    with MockApi(Scenario(load_example(request.param).steps)) as server:
        ran = ralph("write the note", "--base-url", server.base_url, "--result-file", "result.json")
    result = json.loads((ralph.cwd / "result.json").read_text())
    return QuirkRun(request.param, ran, result, server, ralph.cwd)


def test_every_quirk_that_ships_is_tested_here() -> None:
    assert sorted(QUIRKS) == [name for name in example_names() if name.startswith("quirk-")]


def test_a_quirk_ends_in_the_answer_and_in_nothing_that_is_not_due(played) -> None:
    ran, expected = played.ran, QUIRKS[played.name]
    assert ran.code == 0, ran.stderr
    assert (played.result["subtype"], played.result["result"]) == ("success", CLOSING)
    assert played.result["num_turns"] == 2
    assert played.server.request_count == expected.requests
    assert [line for line in lines_of(ran, "notice") if "server" in line] == list(expected.notices)
    # The request's id, which follows in parentheses, is the server's own.
    assert [line.split(" (request")[0] for line in lines_of(ran, "error")] == list(expected.errors)
    assert lines_of(ran, "clock") == []


def test_under_a_quirk_the_work_is_done_exactly_once(played) -> None:
    assert played.ran.stdout == CLOSING + "\n"
    assert (played.cwd / "notes.txt").read_text() == "done\n"
    assert (played.cwd / "other.txt").exists() == (played.name == "quirk-interleaved-blocks")


def test_under_a_quirk_the_answer_goes_back_block_by_block_as_it_was_meant(played) -> None:
    """The scripted server knows what its answer would have been without the server's habit."""
    steps = [step for step in map(as_step, load_example(played.name).steps) for _ in range(int(step.repeat))]
    answers = [as_message(step.turn, index=index) for index, step in enumerate(steps) if step.turn]
    task, answer, results = sent_messages(played.server)
    assert task["role"] == "user"
    meant = json.dumps(answers[0]["content"])
    for refused, sent in QUIRKS[played.name].renamed.items():
        meant = meant.replace(f'"{refused}"', f'"{sent}"')
    content = json.loads(meant)
    assert answer == {"role": "assistant", "content": content}
    calls = [block["id"] for block in content if block["type"] == "tool_use"]
    assert [block["tool_use_id"] for block in results["content"]] == calls


@only("quirk-odd-ids")
def test_a_tool_of_an_odd_name_is_answered_with_the_names_that_there_are(played) -> None:
    _, _, results = sent_messages(played.server)
    assert [block.get("is_error", False) for block in results["content"]] == [False, True]
    assert results["content"][1]["content"].startswith(
        "There is no tool 'functions_Bash'. The tools are: Bash, "
    )


def test_the_help_names_every_example(ralph_here) -> None:
    text = "".join(ralph_here("mock-api", "--help").stdout.split())  # lines break at hyphens too
    assert [name for name in example_names() if name.removeprefix("quirk-") not in text] == []
