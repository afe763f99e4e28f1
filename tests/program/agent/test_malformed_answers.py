"""Answers without any call that could run (D1-D3). They are no turns, and the third one in a row ends the run,
whatever differs between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ralph.mock_api import Step, Text, ToolUse, Turn
from tests.program.model_answers import DONE, calls, look, results

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.mock_api import Playable, RecordedRequest


def broken(number: int) -> Turn:
    return Turn([Text(f"Try {number}."), ToolUse("Bash", input_json=f'{{"command": "echo {number}')])


def cut(number: int) -> Turn:
    return Turn([ToolUse("Bash", input_json=f'{{"command": "echo {number}')], stop_reason="max_tokens")


def wrong(number: int) -> Turn:
    return calls(("Bash", {f"cmd{number}": f"echo {number}"}))


def unknown(number: int) -> Turn:
    return calls((f"tool_{number}", {"n": number}), ("Launch", {"n": number}))


def mixed(number: int) -> Turn:
    return (broken, wrong, unknown)[number % 3](number)


VARIED: dict[str, tuple[Callable[[int], Turn], str]] = {
    # name: (the n-th answer, what the result names)
    "cut by max_tokens": (cut, "malformed_call"),
    "unknown tools": (unknown, "unknown_tool"),
    "all kinds": (mixed, "malformed_call"),
}


@pytest.mark.parametrize("name", VARIED)
def test_d1_d2_the_third_malformed_answer_in_a_row_ends_the_run_exits_4(ralph, serve, name) -> None:
    nth, named = VARIED[name]
    server = serve(script=lambda _request, index: nth(index))
    ran = ralph("go", "--output-format", "json")
    assert (ran.code, ran.result["terminal_reason"], server.request_count) == (4, "no_progress", 3)
    assert ran.result["guard"]["name"] == named
    assert ran.result["guard"]["tool"] in {"Bash", "Launch"}
    assert all(is_error for _, is_error in results(server))
    assert ran.result["result"].startswith("No final answer: the run made no progress")
    assert "3 answers in a row" in ran.last_line


def test_malformed_answers_count_over_turns_until_something_ran_exits_3(ralph, serve) -> None:
    """Such answers are no turns, so four of them fit between the two turns that --max-turns allows."""
    server = serve(wrong(1), broken(2), look(), unknown(3), cut(4), DONE)
    ran = ralph("go", "--max-turns", "2", "--output-format", "stream-json")
    assert (ran.code, server.request_count) == (3, 6), "the second turn is the final one"
    final = [entry["turn"] for entry in ran.of("final_turn")]
    assert final == [2]
    assert ran.result["num_turns"] == 2


def test_a_malformed_answer_is_neither_a_turn_nor_a_synthetic_retry_exits_0(ralph, serve) -> None:
    empty = Turn()
    server = serve(empty, wrong(1), empty, wrong(2), empty, DONE)
    ran = ralph("go", "--max-turns", "1", "--output-format", "stream-json")
    assert (ran.code, server.request_count, ran.result["num_turns"]) == (0, 6, 1)
    retries = [entry["number"] for entry in ran.of("synthetic_retry")]
    assert retries == [1, 2, 3]


def test_an_empty_answer_between_malformed_ones_breaks_no_row_exits_4(ralph, serve) -> None:
    server = serve(wrong(1), Turn(), wrong(2), Turn(), wrong(3), DONE)
    assert (ralph("go").code, server.request_count) == (4, 5)


def test_one_call_that_runs_makes_a_turn_of_an_answer_exits_0(ralph, serve) -> None:
    def half(number: int) -> Turn:
        return calls(("Read", {"file_path": f"{number}"}), ("Search", {"n": number}))

    serve(*[half(number) for number in range(4)], DONE)
    ran = ralph("go", "--output-format", "json")
    assert (ran.code, ran.result["num_turns"]) == (0, 5)


def test_many_malformed_calls_in_each_answer_end_the_run_no_later_exits_4(ralph, serve) -> None:
    def play(_request: RecordedRequest, index: int) -> Playable:
        return calls(*[("Bash", {"cmd": f"echo {index}"})] * 5)

    server = serve(script=play)
    ran = ralph("go", "--output-format", "json")
    assert (ran.code, server.request_count, ran.result["guard"]["name"]) == (4, 3, "malformed_call")


def test_calls_that_the_final_turn_refuses_are_not_malformed_exits_3(ralph, serve) -> None:
    server = serve(look(), Step(wrong(1), repeat="forever"))
    ran = ralph("go", "--max-turns", "2", "--output-format", "json")
    assert (ran.code, ran.result["subtype"], server.request_count) == (3, "error_max_turns", 5)
    assert "guard" not in ran.result
