"""Limits of turns, dollars and time, as a user meets them (D12): the exit code, an answer, and a hint how to
go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ralph.mock_api import Fault, Step, Turn
from tests.program.driver import errors
from tests.program.model_answers import DONE, look, told_texts
from tests.rows import every_row

if TYPE_CHECKING:
    from ralph.mock_api import RecordedRequest

WITHOUT_PRICE = "llama-9"


# 20,000 output tokens of sonnet, the model of all tests here, cost $0.20 at $10 a million.
def test_d12_the_last_turn_is_for_a_closing_answer_exits_3(ralph, serve) -> None:
    server = serve(look(), Turn("Half of it is done."))
    ran = ralph("go", "--max-turns", "2")
    assert (ran.code, ran.stdout) == (3, "Half of it is done.\n")
    [notice] = told_texts(server)
    assert notice.startswith("System notice: The limit of 2 turns is reached. This is the final turn")
    tools = [[tool["name"] for tool in request.json()["tools"]] for request in server.requests]
    assert tools[0] == tools[1], "the tool list never changes"
    assert "[turn] Final turn: the turn limit is reached" in ran.stderr


def test_d12_the_budget_is_never_overshot_though_each_answer_costs_all_that_it_may_exits_3(
    ralph, serve
) -> None:
    def dearest(request: RecordedRequest, index: int) -> Turn:
        worst = {"input_tokens": 0, "cache_creation_input_tokens": request.body_bytes // 2}
        return look(offset=index + 1, usage={**worst, "output_tokens": request.json()["max_tokens"]})

    server = serve(script=dearest)
    ran = ralph("go", "--max-budget-usd", "1", "--output-format", "json")
    assert (ran.code, ran.result["subtype"]) == (3, "error_max_budget_usd")
    assert 0.9 < ran.result["total_cost_usd"] <= 1
    allowed = [request.json()["max_tokens"] for request in server.requests]
    assert allowed[0] == 32_000
    assert 1024 <= allowed[-1] < 32_000, "the last answer may be as long as the budget still buys"


def test_d12_what_broken_answers_cost_counts_and_a_retry_that_is_too_dear_is_not_made_exits_3(
    ralph, serve
) -> None:
    ralph.retry_quickly()
    broken = Step(
        Turn("x" * 400, usage={"input_tokens": 90_000}), Fault(cut_after_events=6), repeat="forever"
    )
    server = serve(broken)
    ran = ralph("go", "--max-budget-usd", "0.4", "--output-format", "json", code=3)
    assert 1 <= len(server.requests) < 5
    assert 0 < ran.result["total_cost_usd"] <= 0.4
    assert ran.result["subtype"] == "error_max_budget_usd"


# --- Prices that are not known


def test_d12_a_budget_that_could_not_be_kept_is_refused_before_anything_is_spent_exits_78(
    ralph, ralph_here, serve
) -> None:
    server = serve(DONE)
    unpriced, budget = ("--model", WITHOUT_PRICE), ("--max-budget-usd", "1")
    ran = ralph("go", *unpriced, *budget, "--output-format", "json")
    assert (ran.code, ran.result["terminal_reason"]) == (78, "config")
    for arguments in (*unpriced, *budget), ("--fallback-model", WITHOUT_PRICE, *budget):
        ran = ralph_here("go", *arguments)
        assert (ran.code, ran.stdout) == (78, "")
        [line] = ran.stderr.splitlines()
        assert f"--max-budget-usd cannot be kept: the price of {WITHOUT_PRICE} is not known" in line
    (ralph.cwd / "ralph.toml").write_text("[limits]\nmax_budget_usd = 1\n")
    ran = ralph_here("go", *unpriced, code=78)
    assert "limits.max_budget_usd cannot be kept" in ran.last_line
    assert server.request_count == 0


def test_d12_the_refusal_of_a_budget_says_what_to_write_and_that_works_exits_0(
    ralph, ralph_here, serve
) -> None:
    serve(DONE)
    arguments = ("go", "--model", WITHOUT_PRICE, "--max-budget-usd", "1")
    advice = ralph_here(*arguments).last_line.partition("config.toml: ")[2].partition(" (USD")[0]
    assert advice.count("...") == 4
    for number in ("1", "5", "1.25", "0.1"):
        advice = advice.replace("...", number, 1)
    entry = advice.replace(", model", "\nmodel").replace(", price", "\nprice")
    ralph.user_file.write_text(f"[[targets]]\n{entry}\n")
    ran = ralph(*arguments, "--output-format", "json", code=0)
    assert ran.result["total_cost_usd"] == pytest.approx((10 * 1 + 2 * 5) / 1e6)


def test_d12_the_price_of_a_session_that_continues_is_that_of_its_own_model_exits_78(ralph, serve) -> None:
    server = serve(DONE, DONE)
    assert ralph("go", "--model", WITHOUT_PRICE).code == 0
    ran = ralph("--continue", "more", "--max-budget-usd", "1")
    assert (ran.code, len(server.requests)) == (78, 1)
    assert f"the price of {WITHOUT_PRICE} is not known" in ran.last_line
    assert ralph("--continue", "more").code == 0, "the session is as it was"


def test_d12_a_session_of_a_priced_model_continues_whatever_is_the_default_now_exits_0(ralph, serve) -> None:
    serve(DONE, DONE)
    assert ralph("go").code == 0
    ralph.environment["ANTHROPIC_MODEL"] = WITHOUT_PRICE
    ran = ralph("--continue", "more", "--max-budget-usd", "1")
    assert (ran.code, NO_LIMIT in ran.stderr) == (0, False)


def test_d12_a_driver_cannot_turn_to_a_model_whose_cost_could_not_be_counted_exits_0(drive, serve) -> None:
    server = serve(DONE, DONE, DONE)
    driver = drive("--max-budget-usd", "1")
    driver.say("one")
    driver.result()
    refusal = driver.ask("set_model", model=WITHOUT_PRICE)
    assert f"the price of {WITHOUT_PRICE} is not known" in refusal
    assert driver.ask("set_model", model="opus") == {"model": "claude-opus-5-5"}
    driver.say("two")
    driver.result(2)
    ran = driver.finish().having(0)
    assert len(errors(ran)) == 1
    assert [request.json()["model"] for request in server.requests] == [
        "claude-sonnet-5-5",
        "claude-opus-5-5",
    ]


# --- How limits are given and told

NO_LIMIT = "[notice] no limit is set: this run continues until it is done (--max-time 2h would end it)"
# tests/program/run/test_time_limit.py tests runs without any answer and with a time limit.


def test_a_run_with_settings_and_without_any_limit_says_so_once(ralph, serve) -> None:
    (ralph.cwd / "ralph.toml").write_text("[clocks]\nheartbeat_s = 5\n")
    serve(DONE)
    assert ralph("go").stderr.splitlines().count(NO_LIMIT) == 1


def test_limits_of_a_settings_file_hold(ralph, serve) -> None:
    """tests/settings/test_merge.py tests that flags win over them."""
    (ralph.cwd / "ralph.toml").write_text("[limits]\nmax_turns = 1\nmax_budget_usd = 5\nmax_time_s = 600\n")
    serve(look())
    ran = ralph("go", "--output-format", "json")
    assert (ran.result["subtype"], NO_LIMIT in ran.stderr) == ("error_max_turns", False)


BAD = {
    "--max-turns": ["0", "-1", "1.5", "many", ""],
    "--max-budget-usd": ["0", "-1", "nan", "inf", "cheap", ""],
    "--max-time": ["0", "-1", "soon", "nan", ""],
}


@every_row(("flag", "value"), [(flag, value) for flag, values in BAD.items() for value in values])
def test_a_limit_that_is_none_is_one_line_that_names_it(ralph_here, serve, flag, value) -> None:
    server = serve(DONE)
    ran = ralph_here("go", f"{flag}={value}")
    assert (ran.code, server.request_count, ran.stdout) == (2, 0, "")
    [line] = ran.stderr.splitlines()
    assert flag in line
