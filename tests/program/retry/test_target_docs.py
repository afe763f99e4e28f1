"""Plays the examples of docs/targets.md: their settings with a scripted server, and their lines on the screen."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ralph.mock_api import Fault, Text, Thinking, ToolUse, Turn
from ralph.retry.backoff import GiveUp, standard
from ralph.retry.targets import Route, Rules, TargetsState, after_failure, begin, failure_of
from ralph.values.classify import classify_error
from ralph.values.errors import Api, HttpError, Json, NetworkCause, StreamParse, StreamTransient
from tests.patience import PATIENCE_S
from tests.test_docs import table

if TYPE_CHECKING:
    from ralph.values.errors import AgentError

PAGE = Path(__file__).parents[3] / "docs" / "targets.md"

RUN_TESTS = ToolUse("Bash", {"command": "./run-tests"})
LOOK = Turn([Thinking("First the tests."), Text("I run the tests."), RUN_TESTS])
AGAIN = Turn([Text("A typing error, fixed. Once more."), RUN_TESTS])
DONE = Turn("All tests pass.")

# What the server does to each example of the page, in the page's order, and by how much the test hurries.
EXAMPLES = {
    "A cheaper model": ([LOOK, Fault(status=529), AGAIN, DONE], 1),
    "Two keys": (
        [
            Fault(status=429, headers={"retry-after": "60"}),
            LOOK,
            Fault(status=429, headers={"retry-after": "1"}),
            DONE,
        ],
        1,
    ),
}

# Its second run outlasts the cooldown of two seconds.
TESTS = "#!/bin/sh\n[ ! -e ran ] || sleep 2.2\ntouch ran\n"

# `ralph run` with the file that the user's config directory holds, its waits divided.
PLAY = """
import sys
from ralph.run.command import run_command
from ralph.run.options import RunOptions

options = RunOptions(prompt="Fix the failing test", speed=float(sys.argv[1]), reads_stdin=False)
sys.exit(run_command(options))
"""


def examples() -> dict[str, tuple[str, list[str]]]:
    """The settings and the lines of each example, by its heading."""
    found = {}
    for section in PAGE.read_text().split("\n### ")[1:]:
        heading, _, rest = section.partition("\n")
        blocks = re.search(r"```toml\n(.*?)```\n+```\n(.*?)```", rest, re.DOTALL)
        assert blocks, heading
        found[heading] = (blocks[1], blocks[2].splitlines())
    return found


def as_played(lines: list[str], factor: float) -> list[str]:
    """The page's lines as a run prints them whose waits are shorter by `factor`. Such waits are too short for
    heartbeats.
    """
    waits = re.compile(r"(waiting |retry-after: )(\d+)s$")
    sped = [waits.sub(lambda found: f"{found[1]}{int(found[2]) / factor:g}s", line) for line in lines]
    return [without_port(line) for line in sped if factor == 1 or not line.startswith("[wait]")]


def without_port(line: str) -> str:
    return re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1", line)


def test_every_example_of_the_page_is_played() -> None:
    assert list(examples()) == list(EXAMPLES)


@pytest.mark.parametrize("heading", EXAMPLES)
def test_an_example_prints_the_lines_that_its_page_shows(ralph, serve, heading) -> None:
    settings, lines = examples()[heading]
    steps, factor = EXAMPLES[heading]
    serve(*steps)
    config = Path(ralph.environment["HOME"]) / ".config" / "ralph" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(settings)
    if "SECOND_KEY" in settings:
        ralph.environment["SECOND_KEY"] = "another-key-0123456789"
    tests = ralph.cwd / "run-tests"
    tests.write_text(TESTS)
    tests.chmod(0o755)
    played = subprocess.run(
        [sys.executable, "-c", PLAY, str(factor)],
        cwd=ralph.cwd,
        env=ralph.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert played.returncode == 0, played.stderr
    between = played.stderr.splitlines()[1:-1]
    assert [without_port(line) for line in between] == as_played(lines, factor)


# --- The table of failures

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
