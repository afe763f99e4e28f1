"""`--json-schema` and `--require-report`, as a user meets them: what they refuse, what comes out, and where."""

from __future__ import annotations

import json
import os
import pty
from typing import TYPE_CHECKING, Any

import pytest

from ralph.mock_api import Fault, Step, ToolUse, Turn
from tests.patience import PATIENCE_S
from tests.program.driver import results as results_of
from tests.program.model_answers import DONE, SCHEMA, bash, calls, report, results, told_texts

if TYPE_CHECKING:
    from tests.program.conftest import Finished, Ralph

FORMATS = ("text", "json", "stream-json")
FITS: dict[str, Any] = {"files": 3}


def offered(request) -> list[str]:
    return [tool["name"] for tool in request.json()["tools"]]


def system_events(ran: Finished, subtype: str) -> list[dict[str, Any]]:
    return [entry for entry in ran.objects if entry.get("subtype") == subtype]


# --- Reports that count


@pytest.mark.parametrize("form", FORMATS)
def test_a_report_that_fits_is_the_answer(ralph, serve, form) -> None:
    server = serve(bash("ls"), report(payload=FITS))
    ran = ralph("go", "--json-schema", SCHEMA, "--output-format", form)
    assert ran.code == 0
    assert offered(server.requests[0])[-1] == "final_report"
    if form == "text":
        assert json.loads(ran.stdout) == FITS
        return
    result = ran.result
    assert (result["subtype"], result["is_error"], result["num_turns"]) == ("success", False, 2)
    assert result["structured_output"] == FITS
    assert result["result"] == "Counted them."
    assert result["final_report"] == {"source": "tool_call", "status": "success", "summary": "Counted them."}


@pytest.mark.parametrize(
    ("form", "status"),
    [("text", "success"), ("text", "failure"), ("json", "failure"), ("stream-json", "success")],
)
def test_a_report_without_a_payload_gives_its_summary(ralph, serve, form, status) -> None:
    serve(report(status, "It is as it is."))
    ran = ralph("go", "--require-report", "--output-format", form)
    assert ran.code == (0 if status == "success" else 1)
    if form == "text":
        assert ran.stdout == "It is as it is.\n"
        return
    assert ran.result["result"] == "It is as it is."
    assert ran.result["terminal_reason"] == ("completed" if status == "success" else "task_failed")
    assert "structured_output" not in ran.result


def test_a_failure_needs_no_payload_and_may_have_one(ralph, serve) -> None:
    serve(report("failure", "No access."), report("failure", "No access.", payload=FITS))
    without = ralph("go", "--json-schema", SCHEMA)
    having = ralph("go", "--json-schema", SCHEMA)
    assert (without.code, without.stdout) == (1, "No access.\n")
    assert (having.code, json.loads(having.stdout)) == (1, FITS)


def test_with_quiet_only_the_answer_and_the_outcome_are_there(ralph, serve) -> None:
    serve(report(payload="wrong"), report(payload=FITS))
    ran = ralph("go", "--json-schema", SCHEMA, "-q")
    assert (ran.code, json.loads(ran.stdout)) == (0, FITS)
    [line] = ran.stderr.splitlines()
    assert line.startswith("[ralph] completed")


def test_the_result_file_holds_the_payload_whatever_standard_output_gets(ralph, serve) -> None:
    serve(report(payload=FITS))
    assert ralph("go", "--json-schema", SCHEMA, "--result-file", "result.json").code == 0
    result = json.loads((ralph.cwd / "result.json").read_text())
    assert (result["structured_output"], result["final_report"]["status"]) == (FITS, "success")


def on_a_terminal(ralph: Ralph, *arguments: str) -> tuple[int, list[str]]:
    """Exit code and lines of a run whose standard output and error are one screen."""
    ours, theirs = pty.openpty()
    process = ralph.start(*arguments, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError:  # the other end was closed
        pass
    os.close(ours)
    return process.wait(timeout=PATIENCE_S), shown.decode().splitlines()


@pytest.mark.parametrize(
    ("arguments", "turns", "answer"),
    [
        ((), [DONE], "All done."),
        (("-q",), [DONE], "All done."),
        (("--require-report",), [report()], "Counted them."),
        (("--json-schema", SCHEMA), [report(payload=FITS)], '{"files": 3}'),
        (("--json-schema", SCHEMA, "-q"), [report(payload=FITS)], '{"files": 3}'),
        (("--max-turns", "1"), [bash("ls")], "No final answer: the turn limit was reached after 1 turn."),
        (
            ("--max-turns", "1", "-q"),
            [bash("ls")],
            "No final answer: the turn limit was reached after 1 turn.",
        ),
    ],
    ids=["text", "text quiet", "summary", "payload", "payload quiet", "synthetic", "synthetic quiet"],
)
def test_on_one_terminal_the_answer_stands_once(ralph, serve, arguments, turns, answer) -> None:
    ralph.environment["NO_COLOR"] = "1"
    serve(*turns)
    _, lines = on_a_terminal(ralph, "go", *arguments)
    assert "\n".join(lines).count(answer) == 1


@pytest.mark.parametrize("payload", [[1, 2], False, "", {"type": "result", "word": "é"}], ids=repr)
def test_a_payload_is_any_kind_of_json(ralph, serve, payload) -> None:
    serve(report(payload=payload))
    assert json.loads(ralph("go", "--json-schema", "{}", "--result-file", "result.json").stdout) == payload
    assert json.loads((ralph.cwd / "result.json").read_text())["structured_output"] == payload


def test_the_first_report_of_an_answer_that_fits_counts(ralph, serve) -> None:
    reports = [
        {"status": "done"},
        {"status": "failure", "summary": "No."},
        {"status": "success", "summary": "Yes."},
    ]
    serve(calls(*[("final_report", arguments) for arguments in reports]))
    ran = ralph("go", "--require-report")
    assert (ran.code, ran.stdout) == (1, "No.\n")
    assert "[tool] final_report failed: A report was accepted before" in ran.stderr


# --- Reports that do not


def test_a_report_that_max_tokens_cut_is_none_and_one_in_a_refusal_neither(ralph, serve) -> None:
    cut = Turn([ToolUse("final_report", input_json='{"status": "success"')], stop_reason="max_tokens")
    refused = calls(("final_report", {"status": "success", "summary": "Yes."}), stop_reason="refusal")
    server = serve(cut, refused)
    ran = ralph("go", "--require-report", "--output-format", "json")
    assert (ran.code, ran.result["terminal_reason"]) == (4, "no_progress")
    assert "the answer reached max_tokens inside this call" in results(server)[0][0]
    assert ran.result["final_report"]["source"] == "synthetic"


def test_a_report_that_does_not_fit_is_sent_back_with_path_and_expectation(ralph, serve) -> None:
    server = serve(report(payload={"files": "three"}), report(payload=FITS))
    ran = ralph("go", "--json-schema", SCHEMA, "--output-format", "stream-json")
    assert (ran.code, ran.result["structured_output"], ran.result["num_turns"]) == (0, FITS, 1)
    [(said, is_error)] = results(server)
    assert 'payload.files: expected an integer, got "three"' in said
    assert is_error
    [line] = [line for line in ran.stderr.splitlines() if "Malformed call of final_report" in line]
    assert 'payload.files: expected an integer, got "three"' in line
    [collapsed] = system_events(ran, "turns_collapsed")
    assert (collapsed["old_max_turns"], collapsed["new_max_turns"]) == (None, 2)
    assert "[turn] Turns collapsed from no limit to 2: the final report was not accepted" in ran.stderr
    [accepted] = system_events(ran, "report_accepted")
    assert (accepted["source"], accepted["attempts"]) == ("tool_call", 2)


def test_reports_that_never_fit_are_a_failure_that_says_what_was_wrong(ralph, serve) -> None:
    serve(Step(report(payload={"files": "three"}), repeat="forever"))
    ran = ralph("go", "--json-schema", SCHEMA, "--output-format", "json")
    assert (ran.code, ran.result["subtype"]) == (1, "error_max_structured_output_retries")
    final = ran.result["final_report"]
    assert (final["source"], final["status"], final["reason"]) == ("synthetic", "failure", "no_report")
    assert final["final_report_attempts"] >= 4
    assert final["last_error"] == 'payload.files: expected an integer, got "three"'
    assert ran.result["result"] == final["summary"] != ""
    assert "structured_output" not in ran.result


def test_a_required_report_that_never_comes_is_a_failure(ralph, serve) -> None:
    server = serve(Step(Turn("I am done, believe me."), repeat="forever"))
    ran = ralph("go", "--require-report")
    assert ran.code == 1
    assert ran.stdout.startswith("No final answer: no valid final report was sent")
    assert ran.stdout.endswith("The model's last words were:\n\nI am done, believe me.\n")
    assert "[turn] Final turn: no final report that fits came" in ran.stderr
    assert server.request_count == 5, "three more in the turn, which then becomes final"


def test_a_limit_that_forces_the_end_has_its_own_code_although_a_report_is_missing(ralph, serve) -> None:
    serve(bash("echo 1"), Step(Turn("I am nearly there."), repeat="forever"))
    ran = ralph("go", "--require-report", "--max-turns", "2", "--output-format", "json")
    assert (ran.code, ran.result["subtype"]) == (3, "error_max_turns")
    assert ran.result["final_report"]["reason"] == "max_turns"


@pytest.mark.parametrize(("status", "code"), [("success", 0), ("failure", 1)])
def test_a_report_in_the_final_turn_decides_over_the_limit(ralph, serve, status, code) -> None:
    server = serve(bash("echo 1"), report(status))
    ran = ralph("go", "--require-report", "--max-turns", "2", "--output-format", "stream-json")
    assert ran.code == code
    assert "nothing but a call of final_report is accepted" in told_texts(server)[-1]
    [accepted] = system_events(ran, "report_accepted")
    assert accepted["forced_final_reason"] == "max_turns"


def test_other_tools_are_refused_in_the_final_turn_and_offered_all_the_same(ralph, serve) -> None:
    server = serve(bash("echo 1"), bash("touch made"), report())
    assert ralph("go", "--require-report", "--max-turns", "2").code == 0
    [(said, is_error)] = results(server)
    assert said == "This call was not run: in the final turn only final_report is accepted."
    assert is_error
    assert not (ralph.cwd / "made").exists()
    assert len({tuple(offered(request)) for request in server.requests}) == 1


def test_a_payload_in_text_counts_in_the_final_turn_alone_and_its_source_is_told(ralph, serve) -> None:
    text = Turn('```json\n{"files": 3}\n```')
    early = serve(text, report(payload={"files": 4}))
    assert json.loads(ralph("go", "--json-schema", SCHEMA).stdout) == {"files": 4}
    assert early.request_count == 2
    serve(bash("echo 1"), text)
    ran = ralph("go", "--json-schema", SCHEMA, "--max-turns", "2", "--output-format", "json")
    assert (ran.code, ran.result["structured_output"]) == (0, FITS)
    assert ran.result["final_report"]["source"] == "text"
    assert "[report] success, found in the text of an answer" in ran.stderr


def test_a_run_that_the_server_ends_keeps_the_servers_code(ralph, serve) -> None:
    serve(Fault(status=401))
    ran = ralph("go", "--require-report", "--output-format", "json")
    assert (ran.code, ran.result["terminal_reason"]) == (77, "auth")
    assert ran.result["final_report"]["source"] == "synthetic"


# --- Sessions


def test_a_session_that_required_a_report_requires_it_when_it_goes_on(ralph, serve) -> None:
    server = serve(bash("echo 1"), *[Turn()] * 4, report(payload={"files": ""}), report(payload=FITS))
    assert ralph("go", "--json-schema", SCHEMA, "--max-turns", "2").code == 3
    ran = ralph("--continue", "--output-format", "json")
    assert (ran.code, ran.result["structured_output"]) == (0, FITS)
    assert len({json.dumps(request.json()["tools"]) for request in server.requests}) == 1


def test_a_completed_session_can_be_asked_for_another_report(ralph, serve) -> None:
    serve(report(summary="First."), report(summary="Second."))
    assert ralph("go", "--require-report").stdout == "First.\n"
    assert ralph("--continue").code == 2, "there is nothing to go on with"
    assert ralph("--continue", "and again").stdout == "Second.\n"


def test_a_session_without_a_report_can_be_asked_for_one_later(ralph, serve) -> None:
    server = serve(DONE, report(payload=FITS))
    assert ralph("go").code == 0
    assert json.loads(ralph("--continue", "sum it up", "--json-schema", SCHEMA).stdout) == FITS
    assert [("final_report" in offered(request)) for request in server.requests] == [False, True]


# --- Driven runs


def test_each_message_of_a_driven_run_has_a_report_of_its_own(drive, serve) -> None:
    server = serve(
        report(payload={"files": 1}), bash("ls"), report("failure", "No."), report(payload={"files": 3})
    )
    driver = drive("--json-schema", SCHEMA)
    driver.say("one", "two", "three")
    ran = driver.finish()
    assert [line.get("structured_output") for line in results_of(ran)] == [{"files": 1}, None, {"files": 3}]
    assert [line["exit_code"] for line in results_of(ran)] == [0, 1, 0]
    assert (ran.code, server.request_count) == (0, 4)


def test_the_options_of_an_sdk_give_structured_output(drive, serve) -> None:
    serve(report(payload=FITS))
    driver = drive(
        "--verbose", "--system-prompt", "", "--json-schema", SCHEMA, "--permission-mode", "default"
    )
    driver.ask("initialize", hooks=None)
    driver.say("one")
    result = driver.result()
    driver.finish()
    assert (result["subtype"], result["structured_output"]) == ("success", FITS)


# --- What cannot be a schema

NO_SCHEMAS = {
    "a file that is not there": ("nowhere.json", "cannot read nowhere.json: no such file"),
    "a directory": (".", "is no file"),
    "nothing": ("", "is empty"),
    "broken text": ('{"type": ', "the schema is no JSON"),
    "a broken file": ("broken.json", "broken.json is no JSON"),
    "a list": ("list.json", "must be a JSON object, got an array"),
    "no schema": ('{"type": "strange"}', "#/type: expected one of"),
    "a schema elsewhere": ('{"$ref": "http://127.0.0.1:9/a.json"}', "nothing is fetched"),
    "a circle": ('{"$ref": "#"}', "leads back to itself"),
}


@pytest.mark.parametrize("name", NO_SCHEMAS)
def test_what_is_no_schema_is_refused_in_one_line_before_anything_is_sent(
    ralph, ralph_here, serve, name
) -> None:
    given, why = NO_SCHEMAS[name]
    (ralph.cwd / "broken.json").write_text('{"type"')
    (ralph.cwd / "list.json").write_text("[1]")
    server = serve(DONE)
    ran = ralph_here("go", "--json-schema", given)
    assert (ran.code, ran.stdout, server.request_count) == (2, "", 0)
    [line] = ran.stderr.splitlines()
    assert line.startswith("ralph: Invalid value for --json-schema: ")
    assert why in line


def test_a_schema_in_a_file_is_found_from_where_ralph_was_called(ralph, serve) -> None:
    (ralph.cwd / "schema.json").write_text(SCHEMA)
    (ralph.cwd / "deep").mkdir()
    serve(report(payload=FITS))
    ran = ralph("go", "--json-schema", "schema.json", "--cd", "deep")
    assert (ran.code, json.loads(ran.stdout)) == (0, FITS)


def test_a_model_that_invents_the_report_where_none_is_required_is_told_so(ralph, serve) -> None:
    server = serve(calls(("final_report", {"status": "success", "summary": "x"})), DONE)
    ran = ralph("go")
    assert (ran.code, ran.stdout) == (0, "All done.\n")
    [(said, is_error)] = results(server)
    assert "There is no tool 'final_report'" in said
    assert is_error
