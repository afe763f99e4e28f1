"""The limits of a whole `ralph loop`, for all its iterations together. They must never be exceeded."""

from __future__ import annotations

import time

import pytest

from ralph.mock_api import Turn
from tests.program.conftest import first_prompt, loop_lines, loop_record
from tests.program.model_answers import bash, write

# The price of a token of sonnet, in dollars.
INPUT_TOKEN, OUTPUT_TOKEN = 2 / 1_000_000, 10 / 1_000_000


def test_the_budget_of_all_iterations_is_never_overshot_exits_3(ralph, serve) -> None:
    charged: list[float] = []

    def dearest(request, index: int) -> Turn:
        """Every second answer ends its iteration. All answers are as long as they may be, up to 9,000 tokens."""
        body = request.json()
        tokens = min(body["max_tokens"], 9_000)
        charged.append(1000 * INPUT_TOKEN + tokens * OUTPUT_TOKEN)
        usage = {"input_tokens": 1000, "output_tokens": tokens}
        has_acted = any(one["role"] == "assistant" for one in body["messages"])
        return Turn("Enough.", usage=usage) if has_acted else bash(f"echo {index} >> log", usage=usage)

    serve(script=dearest)
    ran = ralph("loop", "go", "--max-budget-usd", "0.5", "--until", "false", code=3)
    assert "limit_reached (exit 3): the budget of $0.50 is spent; " in loop_lines(ran)[-1]
    records = loop_record(ralph)["iterations"]
    assert len(records) >= 3
    told = sum(record["cost_usd"] for record in records)
    assert told == pytest.approx(sum(charged))
    assert 0.4 < told <= 0.5
    assert loop_lines(ran)[3].endswith(", $0.3160 left")


def test_the_time_of_all_iterations_ends_the_one_under_way_and_the_loop_with_124(ralph, iterations) -> None:
    iterations([bash("echo 1 >> log")], [bash("echo 2 >> log; sleep 1000000")])
    started_s = time.monotonic()
    ran = ralph("loop", "go", "--max-time", "3s", code=124)
    assert time.monotonic() - started_s > 2.5
    assert "[ralph] timed_out (exit 124): " in ran.stderr, "it ended itself"
    assert (
        "timed_out (exit 124): the time limit of 3s (--max-time) is used up; 2 iterations"
        in loop_lines(ran)[-1]
    )
    assert [record["exit_code"] for record in loop_record(ralph)["iterations"]] == [0, 124]
    assert (ralph.cwd / "log").read_text() == "1\n2\n"


def test_after_a_limit_of_turns_or_time_a_fresh_iteration_is_told_where_the_last_stopped(
    ralph, iterations
) -> None:
    (ralph.cwd / "ralph.toml").write_text("[limits]\nmax_time_s = 1.5\n")
    server = iterations(
        [write("one.txt"), write("two.txt"), write("three.txt")],
        [bash("touch late.txt; sleep 60")],
        [bash("touch .ralph/stop")],
    )
    ralph("loop", "go", "--max-turns", "3", code=0)
    records = loop_record(ralph)["iterations"]
    assert [record["exit_code"] for record in records] == [3, 124, 0]
    assert len({record["session_id"] for record in records}) == 3
    prompts = {
        first_prompt(request).partition("]")[0][-1]: first_prompt(request) for request in server.requests
    }
    assert "stopped" not in prompts["1"]
    assert "The last iteration was stopped before it was finished: limit_reached (" in prompts["2"]
    assert "It changed: one.txt" in prompts["2"]
    assert "The last iteration was stopped before it was finished: timed_out (" in prompts["3"]
    assert "It changed: late.txt." in prompts["3"]


def test_a_quiet_loop_says_how_to_continue_exits_3(ralph, serve) -> None:
    serve(Turn("Done."))
    ran = ralph("loop", "go", "--max-iterations", "1", "--until", "false", "--quiet", code=3)
    assert "continue with: ralph loop --continue --max-iterations 2\n" in ran.stderr, ran.stderr
