"""Tests what ralph sends back to the API: answers unchanged (A22), in requests that fit the API's types."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ralph import demo
from ralph.demo.stages import FIX_FAULTS, MODEL, OVERLOADED, RATE_LIMITED, DemoScript
from ralph.mock_api import Fault, Step, Text, Thinking, ToolUse, Turn
from tests.api.harness import end, http_answer, sse, text_block
from tests.conversation.request_types import request_problems

if TYPE_CHECKING:
    from ralph.mock_api import Playable, RecordedRequest

PROJECT = Path(demo.__file__).with_name("project")
START = {
    "type": "message_start",
    "message": {
        "id": "m1",
        "model": "m",
        "future": [1],
        "usage": {"input_tokens": 3, "future_count": {"x": 1}},
    },
}
UNKNOWN = {
    "zeta": {"b": [None, True, -0.5, 1e21, 12345678901234567890], "a": {"ü": "\u2028世界 🙂\ufeff", "": {}}},
    "type": "future_block",
    "text": 7,
    "content": [{"type": "text", "text": "", "deep": [[[]]]}],
    "cache_control": None,
    "alpha": '<\u007f\\"/>',
}
THOUGHT = {"type": "thinking", "future": {"c": 1, "b": 2}, "thinking": "", "signature": ""}
CALL = {
    "future": "é",
    "type": "tool_use",
    "name": "Bash",
    "id": "t1",
    "input": {},
    "caller": {"type": "direct"},
}
CHEERS = {"type": "text", "text": "", "future": {"y": 1, "x": [2]}, "citations": None}


def start(index: int, block: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index, "future": True}


FUTURE_EVENT = {"type": "future_event", "index": 0, "delta": {"type": "text_delta", "text": "not this"}}
FROM_THE_FUTURE: list[dict[str, Any]] = [
    FUTURE_EVENT,
    START,
    FUTURE_EVENT,
    start(0, THOUGHT),
    delta(0, "thinking_delta", thinking="hm", future=1),
    delta(0, "future_delta", thinking="not this"),
    delta(0, "signature_delta", signature="c2ln"),
    stop(0),
    start(1, UNKNOWN),
    delta(1, "future_delta", text="not this"),
    delta(1, "text_delta", text="not this"),
    delta(1, "input_json_delta", partial_json="not this"),
    FUTURE_EVENT,
    stop(1),
    start(2, CHEERS),
    delta(2, "text_delta", text="Now.", future=1),
    stop(2),
    start(3, CALL),
    delta(3, "input_json_delta", partial_json='{"command": "echo hi", "description": "é"}'),
    stop(3),
    *end("tool_use"),
]
KNOWN_AGAIN = [
    {**THOUGHT, "thinking": "hm", "signature": "c2ln"},
    UNKNOWN,
    {**CHEERS, "text": "Now."},
    {**CALL, "input": {"command": "echo hi", "description": "é"}},
]


def body_of(request: bytes) -> bytes:
    return request.partition(b"\r\n\r\n")[2]


def in_order(value: object) -> str:
    """The value as JSON without sorting its keys. Equal texts mean equal values with the same order of keys."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def call_again(call_id: str) -> list[dict[str, Any]]:
    return [start(0, {**CALL, "id": call_id, "input": {"command": "true"}}), stop(0), *end("tool_use")]


def test_a22_an_unknown_block_goes_back_as_it_came_exits_0(ralph, answer_with) -> None:
    bodies = sse(*FROM_THE_FUTURE), sse(START, *call_again("t2")), sse(START, *text_block(0, "ok"), *end())
    server = answer_with(*map(http_answer, bodies))
    ran = ralph("go")
    assert (ran.code, ran.stdout) == (0, "ok\n")
    sent = [body_of(request) for request in server.requests]
    for body in sent[1:]:
        assert in_order(UNKNOWN).encode() in body, "byte for byte"
        assert in_order(json.loads(body)["messages"][1]["content"]) == in_order(KNOWN_AGAIN)
        assert request_problems(without_the_unknown(json.loads(body))) == []
    assert "hi" in json.loads(sent[1])["messages"][2]["content"][0]["content"]


def without_the_unknown(body: dict[str, Any]) -> dict[str, Any]:
    """The body without blocks and fields that the SDK's types do not have."""
    for message in body["messages"]:
        message["content"] = [
            {name: value for name, value in block.items() if name != "future"}
            for block in message["content"]
            if block["type"] != "future_block"
        ]
    return body


def test_a22_an_answer_of_nothing_but_an_unknown_block_goes_back_too_exits_0(ralph, answer_with) -> None:
    paused = sse(START, start(0, UNKNOWN), stop(0), *end("pause_turn"))
    server = answer_with(http_answer(paused), http_answer(sse(START, *text_block(0, "ok"), *end())))
    ran = ralph("go")
    assert (ran.code, ran.stdout) == (0, "ok\n")
    assert in_order(UNKNOWN).encode() in body_of(server.requests[1])


def demo_without_waits(request: RecordedRequest, index: int) -> Playable:
    faults = {number: OVERLOADED if fault == RATE_LIMITED else fault for number, fault in FIX_FAULTS.items()}
    return DemoScript(has_git=False, faults=faults)(request, index)


def test_every_request_of_the_demo_is_one_that_the_official_types_allow(ralph, serve) -> None:
    server = serve(script=demo_without_waits)
    shutil.copytree(PROJECT, ralph.cwd, dirs_exist_ok=True)
    ralph.retry_quickly()
    ran = ralph(demo.TASK, "--model", MODEL, code=0)
    assert "is fixed" in ran.stdout
    assert len(server.requests) == 8
    for request in server.requests:
        assert request_problems(request.json()) == []


def test_every_request_of_a_run_with_all_kinds_of_answers_is_one_that_the_official_types_allow(
    ralph, serve
) -> None:
    ralph.retry_quickly()
    (ralph.cwd / "AGENTS.md").write_text("the rule")
    calls = [
        ToolUse("Bash", {"command": "echo a"}),
        ToolUse("Read", {"file_path": "none"}),
        ToolUse("Nothing"),
    ]
    broken = Turn([ToolUse("Bash", input_json='{"command": "ec')], stop_reason="max_tokens")
    server = serve(
        Turn([Thinking("hm"), {"type": "redacted_thinking", "data": "eA=="}, Text("Look."), *calls]),
        Step(Turn("never whole"), Fault(cut_after_events=3, framing="close")),
        Turn([Thinking("unsigned", ""), Text("half")], stop_reason="max_tokens"),
        broken,
        Turn("done"),
    )
    ran = ralph(
        "go", "--model", "claude-opus-4-8", "--effort", "high", "--append-system-prompt", "And rhyme."
    )
    assert (ran.code, ran.stdout) == (0, "done\n")
    assert len(server.requests) == 5
    for request in server.requests:
        assert request_problems(request.json()) == []
