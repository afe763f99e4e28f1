"""The line about a recovery must come before the answer, and the text of a broken answer must not be shown as an
answer.
"""

from __future__ import annotations

from ralph.mock_api import Fault, Step, Text, ToolUse, Turn
from tests.program.faulty import DONE

LONG = Turn([Text("One line of it.\nAnother one."), ToolUse("Bash", {"command": "echo found"})])


def own_lines(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if not line.startswith(("[ralph]", "[notice]"))]


def test_a_chain_is_told_as_recovered_before_the_text_that_recovered_it(ralph, serve) -> None:
    """The second attempt breaks off in its text. It is no recovery, and none of its text is shown."""
    ralph.retry_quickly()
    serve(Fault(status=529), Step(LONG, fault=Fault(cut_after_events=5)), LONG, DONE)
    ran = ralph("hi")
    assert ran.code == 0
    lines = own_lines(ran.stderr)
    told = [line for line in lines if line.startswith("[retry]") or "line" in line or "one" in line]
    assert [line.partition(" — ")[0] for line in told] == [
        "[retry] Attempt 1/4: 529",
        "[retry] Attempt 2/4: StreamTransient",
        "[retry] Retrying from beginning of response...",
        "[retry] Recovered after 2 retries",
        "One line of it.",
        "Another one.",
        "All done.",
    ]
    assert "[discarded]" not in ran.stderr, "nothing was shown that does not count"


def test_text_of_a_retry_that_fails_for_good_is_not_shown(ralph, serve) -> None:
    ralph.retry_quickly()
    serve(Fault(status=529), Step(LONG, fault=Fault(cut_after_events=5)), Fault(status=401))
    ran = ralph("hi")
    assert ran.code == 77
    assert "One line" not in ran.stderr
    assert "[retry] Failed after 2 retries: HTTP 401" in ran.stderr
