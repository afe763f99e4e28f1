"""Whole runs in an environment that was set up for Claude Code."""

from __future__ import annotations

import pytest

from ralph.mock_api import Turn


def test_what_is_sent_is_the_id_that_the_environment_names(ralph, serve) -> None:
    server = serve(Turn("Hello."))
    ralph.environment["ANTHROPIC_DEFAULT_SONNET_MODEL"] = "gateway-sonnet[1m]"
    ran = ralph("hi", "--output-format", "json")
    assert ran.code == 0
    assert [request.json()["model"] for request in server.requests] == ["gateway-sonnet"]
    assert ran.result["modelUsage"]["gateway-sonnet"]["contextWindow"] == 1_000_000


@pytest.mark.parametrize(
    ("environment", "arguments", "code", "says"),
    [
        ({}, ["--model", "opusplan"], 2, "opusplan"),
        ({"ANTHROPIC_MODEL": "opusplan"}, [], 78, "ANTHROPIC_MODEL must name one model"),
        ({"CLAUDE_CODE_USE_BEDROCK": "1"}, [], 78, "it would ask another endpoint"),
        ({"CLAUDE_CODE_USE_VERTEX": "1"}, [], 78, "it would ask another endpoint"),
        (
            {
                "ANTHROPIC_API_KEY": "",
                "ANTHROPIC_BASE_URL": "",
                "CLAUDE_CODE_OAUTH_TOKEN": "sk-ant-oat-canary",
            },
            [],
            78,
            "CLAUDE_CODE_OAUTH_TOKEN is Claude Code's own login",
        ),
    ],
)
def test_what_is_not_understood_ends_before_a_request(
    ralph, serve, environment, arguments, code, says
) -> None:
    server = serve(Turn("Hello."))
    ralph.environment |= environment
    ran = ralph("hi", *arguments)
    assert (ran.code, len(server.requests)) == (code, 0)
    assert says in ran.last_line
    assert "canary" not in ran.stdout + ran.stderr


def test_doctor_shows_what_counts_and_what_keeps_a_run_from_asking(ralph, serve) -> None:
    serve()
    ralph.environment |= {"CLAUDE_CODE_USE_BEDROCK": "1", "ANTHROPIC_DEFAULT_SONNET_MODEL": "mine"}
    ran = ralph("doctor", "--offline")
    assert ran.code == 78
    assert "model.name                mine " in ran.stdout
    assert "CLAUDE_CODE_USE_BEDROCK is set, and ralph does not find Amazon Bedrock by it" in ran.stdout
