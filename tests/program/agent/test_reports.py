"""`--json-schema` and `--require-report`, as a user meets them: what they refuse, and where the result is printed.

tests/agent/test_reports.py tests which report counts, and what a missing one costs.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from ralph.mock_api import Fault, Turn
from tests.program.driver import results as results_of
from tests.program.kept_sessions import only_journal
from tests.program.model_answers import DONE, SCHEMA, calls, report

FITS: dict[str, Any] = {"files": 3}


def write(name: str) -> Turn:
    """A turn with a visible effect that needs no process."""
    return calls(("Write", {"file_path": name, "content": ""}))


def offered(request) -> list[str]:
    return [tool["name"] for tool in request.json()["tools"]]


# --- Reports that count


@pytest.mark.ordinary_user
def test_a_payload_by_a_schema_file_seen_from_the_call_is_the_answer_and_in_the_result_file(
    ralph, serve
) -> None:
    (ralph.cwd / "schema.json").write_text(SCHEMA)
    (ralph.cwd / "deep").mkdir()
    server = serve(report(payload=FITS))
    ran = ralph("go", "--json-schema", "schema.json", "--cd", "deep", "--result-file", "result.json")
    assert (ran.code, json.loads(ran.stdout)) == (0, FITS)
    assert offered(server.requests[0])[-1] == "final_report"
    result = json.loads((ralph.cwd / "result.json").read_text())
    assert (result["structured_output"], result["final_report"]["status"]) == (FITS, "success")


# --- Reports that do not


def test_attempts_continue_within_a_turn_and_are_told_as_one_sum(ralph, serve) -> None:
    """A failed request, an empty answer and a report that does not fit all belong to one turn."""
    ralph.retry_quickly()
    serve(write("a"), Fault(status=529), Turn(), Turn("Well."), Fault(status=529), report())
    ran = ralph("go", "--require-report", "--output-format", "stream-json", code=0)
    records = [json.loads(line) for line in only_journal(ralph).read_text().splitlines()]
    kept = [record["event"] for record in records if record["kind"] == "event"]
    attempts = [(one["turn"], one["attempt"]) for one in kept if one["subtype"] == "attempt"]
    assert attempts == [(1, 1), (2, 1), (2, 2), (2, 3), (2, 4), (2, 5)]
    asked = [(one["turn"], one["attempts"]) for one in kept if one["subtype"] == "turn_asked"]
    assert asked == [(1, 1), (2, 5)]
    assert [one["attempt"] for one in ran.of("retry_recovered")] == [2, 5]


# --- Sessions


def test_a_session_that_required_a_report_requires_it_when_it_continues(ralph, serve) -> None:
    server = serve(write("a"), *[Turn()] * 4, report(payload={"files": ""}), report(payload=FITS))
    assert ralph("go", "--json-schema", SCHEMA, "--max-turns", "2").code == 3
    ran = ralph("--continue", "--output-format", "json")
    assert (ran.code, ran.result["structured_output"]) == (0, FITS)
    assert len({json.dumps(request.json()["tools"]) for request in server.requests}) == 1


def test_a_session_can_be_asked_for_a_report_later_and_then_for_another(ralph, serve) -> None:
    server = serve(DONE, report(summary="First."), report(summary="Second."))
    assert ralph("go").code == 0
    assert ralph("--continue", "sum it up", "--require-report").stdout == "First.\n"
    assert ralph("--continue").code == 2, "there is nothing to resume"
    assert ralph("--continue", "and again").stdout == "Second.\n"
    assert [("final_report" in offered(request)) for request in server.requests] == [False, True, True]


def test_each_message_of_a_driven_run_by_an_sdks_options_has_a_report_of_its_own(drive, serve) -> None:
    server = serve(report(payload={"files": 1}), report("failure", "No."), report(payload={"files": 3}))
    driver = drive(
        "--verbose", "--system-prompt", "", "--json-schema", SCHEMA, "--permission-mode", "default"
    )
    driver.ask("initialize", hooks=None)
    driver.say("one", "two", "three")
    ran = driver.finish()
    assert [line.get("structured_output") for line in results_of(ran)] == [{"files": 1}, None, {"files": 3}]
    assert [line["exit_code"] for line in results_of(ran)] == [0, 1, 0]
    assert (ran.code, server.request_count) == (0, 3)


NO_SCHEMAS = {
    "a file that is not there": ("nowhere.json", "cannot read nowhere.json: no such file"),
    "a directory": (".", "it is not a regular file"),
    "nothing": ("", "is empty"),
    "broken text": ('{"type": ', "the schema is not JSON"),
    "a broken file": ("broken.json", "broken.json is not JSON"),
    "a list": ("list.json", "must be a JSON object, got an array"),
    "no schema": ('{"type": "strange"}', "#/type: expected one of"),
    "a schema elsewhere": ('{"$ref": "http://127.0.0.1:9/a.json"}', "nothing is fetched"),
    "a circle": ('{"$ref": "#"}', "leads back to itself"),
}


def test_what_is_no_schema_is_refused_in_one_line_before_anything_is_sent(ralph, ralph_here, serve) -> None:
    (ralph.cwd / "broken.json").write_text('{"type"')
    (ralph.cwd / "list.json").write_text("[1]")
    server = serve(DONE)
    for name, (given, why) in NO_SCHEMAS.items():
        ran = ralph_here("go", "--json-schema", given)
        assert (ran.code, ran.stdout, server.request_count) == (2, "", 0), name
        [line] = ran.stderr.splitlines()
        assert line.startswith("ralph: Invalid value for --json-schema: "), name
        assert why in line, name
