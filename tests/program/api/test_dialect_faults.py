"""Faults of the network, of servers and of answers as a user meets them, in each dialect. The client's own part of these rows is in
`tests/api/dialects/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ralph.mock_api import ErrorEvent, Fault, Step, Text, Thinking, ToolUse, Turn
from ralph.values.servers import ANTHROPIC, OPENAI_CHAT, OPENAI_RESPONSES
from tests.program.conftest import ralph_in
from tests.program.faulty import APPEND, DONE, effects
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ralph.mock_api import MockApi, Playable
    from tests.program.conftest import Finished, Ralph

APIS = (ANTHROPIC, OPENAI_CHAT, OPENAI_RESPONSES)
DIALECTS = (OPENAI_CHAT, OPENAI_RESPONSES)
QUICKLY = (
    "[retry]\npolicy = 'custom'\nbase_delay_s = 0.01\n[clocks]\nbytes_idle_s = 0.5\nprogress_idle_s = 1\n"
)
SUMMARY = "A line is written; nothing is left to do."
Run = tuple["Ralph", "Finished", "MockApi"]


@pytest.fixture
def played(tmp_path: Path, serve) -> Callable[..., Run]:
    """Plays these steps to a run of its own, on a server that speaks `api`."""
    number = iter(range(1000))

    def play(api: str, *steps: Playable) -> Run:
        directory = tmp_path / str(next(number))
        directory.mkdir()
        ralph = ralph_in(directory)
        ralph.environment["OPENAI_API_KEY"] = "sk-proj-0123456789abcdef0123456789"
        ralph.user_file.write_text(QUICKLY)
        server: MockApi = serve(*steps)
        base_url = server.base_url if api == ANTHROPIC else f"{server.base_url}/v1"
        ran = ralph("hi", "--api", api, "--base-url", base_url, "--model", "gpt-6-astra")
        return ralph, ran, server

    return play


def append(number: int) -> Turn:
    """A call whose effect is a line of its own, because a run refuses calls that repeat themselves."""
    command = f"echo {number} >> effects"
    return Turn([Text("Let me write."), ToolUse("Bash", {"command": command}, id=f"call_{number}")])


def broken_by(fault: Fault, turn: Turn = APPEND) -> Step:
    return Step(fault=fault) if fault.replaces_answer() else Step(turn, fault)


SURVIVED = [
    # A connection that ends before the first byte, or inside the headers.
    Fault(reset_before_headers=True),
    Fault(close_before_headers=True),
    Fault(partial_headers_bytes=30),
    # An answer that ends inside a call: cleanly, with an error, and in silence.
    Fault(cut_after_events=5, framing="close"),
    Fault(cut_after_events=5, framing="chunked"),
    Fault(cut_after_events=5, framing="reset"),
    Fault(stall_after_events=4),
    Fault(stall_after_events=4, ping_interval_s=0.1),
    # Damage.
    Fault(malformed_json_at_event=3),
    Fault(content_type="text/html", body="<html><title>Sign in</title>Sign in to the network</html>"),
    # Outages and rate limits.
    Fault(status=500),
    Fault(status=502, body="<html>Bad gateway</html>"),
    Fault(status=529),
    Fault(status=429, headers={"retry-after-ms": 10}),
    Fault(error_event=ErrorEvent(after_events=3)),
    Fault(error_event=ErrorEvent("rate_limit_error", "Slow down", 2)),
]


@every_row("api", APIS)
def test_a4_a5_a6_a7_a8_a9_a12_a13_a14_a16_a17_a18_in_each_dialect_the_work_is_done_once_and_the_answer_comes_exits_0(
    played, api: str
) -> None:
    """One run meets all faults, two in a turn."""
    steps: list[Playable] = []
    for number in range(0, len(SURVIVED), 2):
        turn = append(number)
        steps += [*(broken_by(fault, turn) for fault in SURVIVED[number : number + 2]), turn]
    ralph, ran, server = played(api, *steps, DONE)
    assert (ran.code, ran.stdout, len(server.requests)) == (0, "All done.\n", len(steps) + 1), ran.stderr
    assert effects(ralph) == [str(number) for number in range(0, len(SURVIVED), 2)]
    assert "[retry] Retrying from beginning of response..." in ran.stderr
    assert ran.stderr.count("[turn] Synthetic retry") == 2, "the two damaged ones alone"


@every_row("api", DIALECTS)
def test_a7_a15_in_each_dialect_an_answer_that_is_whole_counts_however_it_came_exits_0(
    played, api: str
) -> None:
    faults = (Fault(framing="reset"), Fault(framing="close"), Fault(json_instead_of_sse=True))
    steps = [Step(append(number), fault) for number, fault in enumerate(faults)]
    ralph, ran, server = played(api, *steps, DONE)
    assert (ran.code, len(server.requests)) == (0, 4), ran.stderr
    assert effects(ralph) == ["0", "1", "2"]


@every_row("api", APIS)
@every_row(
    ("fault", "code"),
    [
        (Fault(status=404, message="no such model"), 69),
        (Fault(status=413, message="too large"), 3),
        (Fault(error_event=ErrorEvent("billing_error", "pay", 2)), 77),
    ],
)
def test_a16_a19_a20_in_each_dialect_what_lasts_is_asked_once_and_ends_the_run_exits_3_69_or_77(
    played, api: str, fault: Fault, code: int
) -> None:
    ralph, ran, server = played(api, broken_by(fault))
    assert (ran.code, len(server.requests)) == (code, 1), ran.stderr
    assert effects(ralph) == []
    assert "Traceback" not in ran.stderr


WRONG = ToolUse("Bash", {"command": 3}, id="call_1")
UNKNOWN = ToolUse("Nothing", {}, id="call_2")
NO_JSON = ToolUse("Bash", input_json='{"command": ', id="call_3")


@every_row("api", DIALECTS)
def test_d1_d2_in_each_dialect_a_call_that_is_wrong_is_answered_and_the_work_continues_exits_0(
    played, api: str
) -> None:
    ralph, ran, server = played(api, Turn([WRONG, UNKNOWN, NO_JSON]), APPEND, DONE)
    assert (ran.code, len(server.requests)) == (0, 3), ran.stderr
    for told in ("command", "Nothing", "not valid JSON"):
        assert told in server.requests[1].body.decode()
    assert effects(ralph) == ["line"]


@every_row("api", DIALECTS)
def test_d4_in_each_dialect_answers_that_say_nothing_are_asked_for_again_exits_0_or_4(
    played, api: str
) -> None:
    nothing, thinking = Turn(), Turn([Thinking("Hm.")])
    _, ran, server = played(api, nothing, thinking, DONE)
    assert (ran.code, len(server.requests)) == (0, 3), ran.stderr
    _, ran, server = played(api, Step(nothing, repeat=2), Step(thinking, repeat=2))
    assert (ran.code, len(server.requests)) == (4, 4), ran.stderr


@every_row("api", DIALECTS)
def test_d8_in_each_dialect_a_full_context_is_summed_up_exits_0(played, api: str) -> None:
    refusal = Fault(status=400, message="Your input exceeds the context window of this model.")
    long = Turn([ToolUse("Bash", {"command": "echo line >> effects; seq 20000"})])
    ralph, ran, server = played(api, long, refusal, Turn(SUMMARY), DONE)
    assert (ran.code, len(server.requests)) == (0, 4), ran.stderr
    assert SUMMARY in server.requests[3].body.decode()
    assert effects(ralph) == ["line"]


@every_row("api", DIALECTS)
def test_d11_in_each_dialect_several_calls_of_one_answer_have_their_results_in_their_order_exits_0(
    played, api: str
) -> None:
    commands = ("echo first", "exit 3", "echo third")
    uses = [ToolUse("Bash", {"command": command}, id=f"call_{n}") for n, command in enumerate(commands)]
    _, ran, server = played(api, Turn(uses), DONE)
    assert (ran.code, len(server.requests)) == (0, 2), ran.stderr
    body = server.requests[1].json()
    items = body["input"] if api == OPENAI_RESPONSES else body["messages"]
    results = [one for one in items if "output" in one or one.get("role") == "tool"]
    assert [one.get("call_id") or one["tool_call_id"] for one in results] == ["call_0", "call_1", "call_2"]
    told = [str(one.get("output") or one["content"]) for one in results]
    assert "first" in told[0]
    assert "third" in told[2]
