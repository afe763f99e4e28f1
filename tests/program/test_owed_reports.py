"""A turn that owes a report: when it is asked for, how often, and what the numbers in result and events say."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ralph.mock_api import Fault, Step, Turn
from tests.program.kept_sessions import only_journal
from tests.program.model_answers import SCHEMA, bash, calls, report, told_texts
from tests.program.test_metrics import number

if TYPE_CHECKING:
    from tests.program.conftest import Finished

FITS: dict[str, Any] = {"files": 3}
WRONG: dict[str, Any] = {"files": "three"}


def events(ran: Finished, subtype: str) -> list[dict[str, Any]]:
    return [entry for entry in ran.objects if entry.get("subtype") == subtype]


def test_one_turn_is_enough_for_a_report_that_is_owed_exits_0(ralph, serve) -> None:
    server = serve(bash("touch made"), report(payload=FITS))
    ran = ralph("go", "--json-schema", SCHEMA, "--max-turns", "1", "--output-format", "stream-json")
    assert (ran.code, ran.result["structured_output"], ran.result["num_turns"]) == (0, FITS, 1)
    assert told_texts(server, 0)[-1].startswith(
        "System notice: The limit of 1 turn is reached. This is the final turn: nothing but a call of final_report"
    )
    assert not (ralph.cwd / "made").exists()


def test_what_the_model_is_told_of_a_report_that_failed_once_is_true(ralph, serve) -> None:
    beside = calls(
        ("final_report", {"status": "success", "summary": "x", "payload": WRONG}), ("Bash", {"command": "ls"})
    )
    server = serve(beside, report(payload=FITS))
    assert ralph("go", "--json-schema", SCHEMA, "--max-turns", "9").code == 0
    [notice] = told_texts(server)
    assert notice.startswith(
        "System notice: No final report has been accepted so far. This is the final turn"
    )
    assert "too often" not in notice


ENDLESS = {
    "prose": Turn("All is done, believe me."),
    "reports": report(payload=WRONG),
    "nothing": Turn(),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_turn_that_becomes_final_has_three_synthetic_retries_in_all(ralph, serve, name) -> None:
    server = serve(bash("echo 1"), Step(ENDLESS[name], repeat="forever"))
    ran = ralph("go", "--json-schema", SCHEMA, "--output-format", "stream-json")
    assert ran.code == (4 if name == "nothing" else 1)
    assert [(one["turn"], one["number"]) for one in events(ran, "synthetic_retry")] == [
        (2, 1),
        (2, 2),
        (2, 3),
    ]
    assert server.request_count == (5 if name == "nothing" else 6)


def test_prose_in_the_place_of_a_report_is_counted_and_kept_exits_1(ralph, serve) -> None:
    server = serve(Step(Turn("There are 3 files, all tested."), repeat="forever"))
    ran = ralph("go", "--json-schema", SCHEMA, "--output-format", "stream-json")
    result, final = ran.result, ran.result["final_report"]
    assert (ran.code, result["subtype"]) == (1, "error_max_structured_output_retries")
    assert (result["num_turns"], final["turns_completed"]) == (1, 0)
    assert final["final_report_attempts"] == server.request_count == 5
    assert "There are 3 files, all tested." in result["result"]
    assert result["result"].startswith(final["summary"])
    [accepted] = events(ran, "report_accepted")
    assert (accepted["turn"], accepted["attempts"]) == (1, 5)


def test_the_turn_of_a_synthetic_report_is_the_one_that_gave_none(ralph, serve) -> None:
    serve(bash("echo 1"), Step(Turn("Well."), repeat="forever"))
    options = ("--require-report", "--max-turns", "2", "--metrics-file", "m.prom")
    ran = ralph("go", *options, "--output-format", "stream-json")
    assert (ran.code, ran.result["num_turns"]) == (3, 2)
    [accepted] = events(ran, "report_accepted")
    assert (accepted["source"], accepted["turn"]) == ("synthetic", 2)
    assert number(ralph.cwd / "m.prom", "final_report_turns_sum") == 2


def test_attempts_go_on_within_a_turn_and_are_told_as_one_sum(ralph, serve) -> None:
    """A failed request, an empty answer, a report that does not fit: all are of one turn."""
    ralph.retry_quickly()
    serve(bash("echo 1"), Fault(status=529), Turn(), Turn("Well."), Fault(status=529), report(payload=FITS))
    ran = ralph("go", "--json-schema", SCHEMA, "--output-format", "stream-json")
    assert ran.code == 0
    records = [json.loads(line) for line in only_journal(ralph).read_text().splitlines()]
    kept = [record["event"] for record in records if record["kind"] == "event"]
    attempts = [(one["turn"], one["attempt"]) for one in kept if one["subtype"] == "attempt"]
    assert attempts == [(1, 1), (2, 1), (2, 2), (2, 3), (2, 4), (2, 5)]
    asked = [(one["turn"], one["attempts"]) for one in kept if one["subtype"] == "turn_asked"]
    assert asked == [(1, 1), (2, 5)]
    assert [one["attempt"] for one in events(ran, "retry_recovered")] == [2, 5]
