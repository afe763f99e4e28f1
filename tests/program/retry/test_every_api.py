"""Money, reports, sessions, pages, loops and drivers are the same for a target of each API."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ralph.mock_api import Fault, Step, Text, Thinking, ToolUse, Turn
from ralph.values.servers import ANTHROPIC, APIS, facts_of

if TYPE_CHECKING:
    from tests.program.conftest import Ralph

MODELS = {ANTHROPIC: "claude-opus-5-5"}
USAGE = {"input_tokens": 1_000, "output_tokens": 100}
WORK = Turn([Thinking("Hm."), Text("I look."), ToolUse("Bash", {"command": "echo hi"})], usage=USAGE)
ENOUGH = 1_500
"""More than the server counts for a prompt, and less than the bound on the prompt of such a request."""


def at_api(ralph: Ralph, api: str, server: Any) -> list[str]:
    ralph.environment["OPENAI_API_KEY"] = "sk-proj-0123456789abcdef"
    return ["--api", api, "--base-url", server.base_url, "--model", MODELS.get(api, "gpt-5.4")]


@pytest.mark.parametrize("api", APIS)
def test_a_report_is_accepted_priced_counted_and_shown(ralph, serve, api) -> None:
    payload = {"status": "success", "summary": "All is done.", "payload": {"files": 2}}
    server = serve(WORK, Turn([ToolUse("final_report", payload)], usage=USAGE))
    schema = '{"type": "object", "properties": {"files": {"type": "integer"}}, "required": ["files"]}'
    asked = at_api(ralph, api, server)
    limits = ["--max-budget-usd", "5", "--effort", "high", "--metrics-file", "metrics.prom"]
    ran = ralph("go", *asked, "--json-schema", schema, "--output-format", "json", *limits)
    assert (ran.code, ran.result["structured_output"]) == (0, {"files": 2})
    model = asked[-1]
    facts = facts_of(model)
    assert facts is not None
    assert facts.price is not None
    cost = 2 * (1_000 * facts.price.input + 100 * facts.price.output) / 1e6
    assert ran.result["total_cost_usd"] == pytest.approx(cost)
    assert ran.result["modelUsage"][model]["contextWindow"] == facts.context_window
    assert (
        f'ralph_tokens_total{{model="{model}",type="input"}} 2000' in (ralph.cwd / "metrics.prom").read_text()
    )
    assert b'"effort":"high"' in server.requests[0].body.replace(b" ", b"").replace(
        b"reasoning_effort", b"effort"
    )
    session = ran.result["session_id"]
    shown = ralph("sessions", "show", session)
    assert f"{model} answered in " in shown.stdout
    assert f"--api {api} " in shown.stdout
    assert ralph("sessions", "ls").stdout.split()[3:5] == ["completed", "2"]
    assert "I look." in ralph("sessions", "export", session).stdout
    assert ralph("report", session, "-o", "page.html").code == 0
    page = (ralph.cwd / "page.html").read_text()
    assert model in page
    assert "I look." in page


@pytest.mark.parametrize("api", APIS)
def test_the_prompt_of_a_broken_answer_is_paid_for(ralph, serve, api) -> None:
    """The Messages API counts the prompt at the beginning of a stream, and the other two at its end."""
    broken = Turn("These words break off. " * 20, usage=USAGE)
    server = serve(Step(broken, Fault(cut_after_events=9)), Turn("All done.", usage=USAGE))
    ran = ralph("go", *at_api(ralph, api, server), "--output-format", "json")
    assert (ran.code, ran.result["retries"]) == (0, 1)
    of_broken = ran.result["usage"]["input_tokens"] - 1_000
    assert of_broken == 1_000 if api == ANTHROPIC else ENOUGH < of_broken < 8_000


@pytest.mark.parametrize("api", APIS)
def test_a_loop_and_a_driver_know_the_key_of_each_api(ralph, serve, api) -> None:
    server = serve(WORK, Turn("All done.", usage=USAGE), Turn("All done.", usage=USAGE))
    asked = at_api(ralph, api, server)
    looped = ralph("loop", "go", *asked, "--max-iterations", "1", code=0)
    assert "[loop] iteration 1 of 1: completed, 2 turns" in looped.stderr
    asking = {"type": "control_request", "request_id": "1", "request": {"subtype": "initialize"}}
    driven = ralph(
        *("-p", "--input-format", "stream-json", "--output-format", "stream-json", *asked),
        stdin=json.dumps(asking).encode() + b"\n",
    )
    (account,) = (
        one["response"]["response"]["account"] for one in driven.objects if one["type"] == "control_response"
    )
    variable = "ANTHROPIC_API_KEY" if api == ANTHROPIC else "OPENAI_API_KEY"
    assert (account["apiKeySource"], account["tokenSource"]) == (variable, "none")
