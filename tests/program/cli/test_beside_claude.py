"""The values of ralph in the table of `docs/from-claude.md` that were measured beside Claude Code 2.1.332."""

from __future__ import annotations

import json

from tests.program.model_answers import DONE, calls, report, results

TWO_CALLS = calls(("Read", {"file_path": "."}), ("Glob", {"pattern": "*"}))
DAY = json.dumps({"type": "object", "properties": {"day": {"type": "string", "format": "date"}}})


def test_two_calls_in_one_message_are_one_turn(ralph, serve) -> None:
    server = serve(TWO_CALLS, DONE)
    ran = ralph("go", "--output-format", "json")
    assert (ran.code, ran.result["num_turns"], server.request_count) == (0, 2, 2)


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
