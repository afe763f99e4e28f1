"""The client and the scripted server share no code that knows OpenAI's dialects. They must understand each other.
tests/program/api/test_dialect_faults.py has the faults.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ralph.conversation.messages import RequestBody, RequestHead
from ralph.mock_api import Fault, MockApi, Playable, Scenario, Step, Text, Thinking, ToolUse, Turn, as_message
from ralph.values.servers import ANTHROPIC, APIS, OPENAI_CHAT, OPENAI_RESPONSES
from tests.api.harness import KEY
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.api.harness import Rig

    MakeRig = Callable[..., Rig]

BASES = {ANTHROPIC: [""], OPENAI_CHAT: ["/v1", "/v1beta/openai", "/openai/v1"], OPENAI_RESPONSES: ["/v1"]}
BEARER = (("authorization", f"Bearer {KEY[1]}"), KEY)
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
HEAD = {
    "model": "gpt-5.5",
    "max_tokens": 1000,
    "stream": True,
    "thinking": {"type": "adaptive"},
    "output_config": {"effort": "high"},
    "system": [{"type": "text", "text": "Be brief."}],
    "tools": [
        {"name": "Bash", "description": "Runs a command.", "input_schema": SCHEMA},
        {
            "name": "report",
            "description": "The last word.",
            "input_schema": {**SCHEMA, "additionalProperties": False},
        },
    ],
}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
SAID = {"type": "text", "text": "hi"}
TURN = Turn(
    [
        Thinking("Let me think: 世界?"),
        Text("Größe 🙂"),
        ToolUse("Bash", {"a": "\u2028 and 'quotes'"}, id="call_1"),
        ToolUse("Bash", {}, id="call_2"),
    ],
    usage={"input_tokens": 5, "cache_read_input_tokens": 7, "output_tokens": 9},
    ping_every=2,
)
RESULTS = [
    {"type": "tool_result", "tool_use_id": "call_1", "content": [SAID, IMAGE], "is_error": True},
    {"type": "tool_result", "tool_use_id": "call_2", "content": ""},
    {"type": "text", "text": "[ralph] a notice"},
]


def body_of(messages: list[Any]) -> RequestBody:
    *packed, last = [json.dumps(message).encode() for message in messages]
    return RequestBody(RequestHead.of_fields(HEAD), tuple(one + b"," for one in packed), (last,))


QUESTION = body_of([{"role": "user", "content": [SAID]}])


def without_signatures(content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in block.items() if name != "signature"} for block in content]


@every_row(("api", "base"), [(api, base) for api in APIS for base in BASES[api]])
def test_a_conversation_goes_to_and_fro(rig: MakeRig, api: str, base: str) -> None:
    steps: list[Playable] = [
        TURN,
        Step(Turn(TURN.content, chunk_chars=1), Fault(line_ending="\r\n")),
        Step(Turn(TURN.content), Fault(json_instead_of_sse=True)),
        Turn("Done."),
    ]
    with MockApi(Scenario(steps, require_key=True)) as server:
        client = rig(server.base_url + base, speaks=api, headers=BEARER)
        messages: list[Any] = [{"role": "user", "content": [SAID, IMAGE]}]
        for number in range(3):
            answer = client.api.send_message(body_of(messages), client.events).message
            assert without_signatures(answer["content"]) == without_signatures(as_message(TURN)["content"])
            assert answer["stop_reason"] == "tool_use"
            turn = [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": RESULTS}]
            # Each answer calls by the same ids, but a conversation has each id once.
            messages += json.loads(json.dumps(turn).replace('"call_', f'"call_{number}'))
        last = client.api.send_message(body_of(messages), client.events).message
        assert last["content"] == [{"type": "text", "text": "Done."}]
        assert {request.api for request in server.requests} == {api}
        heard = server.requests[-1].messages()
    assert [message["role"] for message in heard] == ["user", *["assistant", "user"] * 3]
    calls = [block for message in heard for block in message["content"] if block["type"] == "tool_use"]
    assert [call["input"] for call in calls] == [{"a": "\u2028 and 'quotes'"}, {}] * 3


@every_row("api", [OPENAI_CHAT, OPENAI_RESPONSES])
def test_the_tokens_of_an_answer_are_counted_alike(rig: MakeRig, api: str) -> None:
    with MockApi(Scenario([TURN])) as server:
        client = rig(server.base_url + BASES[api][0], speaks=api, headers=BEARER)
        answer = client.api.send_message(QUESTION, client.events)
    usage = answer.message["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (5, 7, 9)
