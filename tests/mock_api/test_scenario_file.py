"""Scenario files: what they mean, and the messages about a wrong one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import fields

from ralph.mock_api import (
    FOREVER,
    ErrorEvent,
    Fault,
    MockApi,
    Model,
    Scenario,
    ScenarioError,
    Step,
    Text,
    Thinking,
    ToolUse,
    Turn,
    example_names,
    load_example,
    load_scenario,
    parse_scenario,
)
from ralph.mock_api.scenario import as_step
from tests.mock_api.harness import sent
from tests.rows import every_row

DOCS = Path(__file__).parents[2] / "docs" / "mock-api.md"

EVERYTHING = """
description = "all of it"
validate = false
require_key = true
parse_requests = false

[[steps]]
content = "Hello"
repeat = 3

[[steps]]
stop_reason = "max_tokens"
usage = { input_tokens = 5, output_tokens = 6 }
chunk_chars = 2
fault = { cut_after_events = 3, framing = "reset", headers = { retry-after = 1 }, drip_s = 1 }
content = [
  { type = "thinking", thinking = "hm", signature = "" },
  { type = "text", text = "Hi" },
  { type = "tool_use", name = "Bash", input = { command = "ls" } },
  { raw = { type = "redacted_thinking", data = "x" } },
]

[[steps]]
repeat = "forever"
fault = { error_event = { type = "api_error", after_events = 2 } }

[[models]]
id = "a/b"
max_input_tokens = 200_000
max_tokens = 64_000

[[models]]
id = "slow"
fault = { stall_before_headers_s = inf }
"""


def test_a_file_says_what_the_values_say() -> None:
    assert parse_scenario(EVERYTHING) == Scenario(
        description="all of it",
        validate=False,
        require_key=True,
        parse_requests=False,
        steps=(
            Step(Turn("Hello"), repeat=3),
            Step(
                Turn(
                    content=(
                        Thinking("hm", ""),
                        Text("Hi"),
                        ToolUse("Bash", {"command": "ls"}),
                        {"type": "redacted_thinking", "data": "x"},
                    ),
                    stop_reason="max_tokens",
                    usage={"input_tokens": 5, "output_tokens": 6},
                    chunk_chars=2,
                ),
                Fault(cut_after_events=3, framing="reset", headers={"retry-after": 1}, drip_s=1),
            ),
            Step(fault=Fault(error_event=ErrorEvent("api_error", after_events=2)), repeat=FOREVER),
        ),
        models=(
            Model("a/b", 200_000, 64_000),
            Model("slow", fault=Fault(stall_before_headers_s=float("inf"))),
        ),
    )


def test_json_says_the_same_as_toml(tmp_path: Path) -> None:
    toml, as_json = tmp_path / "s.toml", tmp_path / "s.json"
    toml.write_text('[[steps]]\ncontent = "Hello"\nfault = { drip_s = 0.5 }\n')
    as_json.write_text(json.dumps({"steps": [{"content": "Hello", "fault": {"drip_s": 0.5}}]}))
    assert load_scenario(toml) == load_scenario(str(as_json))


WRONG = {
    "stepz = 1": ("unknown field `stepz`", "$"),
    "validate = 1": ("Expected `bool`", "$.validate"),
    "steps = 1": ("Expected `array`", "$.steps"),
    "steps = [1]": ("Expected `object`", "$.steps[0]"),
    "[[steps]]": ("a step needs content or a fault", "$.steps[0]"),
    '[[steps]]\ncontent = "a"\n[[steps]]\ncontend = "b"': ("unknown field `contend`", "$.steps[1]"),
    "[[steps]]\ncontent = 1": ("Expected `str | array`", "$.steps[0].content"),
    '[[steps]]\ncontent = "a"\nchunk_chars = -1': ("chunk_chars: must not be negative", "$.steps[0]"),
    '[[steps]]\ncontent = "a"\nchunk_chars = "x"': ("Expected `int`", "$.steps[0].chunk_chars"),
    '[[steps]]\ncontent = "a"\nrepeat = "often"': ("Invalid enum value 'often'", "$.steps[0].repeat"),
    '[[steps]]\ncontent = "a"\nrepeat = 0': ('repeat: must be at least 1, or "forever"', "$.steps[0]"),
    '[[steps]]\ncontent = [{ text = "a" }]': ("missing required field `type`", "$.steps[0].content[0]"),
    '[[steps]]\ncontent = [{ type = ["text"] }]': ("Expected `str`", "$.steps[0].content[0].type"),
    '[[steps]]\ncontent = [{ type = "image" }]': ("Invalid value 'image'", "$.steps[0].content[0].type"),
    '[[steps]]\ncontent = [{ type = "tool_use" }]': (
        "missing required field `name`",
        "$.steps[0].content[0]",
    ),
    '[[steps]]\ncontent = [{ type = "text", text = "a", txt = 1 }]': (
        "unknown field `txt`",
        "$.steps[0].content[0]",
    ),
    "[[steps]]\ncontent = [{ raw = 1 }]": ("Expected `object`", "$.steps[0].content[0].raw"),
    "[[steps]]\nfault = 1": ("Expected `object", "$.steps[0].fault"),
    "[[steps]]\nfault = { stauts = 429 }": ("unknown field `stauts`", "$.steps[0].fault"),
    '[[steps]]\nfault = { framing = "a\\nb\\u001b" }': ("Invalid enum value", "$.steps[0].fault.framing"),
    "[[steps]]\nfault = { headers = { a = true } }": ("Expected `int | ", "$.steps[0].fault.headers[...]"),
    "[[steps]]\nfault = { error_event = { typ = 1 } }": ("field `typ`", "$.steps[0].fault.error_event"),
    "[[steps]]\nfault = { stall_s = 1 }": ("stall_s: needs stall_after_events", "$.steps[0].fault"),
    '[[steps]]\ncontent = "a"\nfault = { status = 500 }': ("a fault that answers by itself", "$.steps[0]"),
    "models = 1": ("Expected `array`", "$.models"),
    '[[models]]\nid = ""': ("id: must not be empty", "$.models[0]"),
    '[[models]]\nid = "a"\nmax_token = 1': ("unknown field `max_token`", "$.models[0]"),
    '[[models]]\nid = "a"\nmax_input_tokens = 0': ("max_input_tokens: must be at least 1", "$.models[0]"),
    '[[models]]\nid = "a"\nfault = { stauts = 429 }': ("unknown field `stauts`", "$.models[0].fault"),
    '[[models]]\nid = "a"\nfault = { stall_after_events = 1 }': ("has no effect here", "$.models[0]"),
    '[[models]]\nid = "a"\n[[models]]\nid = "b"\n[[models]]\nid = "a"': ("models[2]: id 'a' has been", "$"),
}


@every_row(("text", "message", "path"), [(text, *told) for text, told in WRONG.items()])
def test_a_wrong_file_is_one_line_that_names_the_path(text: str, message: str, path: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(text, name="x.toml")
    line = str(caught.value)
    assert line.startswith("x.toml: ")
    assert message in line
    assert line.endswith(f" - at `{path}`")
    assert line.isprintable()


def test_text_that_is_no_toml_is_a_scenario_error() -> None:
    with pytest.raises(ScenarioError, match=r"^x\.toml: Expected '=' after a key"):
        parse_scenario("not toml", name="x.toml")


def test_a_file_that_cannot_be_read_is_a_scenario_error(tmp_path: Path) -> None:
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    for file in (tmp_path / "missing.toml", tmp_path, binary):
        with pytest.raises(ScenarioError, match=str(file)):
            load_scenario(file)


@every_row("text", ["[]", '"x"', "{", "null"])
def test_json_that_is_no_object_is_a_scenario_error(text: str) -> None:
    with pytest.raises(ScenarioError):
        parse_scenario(text, is_json=True)


# How each request to an example ends: cut, an error's status, or 200, "whole" with a message_stop.
EXAMPLES = {
    "broken-stream": ["cut", "200", "200", "whole"],
    "hello": ["whole"],
    "quirk-empty-signature": ["whole", "whole"],
    "quirk-end-turn-with-calls": ["whole", "whole"],
    "quirk-interleaved-blocks": ["whole", "whole"],
    "quirk-json-instead-of-sse": ["200", "200"],
    "quirk-model-loading": ["503", "503", "whole", "whole"],
    "quirk-no-message-delta": ["whole", "whole"],
    "quirk-no-pings": ["whole", "whole"],
    "quirk-no-tool-input": ["whole", "whole"],
    "quirk-odd-ids": ["whole", "whole"],
    "quirk-openai-errors": ["429", "503", "429", "whole", "502", "500", "whole"],
    "quirk-ping-first": ["whole", "whole"],
    "rate-limit-then-ok": ["429", "429", "529", "whole"],
    "tools": ["whole", "whole", "whole"],
}


def test_the_examples_are_the_documented_ones() -> None:
    page = DOCS.read_text(encoding="utf-8")
    assert example_names() == list(EXAMPLES)
    assert [name for name in example_names() if f"`{name}`" not in page] == []
    with pytest.raises(ScenarioError, match="broken-stream, hello"):
        load_example("nonsense")


def play(server: MockApi) -> httpx.Response:
    request = {"model": "m", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    headers = {"anthropic-version": "2023-06-01"}
    return sent("POST", f"{server.base_url}/v1/messages", json=request, headers=headers)


@every_row("name", EXAMPLES)
def test_each_example_plays_to_its_end(name: str) -> None:
    scenario = load_example(name)
    assert scenario.description.endswith(".")
    outcomes = []
    with MockApi(scenario) as server:
        for _ in range(sum(1 if s.repeat == FOREVER else s.repeat for s in map(as_step, scenario.steps))):
            try:
                answer = play(server)
            except httpx.RemoteProtocolError:
                outcomes.append("cut")
            else:
                outcomes.append("whole" if "message_stop\n" in answer.text else str(answer.status_code))
    assert outcomes == EXAMPLES[name]


# What is on the wire, and what is not: each quirk really is one.
ON_THE_WIRE = {
    "quirk-empty-signature": ('"signature":""', '"signature":"bW'),
    "quirk-end-turn-with-calls": ('"stop_reason":"end_turn"', '"stop_reason":"tool_use"'),
    "quirk-interleaved-blocks": ('"index":2', "event: ping"),
    "quirk-json-instead-of-sse": ('{"id": ', "event: "),
    "quirk-model-loading": ('"Loading model"', "event: "),
    "quirk-no-message-delta": ("event: message_stop", "message_delta"),
    "quirk-no-pings": ("event: message_stop", "ping"),
    "quirk-no-tool-input": ('"type":"tool_use"', '"input":'),
    "quirk-odd-ids": ('"id":"functions.Bash:0"', "toolu_"),
    "quirk-openai-errors": ('"Rate limit reached', '"type": "error"'),
}


@every_row(("name", "present", "absent"), [(n, *texts) for n, texts in ON_THE_WIRE.items()])
def test_the_first_answer_of_a_quirk_shows_it(name: str, present: str, absent: str) -> None:
    with MockApi(load_example(name)) as server:
        text = play(server).text
    assert present in text
    assert absent not in text


def test_the_pings_of_the_quirk_come_before_the_message() -> None:
    with MockApi(load_example("quirk-ping-first")) as server:
        text = play(server).text
    assert text.count("event: ping", 0, text.index("event: message_start")) == 2


@every_row("kind", [Scenario, Model, Step, Turn, Fault, ErrorEvent])
def test_every_key_of_the_file_is_in_the_docs(kind: Any) -> None:
    text = DOCS.read_text(encoding="utf-8")
    missing = [field.name for field in fields(kind) if field.name != "turn" and f"`{field.name}" not in text]
    assert not missing


def test_the_example_in_the_docs_loads() -> None:
    example = DOCS.read_text(encoding="utf-8").split("```toml\n")[1].split("```")[0]
    assert len(parse_scenario(example).steps) == 3


def test_a_step_after_one_that_repeats_for_ever_is_an_error() -> None:
    text = '[[steps]]\ncontent = "a"\nrepeat = "forever"\n[[steps]]\ncontent = "b"\n'
    with pytest.raises(ScenarioError, match=r"steps\[0\]"):
        parse_scenario(text)
