"""The values of ralph in the table of `docs/from-claude.md` that were measured beside Claude Code 2.1.332."""

from __future__ import annotations

import json

from ralph.mock_api import Fault
from tests.program.model_answers import DONE, calls, report, results

TWO_CALLS = calls(("Read", {"file_path": "."}), ("Glob", {"pattern": "*"}))
DAY = json.dumps({"type": "object", "properties": {"day": {"type": "string", "format": "date"}}})


def test_two_calls_in_one_message_are_one_turn(ralph, serve) -> None:
    server = serve(TWO_CALLS, DONE)
    ran = ralph("go", "--output-format", "json")
    assert (ran.code, ran.result["num_turns"], server.request_count) == (0, 2, 2)


def test_an_argument_that_begins_with_an_unknown_command_sends_nothing(ralph, serve) -> None:
    server = serve(DONE)
    (ralph.cwd / ".claude/commands").mkdir(parents=True)
    (ralph.cwd / ".claude/commands/fix.md").write_text("Fix it.")
    ran = ralph("-p", "/nosuch it")
    assert (ran.code, server.request_count) == (2, 0)


def test_a_model_without_a_known_price_costs_null_and_has_no_budget(ralph, serve) -> None:
    server = serve(DONE)
    ran = ralph("go", "--model", "house-model", "--output-format", "json")
    assert (ran.code, ran.result["total_cost_usd"]) == (0, None)
    asked = server.request_count
    refused = ralph("go", "--model", "house-model", "--max-budget-usd", "1")
    assert (refused.code, server.request_count) == (78, asked), refused.stderr


def test_a_format_in_a_schema_is_checked(ralph, serve) -> None:
    server = serve(report(payload={"day": "soon"}), report(payload={"day": "2026-11-29"}))
    ran = ralph("go", "--json-schema", DAY, "--output-format", "json")
    assert (ran.code, ran.result["structured_output"]) == (0, {"day": "2026-11-29"}), ran.stderr
    ((said, is_error),) = results(server, 1)
    assert is_error
    assert "date" in said


def test_a_refused_key_is_asked_for_once(ralph, serve) -> None:
    server = serve(Fault(status=401))
    ran = ralph("go", "--output-format", "json")
    assert (ran.code, server.request_count) == (77, 1)


def test_a_stop_hook_that_blocks_for_ever_is_no_success(ralph, serve) -> None:
    server = serve(script=lambda _request, _index: DONE)
    hook = {"hooks": [{"type": "command", "command": "echo no >&2; exit 2"}]}
    settings = json.dumps({"hooks": {"Stop": [hook]}})
    ran = ralph("go", "--settings", settings, "--output-format", "json")
    assert (ran.code, ran.result["terminal_reason"]) == (4, "no_progress"), ran.stderr
    assert server.request_count == 8
