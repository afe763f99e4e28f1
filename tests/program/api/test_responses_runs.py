"""Whole runs on the Responses API, with a server that sends what OpenAI sends, and moves between vendors in mid-session."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming

from ralph.mock_api import Text, ToolUse, Turn
from tests.api.harness import http_answer
from tests.api.responses.server import call, events_of, message, reasoning, response, stream, text_part
from tests.conversation.request_types import type_problems
from tests.program.several import at, run, settings

if TYPE_CHECKING:
    from tests.api.harness import RawServer

KEY = "sk-proj-0123456789abcdef0123456789"
ECHO = call(json.dumps({"command": "echo found > told; cat told"}))
SECOND = call(json.dumps({"command": "cat told"}), call_id="call_2")
THOUGHT = reasoning("I look first.")
DONE = response(message(text_part("All done.")))
OVERLOADED = {"error": {"message": "Overloaded", "type": "server_error", "code": None}}


@pytest.fixture(autouse=True)
def key(ralph) -> None:
    ralph.environment["A_KEY"] = KEY


def says(*items: dict[str, Any], **more: Any) -> bytes:
    return http_answer(stream(events_of(response(*items, **more))))


def refuses(status: int, **error: Any) -> bytes:
    return http_answer(json.dumps({"error": error}).encode(), "application/json", f"{status} X")


def body_of(request: bytes) -> bytes:
    return request.partition(b"\r\n\r\n")[2]


def bodies(server: RawServer) -> list[dict[str, Any]]:
    """The bodies of the requests so far, all of which fit the types of the official package."""
    found = [json.loads(body_of(one)) for one in server.requests]
    assert [type_problems(one, ResponseCreateParamsStreaming) for one in found] == [[]] * len(found)
    return found


def kinds(body: dict[str, Any]) -> list[str]:
    return [one["type"] for one in body["input"]]


def openai_at(server: RawServer, name: str = "main", **more: Any) -> dict[str, Any]:
    return at(
        name, f"{server.base_url}/v1", "gpt-6-astra", api="openai-responses", api_key_env="A_KEY", **more
    )


def test_a_task_with_calls_is_done_and_its_reasoning_goes_back(ralph, answer_with) -> None:
    server = answer_with(says(THOUGHT, ECHO), says(reasoning(item_id="rs_2"), SECOND), says(*DONE["output"]))
    ran = run(ralph, settings(ralph, openai_at(server)))
    assert (ran.code, ran.result["result"]) == (0, "All done."), ran.stderr
    first, second, third = bodies(server)
    for request in server.requests:
        assert request.startswith(b"POST /v1/responses HTTP/1.1\r\n")
        assert f"\r\nauthorization: Bearer {KEY}\r\n".encode() in request
        assert b"anthropic" not in request.partition(b"\r\n\r\n")[0].lower()
    assert kinds(first) == ["message"]
    assert kinds(second) == ["message", "reasoning", "function_call", "function_call_output"]
    assert second["input"][1] == {**THOUGHT, "summary": [{"type": "summary_text", "text": "I look first."}]}
    assert "found" in second["input"][3]["output"]
    assert third["input"][: len(second["input"])] == second["input"]
    assert (ralph.cwd / "told").read_text() == "found\n"
    usage = ran.result["modelUsage"]["gpt-6-astra"]
    assert (usage["inputTokens"], usage["cacheReadInputTokens"], usage["outputTokens"]) == (120, 150, 90)


def test_another_vendor_answers_in_mid_session_and_gets_no_reasoning_which_waits_for_its_own_target(
    ralph, answer_with, serve
) -> None:
    main = answer_with(says(THOUGHT, ECHO), refuses(503, **OVERLOADED["error"]), says(*DONE["output"]))
    spare = serve(Turn([Text("I go on."), ToolUse("Bash", {"command": "cat told"}, id="toolu_1")]))
    path = settings(
        ralph,
        openai_at(main),
        at("spare", spare.base_url, "claude-test"),
        policy="custom",
        base_delay_s=0.01,
        strategy="round_robin",
    )
    ran = run(ralph, path)
    assert (ran.code, ran.result["result"]) == (0, "All done."), ran.stderr
    assert "[target] main -> spare (" in ran.stderr
    (told,) = [json.loads(one.body) for one in spare.requests]
    blocks = [
        block for one in told["messages"] if isinstance(one["content"], list) for block in one["content"]
    ]
    assert [block["type"] for block in blocks if block["type"] != "text"] == ["tool_use", "tool_result"]
    assert "found" in str(blocks)
    last = bodies(main)[-1]
    assert kinds(last) == [
        *("message", "reasoning", "function_call", "function_call_output"),
        *("message", "function_call", "function_call_output"),
    ]
    assert last["input"][4]["content"] == "I go on."
    assert set(ran.result["modelUsage"]) == {"gpt-6-astra", "claude-test"}


def test_a_session_is_resumed_with_the_same_bytes_and_its_reasoning(ralph, answer_with) -> None:
    server = answer_with(says(THOUGHT, ECHO), says(*DONE["output"]), says(*DONE["output"]))
    path = settings(ralph, openai_at(server))
    assert run(ralph, path).code == 0
    assert ralph("And now?", "--continue", "--config", str(path)).code == 0
    sent = [body_of(one).removesuffix(b"]}") for one in server.requests]
    assert sent[2].startswith(sent[1])
    resumed = bodies(server)[2]["input"]
    assert [one["type"] for one in resumed[-2:]] == ["message", "message"]
    assert resumed[1]["encrypted_content"] == THOUGHT["encrypted_content"]
    assert "And now?" in str(resumed[-1])


def test_reasoning_that_the_server_refuses_is_left_out_and_asked_once_more(ralph, answer_with) -> None:
    refusal = refuses(
        400, message="The encrypted content gAAA could not be verified.", code="invalid_encrypted_content"
    )
    server = answer_with(says(THOUGHT, ECHO), refusal, says(*DONE["output"]))
    ran = run(ralph, settings(ralph, openai_at(server)))
    assert (ran.code, ran.result["result"]) == (0, "All done."), ran.stderr
    assert ["reasoning" in kinds(one) for one in bodies(server)] == [False, True, False]


def test_what_is_sent_and_printed_holds_no_key(ralph, answer_with) -> None:
    server = answer_with(refuses(401, message=f"Incorrect API key provided: {KEY}", code="invalid_api_key"))
    ran = run(ralph, settings(ralph, openai_at(server))).having(77)
    assert KEY not in ran.stdout + ran.stderr
    assert re.search(rb"authorization: bearer " + KEY.encode(), server.requests[0], re.IGNORECASE)
    assert ran.of("init")
