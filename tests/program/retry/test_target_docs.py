"""Plays the example of docs/targets.md: its settings with a scripted server, and its lines on the screen."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.mock_api import Fault, Text, Thinking, ToolUse, Turn
from ralph.retry.backoff import GiveUp, standard
from ralph.retry.targets import Route, Rules, TargetsState, after_failure, begin, failure_of
from ralph.values.errors import (
    Api,
    HttpError,
    Json,
    NetworkCause,
    StreamParse,
    StreamTransient,
    classify_error,
)
from tests.test_docs import table

if TYPE_CHECKING:
    from ralph.values.errors import AgentError

PAGE = Path(__file__).parents[3] / "docs" / "targets.md"

RUN_TESTS = ToolUse("Bash", {"command": "./run-tests"})
LOOK = Turn([Thinking("First the tests."), Text("I run the tests."), RUN_TESTS])
AGAIN = Turn([Text("A typing error, fixed. Once more."), RUN_TESTS])
DONE = Turn("All tests pass.")

# What the server does to the example of the page.
EXAMPLE = [LOOK, Fault(status=529), AGAIN, DONE]

# Its second run outlasts the cooldown of two seconds.
TESTS = "#!/bin/sh\n[ ! -e ran ] || sleep 2.2\ntouch ran\n"


def test_the_example_prints_the_lines_that_the_page_shows(ralph, serve) -> None:
    shown = re.search(
        r"```toml\n([^`]*)```\n+```\n([^`]*)```", PAGE.read_text().split("\n## An example\n")[1]
    )
    assert shown
    serve(*EXAMPLE)
    config = Path(ralph.environment["HOME"]) / ".config" / "ralph" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(shown[1])
    tests = ralph.cwd / "run-tests"
    tests.write_text(TESTS)
    tests.chmod(0o755)
    played = ralph("Fix the failing test", code=0)
    assert played.stderr.splitlines()[1:-1] == shown[2].splitlines()


FAILURES: dict[str, list[AgentError]] = {
    "429": [HttpError(429, None, "")],
    "408, 409, 5xx, no answer, a stream that breaks off": [
        *(HttpError(status, None, "") for status in (408, 409, 500, 503, 529, 599)),
        Api(NetworkCause.REFUSED),
        Api(NetworkCause.TIMEOUT),
        StreamTransient("cut"),
    ],
    "401, an exhausted account": [
        HttpError(401, None, ""),
        HttpError(429, None, "", error_code="enforced_spend_limit_reached"),
        HttpError(400, None, "", message="Your credit balance is too low"),
    ],
    "402, 403, 404, 407": [HttpError(status, None, "") for status in (402, 403, 404, 407)],
    "3xx, a broken protocol, a certificate, an unknown host": [
        HttpError(307, None, ""),
        StreamParse("x"),
        Json("x"),
        Api(NetworkCause.CERTIFICATE),
        Api(NetworkCause.DNS_UNKNOWN_HOST),
    ],
    "any other 4xx, a prompt that is too long": [HttpError(400, None, ""), HttpError(413, None, "")],
}

FIRST_KEY, SECOND_KEY, OTHER_TARGET = Route(0, 0), Route(0, 1), Route(1, 0)


def choice_after(error: AgentError) -> list[str]:
    """The last three cells of a row, computed with the code for two targets, of which the first has two keys."""
    rules = Rules((2, 1))
    state = begin(TargetsState(), rules, 0.0)
    failure = failure_of(error, classify_error(error))
    decision, state = after_failure(state, failure, rules=rules, policy=standard(), now_s=0.0)
    if isinstance(decision, GiveUp):
        return ["-", "-", "nobody"]
    terms = {"task": state.skipped, "request": state.chain.barred, "cooldown": frozenset(state.releases_s)}
    term, hit = next((term, hit) for term, hit in terms.items() if hit)
    who = {frozenset({FIRST_KEY}): "key", frozenset({FIRST_KEY, SECOND_KEY}): "target"}[hit]
    return [who, term, {SECOND_KEY: "next key", OTHER_TARGET: "next target"}[state.route]]


def test_the_table_of_the_page_is_what_choosing_does() -> None:
    rows = table(PAGE, "Failure")
    assert [row[0] for row in rows] == list(FAILURES)
    for name, *cells in rows:
        for error in FAILURES[name]:
            assert choice_after(error) == cells, error
