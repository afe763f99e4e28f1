"""A report that a model wrote as text and then took back, by word or by deed, is never the end of a run."""

from __future__ import annotations

import json

import pytest

from ralph.mock_api import Fault, Step, Text, ToolUse, Turn
from tests.program.model_answers import SCHEMA, bash, report

SUCCESS = '{"status": "success", "summary": "All tests pass."}'
IN_TEXT = Turn(SUCCESS)
TAKEN_BACK = Turn([Text("I was wrong: 3 tests fail."), ToolUse("Bash", {"command": "exit 3"})])


def owed(schema: str | None) -> list[str]:
    return ["--require-report"] if schema is None else ["--json-schema", schema]


PROMISES = {
    # name: (schema, what the model wrote first)
    "plain": (None, IN_TEXT),
    "payload": (SCHEMA, Turn('```json\n{"files": 3}\n```')),
    "anything": ("{}", Turn("[1, 2]")),
}


@pytest.mark.parametrize("name", PROMISES)
def test_a_report_that_was_taken_back_gives_way_to_the_one_that_the_final_turn_brings(
    ralph, serve, name
) -> None:
    schema, promise = PROMISES[name]
    server = serve(promise, TAKEN_BACK, bash("echo more"), report("failure", "3 tests fail."))
    ran = ralph("go", *owed(schema), "--max-turns", "2", "--output-format", "json")
    assert (ran.code, server.request_count) == (1, 4)
    final = ran.result["final_report"]
    assert (final["source"], final["status"], final["summary"]) == ("tool_call", "failure", "3 tests fail.")
    assert "structured_output" not in ran.result


@pytest.mark.parametrize("name", PROMISES)
def test_a_report_that_was_taken_back_is_no_end_where_nothing_better_comes(ralph, serve, name) -> None:
    schema, promise = PROMISES[name]
    serve(promise, TAKEN_BACK, Step(bash("echo more"), repeat="forever"))
    ran = ralph("go", *owed(schema), "--max-turns", "2", "--output-format", "json")
    assert (ran.code, ran.result["subtype"]) == (3, "error_max_turns")
    assert ran.result["final_report"]["source"] == "synthetic"
    assert "structured_output" not in ran.result


def test_a_report_that_was_taken_back_is_no_success_when_time_runs_out(ralph, serve) -> None:
    silent = Step(fault=Fault(stall_before_headers_s=60))
    serve(IN_TEXT, TAKEN_BACK, silent)
    ran = ralph("go", "--require-report", "--max-turns", "2", "--max-time", "2s", "--output-format", "json")
    assert (ran.code, ran.result["final_report"]["source"]) == (124, "synthetic")


def test_a_report_that_was_taken_back_is_no_success_when_the_context_overflows(ralph, serve) -> None:
    """Summaries are refused too, and what is left does not fit: the final turn."""
    too_long = Fault(status=400, message="prompt is too long: 250000 tokens > 200000 maximum")
    serve(IN_TEXT, TAKEN_BACK, Step(fault=too_long, repeat="forever"))
    ran = ralph("go", "--require-report", "--output-format", "json")
    assert (ran.code, ran.result["final_report"]["source"]) == (3, "synthetic")


def test_a_report_in_text_beside_a_call_of_the_tool_that_fails_is_taken_back_by_it(ralph, serve) -> None:
    wrong = ToolUse("final_report", {"status": "success", "summary": "x", "payload": 1})
    both = Turn([Text('{"files": 3}'), wrong])
    serve(bash("echo 1"), both, report("failure", "No."))
    ran = ralph("go", "--json-schema", SCHEMA, "--max-turns", "2", "--output-format", "json")
    assert (ran.code, ran.result["final_report"]["source"]) == (1, "tool_call")


def test_what_was_said_four_times_and_never_taken_back_counts_in_the_final_turn(ralph, serve) -> None:
    server = serve(Step(Turn('{"files": 3}'), repeat="forever"))
    ran = ralph("go", "--json-schema", SCHEMA, "--output-format", "json")
    assert (ran.code, ran.result["structured_output"], server.request_count) == (0, {"files": 3}, 5)
    assert ran.result["final_report"]["source"] == "text"


def test_a_report_that_was_dropped_is_forgotten_once_the_model_is_told(ralph, serve) -> None:
    """The final turn follows at once, and its requests are answered by nothing."""
    serve(*[Turn('{"files": 3}')] * 4, Step(Turn([]), repeat="forever"))
    ran = ralph("go", "--json-schema", SCHEMA, "--output-format", "json")
    assert (ran.code, ran.result["final_report"]["source"]) == (1, "synthetic")
    assert json.dumps({"files": 3}) not in json.dumps(ran.result.get("structured_output"))


BESIDE_A_CALL = Turn([Text(SUCCESS), ToolUse("Bash", {"command": "make test"})])


def test_a_report_in_text_beside_a_refused_call_comes_behind_the_final_turn_s_own_attempts(
    ralph, serve
) -> None:
    server = serve(BESIDE_A_CALL, report("failure", "3 tests fail."))
    ran = ralph("go", "--require-report", "--max-turns", "1", "--output-format", "json")
    assert (ran.code, server.request_count) == (1, 2)
    assert ran.result["final_report"] == {
        "source": "tool_call",
        "status": "failure",
        "summary": "3 tests fail.",
    }


def test_a_report_in_text_beside_a_refused_call_counts_where_nothing_else_was_said(ralph, serve) -> None:
    """An empty answer between them says nothing either."""
    server = serve(BESIDE_A_CALL, Turn([]), Step(bash("make test"), repeat="forever"))
    ran = ralph("go", "--require-report", "--max-turns", "1", "--output-format", "json")
    assert (ran.code, server.request_count) == (0, 4)
    assert ran.result["final_report"]["source"] == "text"


def test_a_report_in_text_beside_a_refused_call_is_taken_back_by_other_words(ralph, serve) -> None:
    serve(BESIDE_A_CALL, Turn("I was wrong: 3 tests fail."), Step(bash("make test"), repeat="forever"))
    ran = ralph("go", "--require-report", "--max-turns", "1", "--output-format", "json")
    assert (ran.code, ran.result["final_report"]["source"]) == (3, "synthetic")
