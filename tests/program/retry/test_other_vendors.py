"""Whole runs with models of other vendors, and sessions that move between vendors. The scripted server refuses each request that
its API would refuse.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from ralph.mock_api import Fault, Text, Thinking, ToolUse, Turn
from ralph.values.servers import OPENAI_CHAT, OPENAI_RESPONSES
from tests.patience import wait_until
from tests.program.faulty import DONE
from tests.program.several import at, run, settings
from tests.rows import every_row

if TYPE_CHECKING:
    from ralph.mock_api.server import RecordedRequest
    from tests.program.conftest import Ralph

OPENAI_KEY = "sk-proj-0123456789abcdef"
OTHERS = (OPENAI_CHAT, OPENAI_RESPONSES)
PATHS = {OPENAI_CHAT: "/v1/chat/completions", OPENAI_RESPONSES: "/v1/responses"}
USAGE = {"input_tokens": 100, "output_tokens": 10}


def work(number: int) -> Turn:
    """Thinking, text and a call whose effect can be counted."""
    command = {"command": f"echo {number} >> effects; echo out {number}"}
    return Turn(
        [Thinking(f"Thought {number}."), Text(f"Step {number}."), ToolUse("Bash", command)], usage=USAGE
    )


def effects(ralph: Ralph) -> list[str]:
    return (ralph.cwd / "effects").read_text().split()


def thoughts(request: RecordedRequest) -> list[str]:
    """The numbers of the thoughts that a request sends back."""
    return re.findall(r"Thought (\d)", (request.body or b"").decode())


def results(request: RecordedRequest) -> list[str]:
    """The numbers in the results of calls that a request has."""
    content = (block for message in request.messages() for block in message["content"])
    told = (str(block["content"]) for block in content if block["type"] == "tool_result")
    return [number for one in told for number in re.findall(r"out (\d)", one)]


@pytest.fixture
def others(ralph: Ralph) -> Ralph:
    """Only OpenAI's key is set."""
    del ralph.environment["ANTHROPIC_API_KEY"]
    ralph.environment["OPENAI_API_KEY"] = OPENAI_KEY
    return ralph


def at_api(api: str, server: Any) -> list[str]:
    return ["--api", api, "--base-url", server.base_url, "--model", "model-1"]


@pytest.mark.parametrize("api", OTHERS)
def test_a_task_is_done_on_another_api_with_tools_and_thinking(others, serve, api) -> None:
    server = serve(work(1), work(2), DONE)
    ran = others("go", *at_api(api, server), "--output-format", "stream-json")
    assert (ran.code, effects(others), ran.result["result"]) == (0, ["1", "2"], "All done.")
    assert [request.path for request in server.requests] == [PATHS[api]] * 3
    assert [request.api for request in server.requests] == [api] * 3
    for request in server.requests:
        assert "authorization" in request.headers
        assert not {"x-api-key", "anthropic-version"} & request.headers.keys()
    assert [thoughts(request) for request in server.requests] == [[], ["1"], ["1", "2"]]
    asked = ran.objects[0]
    assert (asked["subtype"], asked["model"]) == ("init", "model-1")
    kinds = [
        block["type"]
        for one in ran.objects
        if one["type"] == "assistant"
        for block in one["message"]["content"]
    ]
    assert kinds == ["thinking", "text", "tool_use"] * 2 + ["text"]
    assert ran.result["usage"]["input_tokens"] >= 2 * USAGE["input_tokens"]
    bodies = [request.body.removesuffix(b"]}") for request in server.requests if request.body]
    first, second, third = (list(re.split(rb'"(?:messages|input)":\[', body, maxsplit=1)) for body in bodies)
    assert second[1].startswith(first[1])
    assert third[1].startswith(second[1]), "each request begins with the messages of the one before it"


@pytest.mark.parametrize("api", OTHERS)
def test_a_session_moves_between_vendors_and_back_with_its_tools(ralph, serve, api) -> None:
    """Twice the first one is away: the other one does a step, and the first one continues."""
    ralph.environment["OPENAI_API_KEY"] = OPENAI_KEY
    main = serve(work(1), Fault(status=529), work(3), Fault(status=503), DONE)
    spare = serve(work(2), work(4))
    path = settings(
        ralph,
        at("main", main.base_url, "claude-opus-4-8", api_key_env="ANTHROPIC_API_KEY"),
        at("spare", spare.base_url, "model-2", api=api, api_key_env="OPENAI_API_KEY"),
        policy="custom",
        base_delay_s=0.01,
        strategy="round_robin",
    )
    ran = run(ralph, path)
    assert (ran.code, effects(ralph)) == (0, ["1", "2", "3", "4"])
    assert [request.api for request in main.requests] == ["anthropic"] * 5
    assert [request.api for request in spare.requests] == [api] * 2
    # Each answerer gets the words and the results of both, and its own thinking alone.
    assert [thoughts(request) for request in main.requests] == [[], ["1"], ["1"], ["1", "3"], ["1", "3"]]
    assert [thoughts(request) for request in spare.requests] == [[], ["2"]]
    for server, rounds in ((main, (0, 1, 2, 3, 4)), (spare, (1, 3))):
        for request, number in zip(server.requests, rounds, strict=True):
            body = (request.body or b"").decode()
            before = [str(one) for one in range(1, number + 1)]
            assert re.findall(r"Step (\d)\.", body) == before
            assert results(request) == before


@pytest.mark.parametrize("api", OTHERS)
def test_a_killed_run_continues_at_the_same_server(others, serve, api) -> None:
    wait = Turn(
        [Thinking("Thought 1."), ToolUse("Bash", {"command": "echo 1 >> effects; touch started; sleep 60"})]
    )
    server = serve(wait, DONE)
    process = others.start("go", *at_api(api, server))
    wait_until((others.cwd / "started").exists)
    process.kill()
    others.finish(process)
    refused = others("-c").having(78)
    base_url = f"{server.base_url}/v1"
    assert f"used {base_url}" in refused.last_line
    (flags,) = re.findall(r"choose one with (.*) or ", refused.last_line)
    again = others("-c", *shlex.split(flags))
    assert (again.code, effects(others)) == (0, ["1"])
    first, second = server.requests
    assert thoughts(second) == ["1"]
    *_, before = re.split(rb'"(?:messages|input)":\[', (first.body or b"").removesuffix(b"]}"))
    *_, after = re.split(rb'"(?:messages|input)":\[', second.body or b"")
    assert after.startswith(before)
    assert first.json()["tools"] == second.json()["tools"]


def test_a_refused_key_and_a_missing_model_are_told_with_the_place_of_the_requests(others, serve) -> None:
    server = serve(Fault(status=401), Fault(status=404))
    first, second = (others("hi", *at_api(OPENAI_CHAT, server), "--retry", "off") for _ in range(2))
    assert (first.code, second.code) == (77, 69)
    assert "Check the key: OPENAI_API_KEY." in first.stderr
    assert f"Requests go to: POST {server.base_url}/v1/chat/completions" in second.stderr


@every_row(
    ("environment", "offer"),
    [
        (
            {"OPENAI_API_KEY": OPENAI_KEY},
            "ask OpenAI, for which OPENAI_API_KEY is set, by `--model gpt-6.1-sol`",
        ),
        ({}, "no API key: set ANTHROPIC_API_KEY, point --base-url"),
    ],
)
def test_a_key_alone_chooses_no_vendor(ralph_here, ralph, environment, offer) -> None:
    ralph.environment = {
        name: text for name, text in ralph.environment.items() if not name.endswith(("_KEY", "_URL"))
    } | environment
    ran = ralph_here("hi", code=78)
    assert offer in ran.stderr


def test_a_session_whose_model_is_named_again_keeps_its_prompt(others, serve) -> None:
    """The system prompt has the instructions of a file, which is another one by then."""
    server = serve(DONE, DONE, DONE)
    flags = at_api(OPENAI_CHAT, server)
    (others.cwd / "AGENTS.md").write_text("Be brief.")
    assert others("go", *flags).code == 0
    (others.cwd / "AGENTS.md").write_text("Be long.")
    assert others("-c", "on", *flags).code == 0
    assert others("-c", "on", *flags, "--model", "model-2").code == 0
    prompts = [request.json()["messages"][0]["content"] for request in server.requests]
    assert prompts[0] == prompts[1]
    assert "Be long." in prompts[2]


@pytest.mark.parametrize("api", OTHERS)
def test_a_target_with_a_smaller_window_gets_a_smaller_context_also_in_the_middle_of_a_turn(
    ralph, serve, api
) -> None:
    def first(_request: RecordedRequest, index: int) -> Turn | Fault:
        if index >= 5:
            return Fault(status=529)
        long = {"command": f"head -c 14000 /dev/zero | tr '\\0' {index}"}
        return Turn([ToolUse("Bash", long)], usage={"input_tokens": 4_000 * (index + 1), "output_tokens": 20})

    def second(request: RecordedRequest, _index: int) -> Turn:
        asks_for_summary = "The context is nearly full" in str(request.messages()[-1])
        return Turn("Five long outputs were read.") if asks_for_summary else DONE

    main, small = serve(script=first), serve(script=second)
    targets = (
        at("main", main.base_url, "claude-opus-5-5"),
        at(
            "small",
            small.base_url,
            "model-1",
            api=api,
            api_key_env="A_KEY",
            context_window=20_000,
            max_tokens=2_000,
        ),
    )
    ralph.environment["A_KEY"] = OPENAI_KEY
    ran = run(ralph, settings(ralph, *targets))
    assert (ran.code, ran.result["result"]) == (0, "All done."), ran.stderr
    sizes = [request.body_bytes for request in small.requests]
    assert len(sizes) == 2, "a summary, and the turn"
    assert max(sizes) < 60_000, "about 20,000 tokens, and not the 75,000 bytes of the whole context"
