"""Tests the facts on which programs that read Claude Code's events rely: fields that always exist, and messages
about failures.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from ralph.mock_api import Fault, Step, ToolUse, Turn
from tests.program.driver import results
from tests.program.model_answers import DONE, bash, report
from tests.rows import every_row

if TYPE_CHECKING:
    from pathlib import Path

    from tests.program.conftest import Finished, Ralph


STREAM = ("--output-format", "stream-json")


def of_type(ran: Finished, kind: str) -> list[dict[str, Any]]:
    return [entry for entry in ran.objects if entry["type"] == kind]


FAILURES = {
    # name: (what the server does, exit code, the error's name)
    "402": (Fault(status=402), 77, "billing_error"),
    "404": (Fault(status=404), 69, "model_not_found"),
    "529": (Fault(status=529), 75, "overloaded"),
    "no answer": (Fault(reset_before_headers=True), 75, "unknown"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_an_api_failure_is_an_assistant_message_with_its_error_and_a_result_text(ralph, serve, name) -> None:
    fault, code, error = FAILURES[name]
    serve(Step(fault=fault, repeat="forever"))
    ran = ralph("hi", *STREAM, "--retry", "off", "--result-file", "result.json", code=code)
    [message] = of_type(ran, "assistant")
    [block] = message["message"]["content"]
    assert (message["error"], message["parent_tool_use_id"], block["type"]) == (error, None, "text")
    assert message["message"]["role"] == "assistant"
    assert message["message"]["usage"]["input_tokens"] == 0
    assert block["text"] == f"API Error: {ran.result['errors'][-1]}" == ran.result["result"]
    assert ran.objects[-2:] == [message, ran.result]
    assert json.loads((ralph.cwd / "result.json").read_text())["result"] == block["text"]


def test_the_result_of_a_failure_that_owes_a_report_stays_the_report(ralph, serve) -> None:
    serve(Fault(status=401))
    ran = ralph("hi", "--require-report", *STREAM)
    [message] = of_type(ran, "assistant")
    assert message["error"] == "authentication_failed"
    assert ran.result["result"].startswith("No final answer: auth")


UNKNOWN_ID = "0d0d0d0d-0000-4000-8000-000000000000"
MISUSE = {
    "unknown session": (("--resume", UNKNOWN_ID, "go on"), "no session has an id that begins with"),
    "nothing to resume": (("--continue",), "there is no session of"),
    "empty prompt": (("",), "prompt"),
}


@every_row("form", ["stream-json", "json"])
@every_row("name", MISUSE)
def test_misuse_that_shows_behind_the_command_line_has_an_error_result_exits_2(
    ralph, ralph_here, serve, name, form
) -> None:
    arguments, why = MISUSE[name]
    server = serve(DONE)
    ran = ralph_here(*arguments, "--output-format", form, "--result-file", "result.json")
    assert (ran.code, server.request_count) == (2, 0)
    result = ran.result
    assert (result["subtype"], result["is_error"], result["exit_code"]) == ("error_during_execution", True, 2)
    assert result["terminal_reason"] == "usage"
    assert why in result["errors"][0]
    assert json.loads((ralph.cwd / "result.json").read_text())["errors"] == result["errors"]
    [line] = ran.stderr.splitlines()
    assert line.startswith("ralph: ")


def test_an_interrupted_turn_is_counted(ralph, serve, drive) -> None:
    """The first message is interrupted in its second turn. The next message takes one turn."""
    serve(
        Turn([ToolUse("Bash", {"command": "echo 1"})]),
        Step(Turn("Half of it."), fault=Fault(stall_after_events=3)),
        DONE,
    )
    driver = drive("--include-partial-messages")
    driver.say("hello")
    driver.wait_for(lambda line: line.get("event", {}).get("delta", {}).get("type") == "text_delta")
    driver.ask("interrupt")
    driver.result()
    driver.say("and now")
    first, second = results(driver.finish())
    assert (first["terminal_reason"], first["num_turns"]) == ("interrupted", 2)
    assert (second["num_turns"], second["session_num_turns"]) == (1, 3)


def test_initialize_is_answered_with_what_there_is(ralph, serve, drive, tmp_path) -> None:
    server = serve(report())
    other = {"model": "claude-haiku-5-5", "name": "spare", "base_url": server.base_url}
    path = tmp_path / "targets.toml"
    keys = "\n".join(f'{key} = "{value}"' for key, value in other.items())
    path.write_text(
        f'[[targets]]\nname = "main"\nmodel = "opus"\nbase_url = "{server.base_url}"\n'
        f'api_key_env = "ANTHROPIC_API_KEY"\n[[targets]]\n{keys}\n'
    )
    driver = drive("--config", str(path))
    answer = driver.ask("initialize", hooks=None)
    assert (answer["commands"], answer["agents"]) == ([], [])
    assert [(one["value"], one["resolvedModel"]) for one in answer["models"]] == [
        ("main", "claude-opus-5-5"),
        ("spare", "claude-haiku-5-5"),
    ]
    assert all(one["displayName"] and one["description"] for one in answer["models"])
    assert answer["account"] == {
        "tokenSource": "none",
        "apiKeySource": "ANTHROPIC_API_KEY",
        "apiProvider": "firstParty",
    }
    assert (answer["output_style"], answer["available_output_styles"]) == ("default", ["default"])
    assert answer["current_permission_mode"]
    assert ralph.environment["ANTHROPIC_API_KEY"] not in json.dumps(answer)
    for one in answer["models"]:
        assert driver.ask("set_model", model=one["value"])
    driver.say("hello")
    driver.finish()


# --- Numbers: no sum of them shows how floats round


# No cost or time has more than nine decimals. Only the moments in a metrics file have an exponent.
LONG_NUMBER = re.compile(r"\S{,30}\s?\b\d+\.\d{10,}(?!\d|e\+09)")
DOWN = Fault(status=529)


def long_numbers(*texts: str) -> list[str]:
    return [found for text in texts for found in LONG_NUMBER.findall(text)]


def files_below(place: Path) -> list[str]:
    """The texts of the files that ralph wrote."""
    return [
        path.read_text() for path in place.rglob("*") if path.suffix in {".json", ".jsonl", ".prom", ".log"}
    ]


def wait_twice(ralph: Ralph) -> None:
    """Makes the first waits of a request 0.05 s and 0.1 s. As floats, their sum is 0.15000000000000002."""
    ralph.user_file.write_text("[retry]\npolicy = 'custom'\nbase_delay_s = 0.05\n")


def test_what_a_run_writes_has_no_long_number(ralph, serve, tmp_path) -> None:
    wait_twice(ralph)
    serve(DOWN, DOWN, bash("true"), bash("false"), DOWN, DOWN, DONE)
    files = ("--metrics-file", "m.prom", "--result-file", "r.json", "--debug-file", "run.log")
    ran = ralph("go", "--output-format", "stream-json", *files)
    recovered = [entry for entry in ran.objects if entry.get("subtype") == "retry_recovered"]
    assert [entry["total_wait_s"] for entry in recovered] == [0.15, 0.15]
    assert ran.result["waited_s"] == 0.3
    told = [
        ralph("sessions", *words, "--format", "json").stdout
        for words in (["ls"], ["export", ran.result["session_id"]])
    ]
    assert json.loads(told[1])["totals"]["cost_usd"] == ran.result["total_cost_usd"] == 0.00017
    assert (len(files_below(tmp_path)), long_numbers(ran.stdout, *told, *files_below(tmp_path))) == (4, [])


def test_what_a_loop_writes_has_no_long_number(ralph, ralph_here, serve, tmp_path) -> None:
    wait_twice(ralph)
    serve(*[DOWN, DOWN, bash("true"), DONE] * 3)
    limits = ("--max-iterations", "3", "--max-budget-usd", "0.3")
    ran = ralph("loop", "go", *limits, "--output-format", "stream-json")
    status, listed = ralph_here("loop", "--status", "--json").stdout, ralph_here("loop", "ls").stdout
    assert json.loads(status)["totals"]["cost_usd"] == 0.0003
    assert json.loads(status)["left"]["usd"] == 0.2997
    assert long_numbers(ran.stdout, status, listed, *files_below(tmp_path)) == []
